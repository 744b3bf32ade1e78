"""`waystation acls` and `waystation users`, with the options that scripts use: on a folder and at a running broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import waystation as ws
from tests.cli.kit import QuickCli
from tests.cli.terminal import terminal
from tests.support.server import Server
from waystation.errors import NotAllowed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a broker that does not run, with a user who may do everything."""
    data = tmp_path / "broker" / "data"
    QuickCli("")("users", "add", "root", "--superuser", "--password-stdin", "--data", str(data), stdin=b"root\n")
    return data


def listed(folder: Path, *selected: str) -> set[tuple[Any, ...]]:
    lines = QuickCli("")("acls", "list", "--json", "--data", str(folder), *selected).out.splitlines()
    rows = [json.loads(line) for line in lines]
    names = ("principal", "allow", "operation", "resource", "name", "match", "namespace")
    return {tuple(row[name] for name in names) for row in rows}


def test_each_kind_of_resource_is_allowed_denied_listed_and_removed(folder: Path) -> None:
    def acls(*words: str) -> str:
        return QuickCli("")("acls", *words, "--data", str(folder)).out.decode()

    assert acls("add", "--user", "app", "--allow", "read,write", "--topic", "orders") == "added 2 rules\n"
    assert acls("add", "--user", "app", "--deny", "delete", "--queue", "jobs", "--prefix") == "added 1 rule\n"
    assert acls("add", "--user", "app", "--allow", "write", "--exchange", "events", "--namespace", "shop")
    assert acls("add", "--in-group", "readers", "--allow", "read", "--group", "app-.*", "--regex")
    assert acls("add", "--user", "*", "--allow", "read", "--namespace", "shop")
    everything = {
        ("User:app", True, "read", "topic", "orders", "literal", "*"),
        ("User:app", True, "write", "topic", "orders", "literal", "*"),
        ("User:app", False, "delete", "queue", "jobs", "prefixed", "*"),
        ("User:app", True, "write", "exchange", "events", "literal", "shop"),
        ("Group:readers", True, "read", "group", "app-.*", "regex", "*"),
        ("User:*", True, "read", "namespace", "shop", "literal", "*"),
    }
    assert listed(folder) == everything
    assert acls("add", "--user", "app", "--allow", "read", "--topic", "orders").startswith("no rule added")
    assert {row[3] for row in listed(folder, "--user", "app", "--deny", "delete")} == {"queue"}
    assert "removed 2 rules" in acls("remove", "--user", "app", "--topic", "orders", "--yes")
    assert listed(folder) == {row for row in everything if row[3] != "topic"}


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    add = ("users", "add", "app", "--password-stdin", "--data", str(folder))
    QuickCli("")(*add, stdin=b"secret\n")
    with Server(folder.parent, settings={"connection.failed.authentication.delay.ms": 1}) as running:
        yield running


def test_a_denial_wins_over_what_is_allowed_and_ends_when_it_is_removed(server: Server) -> None:
    root = QuickCli(f"waystation://root:root@{server.bootstrap}")
    root("acls", "add", "--user", "app", "--allow", "all", "--queue", "*")
    with ws.connect(f"waystation://app:secret@{server.bootstrap}") as app:
        jobs = app.queue("jobs-1")
        root("acls", "add", "--user", "app", "--deny", "write", "--queue", "jobs-", "--prefix")
        with pytest.raises(NotAllowed):
            jobs.put("x")
        root("acls", "remove", "--user", "app", "--deny", "write", "--queue", "jobs-", "--prefix", "--yes")
        assert jobs.put("x") == "jobs-1#0"


def test_a_person_is_asked_for_the_password_twice_and_it_is_not_shown(folder: Path) -> None:
    for second, code in (("other", 1), ("secret", 0)):
        with terminal("users", "add", "ada", "--data", str(folder)) as person:
            person.read_until("password of ada: ")
            person.type("secret\n")
            person.read_until("once more: ")
            person.type(f"{second}\n")
            assert person.ended() == code
        assert "secret" not in person.seen
        assert ("the two passwords differ" in person.seen) == (code == 1)
    with Server(folder.parent) as server, ws.connect(f"waystation://ada:secret@{server.bootstrap}") as mq:
        assert mq.ping() >= 0
