"""Whatever a `list` shows can be described and deleted, by the name under which it is listed.

The kinds come from the command tree: a new `list` without a row here fails, and so does one without `describe` and
`delete`, unless `OTHER_WORDS` or `WITHOUT` says why.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import waystation
from tests.cli.kit import QuickCli
from tests.clients.kit import consumer
from tests.clients.share_kit import share_consumer
from tests.support.names import unique
from tests.support.waiting import wait_for
from waystation.catalog.sqlite import SqliteCatalog
from waystation.cli.completion.tree import spots
from waystation.cli.main import build_parser
from waystation.observe.pipeline_state import PipelineState
from waystation.security.api_keys import ApiKey
from waystation.security.api_keys import edit_offline as edit_key
from waystation.security.users import User, edit_offline
from waystation.spark.pipelines.status.reporter import Reporter
from waystation.world.random import SystemRandom

OTHER_WORDS = {
    ("connections", "delete"): "close",
    ("delayed", "delete"): "cancel",
    ("dead-letters", "describe"): "show",
    ("pipeline", "describe"): "status",
    ("context", "describe"): "show",
    ("context", "delete"): "remove",
    ("users", "delete"): "remove",
    ("keys", "delete"): "remove",
    ("acls", "delete"): "remove",
    ("quotas", "delete"): "remove",
}
"""Verbs that people know by another word."""

WITHOUT = {
    ("acls", "describe"): "a rule has no name, and `acls list` shows all of it",
    ("quotas", "describe"): "`quotas list` shows all of them",
    ("keys", "describe"): "`keys list` shows all that may be shown of one",
    ("users", "describe"): "`users list` shows all that may be shown of one",
    ("lost", "describe"): "it is a folder, and `lost list` shows all that is known of it",
}
"""Verbs that a kind does not have, and why."""


@dataclass
class Thing:
    """Something that a `list` shows: its name there, and what to write to see and to delete it."""

    listed: str
    named: str
    described: str
    deleted: str
    stack: ExitStack = field(default_factory=ExitStack)


Make = Callable[[QuickCli, str, Path], Thing]


def topic(quick: QuickCli, name: str, folder: Path) -> Thing:
    quick("topics", "create", name)
    return Thing("topics list", name, f"topics describe {name}", f"topics delete {name} --yes")


def queue(quick: QuickCli, name: str, folder: Path) -> Thing:
    quick("queues", "create", name)
    return Thing("queues list", name, f"queues describe {name}", f"queues delete {name} --yes")


def exchange(quick: QuickCli, name: str, folder: Path) -> Thing:
    quick("exchanges", "create", name)
    return Thing("exchanges list", name, f"exchanges describe {name}", f"exchanges delete {name} --yes")


def binding(quick: QuickCli, name: str, folder: Path) -> Thing:
    quick("queues", "create", name)
    quick("exchanges", "bind", "amq.direct", name, "--key", name)
    return Thing(
        "exchanges list", name, "exchanges describe amq.direct", f"exchanges unbind amq.direct {name} --key {name}"
    )


def dead_letters(quick: QuickCli, name: str, folder: Path) -> Thing:
    quick("queues", "create", f"{name}.dead")
    quick("queues", "create", name, "--dead-letter", f"{name}.dead")
    quick("queues", "put", name, "failed", "--id", f"{name}-1")
    quick("queues", "get", name, "--then", "dead-letter")
    wait_for(lambda: f"{name}-1" in quick("dead-letters", "show", f"{name}.dead").text, "it is a dead letter")
    queue = f"{name}.dead"
    return Thing(
        f"dead-letters show {queue}",
        f"{name}-1",
        f"dead-letters show {queue} {name}-1",
        f"dead-letters delete {queue} {name}-1 --yes",
    )


def delayed(quick: QuickCli, name: str, folder: Path) -> Thing:
    quick("queues", "create", name)
    quick("queues", "put", name, "later", "--id", f"{name}-1", "--delay", "1h")
    return Thing(
        f"delayed list {name}", f"{name}-1", f"delayed describe {name} {name}-1", f"delayed cancel {name} {name}-1"
    )


def delayed_to_topic(quick: QuickCli, name: str, folder: Path) -> Thing:
    quick("topics", "create", name)
    with waystation.connect(quick.server) as mq:
        mq.publish(name, b"later", delay=3600, id=f"{name}-1")
    return Thing(
        f"delayed list --topic {name}",
        f"{name}-1",
        f"delayed describe {name} {name}-1 --to-topic",
        f"delayed cancel {name} {name}-1 --to-topic",
    )


def user(quick: QuickCli, name: str, folder: Path) -> Thing:
    """Of a broker that does not run: the first user would close the one that all tests share."""
    folder.mkdir(parents=True)
    catalog = SqliteCatalog(str(folder), SystemRandom())
    edit_offline(catalog, name, User(), SystemRandom().token)
    catalog.close()
    return Thing(f"users list --data {folder}", name, "", f"users remove {name} --data {folder}")


def api_key(quick: QuickCli, name: str, folder: Path) -> Thing:
    folder.mkdir(parents=True)
    catalog = SqliteCatalog(str(folder), SystemRandom())
    edit_key(catalog, "0123456789", ApiKey(name, "0" * 64))
    catalog.close()
    return Thing(f"keys list --data {folder}", "wsk_0123456789", "", f"keys remove wsk_0123456789 --data {folder}")


def rule(quick: QuickCli, name: str, folder: Path) -> Thing:
    folder.mkdir(parents=True)
    selected = f"--data {folder} --user alice --topic {name}"
    quick(*f"acls add {selected} --allow read".split())
    return Thing(f"acls list --data {folder}", name, "", f"acls remove {selected} --yes")


def quota(quick: QuickCli, name: str, folder: Path) -> Thing:
    quick(*f"quotas set --user {name} producer_byte_rate=1G".split())
    return Thing("quotas list", name, "", f"quotas remove --user {name}")


def connection(quick: QuickCli, name: str, folder: Path) -> Thing:
    stack = ExitStack()
    stack.enter_context(waystation.connect(quick.server, name=name)).ping()
    (found,) = quick("connections", "list", "--search", name, "--json").objects
    listed = found["name"]
    return Thing(
        "connections list --limit 1000",
        listed,
        f"connections describe {listed}",
        f"connections close {listed} --yes",
        stack,
    )


def pipeline(quick: QuickCli, name: str, folder: Path) -> Thing:
    reporter = Reporter(quick.server, PipelineState(name, "run", phase="finished"), lambda text: None)
    reporter.start()
    wait_for(lambda: name in quick("pipeline", "list").text, "it is listed")
    reporter.close()
    return Thing("pipeline list", name, f"pipeline status {name}", f"pipeline delete {name} --yes")


def lost(quick: QuickCli, name: str, folder: Path) -> Thing:
    with waystation.open(folder):
        pass
    (folder / "topics" / f"{name}.0123abcd" / "0").mkdir(parents=True)
    with waystation.open(folder):
        pass
    (found,) = quick("lost", "list", str(folder), "--json").objects
    return Thing(f"lost list {folder}", found["folder"], "", f"lost delete {folder} {found['folder']} --yes")


def namespace(quick: QuickCli, name: str, folder: Path) -> Thing:
    quick("namespaces", "create", name, "--description", "a test")
    return Thing("namespaces list", name, f"namespaces describe {name}", f"namespaces delete {name} --yes")


def policy(quick: QuickCli, name: str, folder: Path) -> Thing:
    quick("policies", "set", name, f"^{name}", "max-length=5")
    return Thing("policies list", name, f"policies describe {name}", f"policies delete {name} --yes")


# -- groups of every kind ----------------------------------------------------------------------------------------------


def _group(quick: QuickCli, name: str, kind: str) -> Thing:
    wait_for(lambda: (name, kind, 0) in _groups(quick), f"a group of the kind {kind}, without members", every_s=0.2)
    (described,) = quick("groups", "describe", name, "--json").objects
    assert described["kind"] == kind
    moved = quick("groups", "reset", name, "--to", "earliest", "--yes", "--json").json
    assert moved["done"]
    assert [one["to"] for one in moved["offsets"]] == [0]
    return Thing("groups list", name, f"groups describe {name}", f"groups delete {name} --yes")


def _groups(quick: QuickCli) -> list[tuple[str, str, int]]:
    return [(one["group"], one["kind"], one["members"]) for one in quick("groups", "list", "--json").objects]


@contextmanager
def _topic_with_two(quick: QuickCli, name: str) -> Iterator[str]:
    topic = f"{name}.topic"
    quick("topics", "create", topic, "--partitions", "1")
    quick("publish", topic, "a", "b")
    yield topic


def classic_group(quick: QuickCli, name: str, folder: Path) -> Thing:
    with _topic_with_two(quick, name) as topic:
        member = consumer(quick.server, name)
        member.subscribe([topic])
        assert len(member.consume(2, 30)) == 2
        member.commit(asynchronous=False)
        member.close()
    return _group(quick, name, "classic")


def consumer_group(quick: QuickCli, name: str, folder: Path) -> Thing:
    with _topic_with_two(quick, name) as topic:
        quick("consume", topic, "--group", name)
    return _group(quick, name, "consumer")


def share_group(quick: QuickCli, name: str, folder: Path) -> Thing:
    with _topic_with_two(quick, name) as topic:
        member = share_consumer(quick.server, name, [topic])
        wait_for(lambda: member.poll(0.1) is not None or _has_position(quick, name), "it has a position", every_s=0.1)
        member.close()
    return _group(quick, name, "share")


def _has_position(quick: QuickCli, name: str) -> bool:
    known = [one for one in _groups(quick) if one[0] == name]
    return bool(known) and bool(quick("groups", "describe", name, "--json").json["offsets"])


def shared_group(quick: QuickCli, name: str, folder: Path) -> Thing:
    with _topic_with_two(quick, name) as topic:
        quick("subscribe", topic, "--group", name, "--from", "earliest", "--count", "2")
    return _group(quick, name, "shared")


def context(quick: QuickCli, name: str, folder: Path) -> Thing:
    quick("context", "add", name, "--server", "127.0.0.1:9")
    return Thing("context list", name, f"context show {name}", f"context remove {name}")


KINDS: dict[str, list[Make]] = {
    "acls": [rule],
    "quotas": [quota],
    "topics": [topic],
    "queues": [queue],
    "exchanges": [exchange, binding],
    "groups": [classic_group, consumer_group, share_group, shared_group],
    "dead-letters": [dead_letters],
    "delayed": [delayed, delayed_to_topic],
    "connections": [connection],
    "namespaces": [namespace],
    "policies": [policy],
    "pipeline": [pipeline],
    "lost": [lost],
    "context": [context],
    "users": [user],
    "keys": [api_key],
}


# -- the tree ----------------------------------------------------------------------------------------------------------


def listing_commands() -> dict[str, set[str]]:
    """The commands that have a `list`, and their verbs."""
    verbs = {spot.path[0]: {name for name, _ in spot.commands} for spot in spots(build_parser()) if len(spot.path) == 1}
    return {command: found for command, found in verbs.items() if "list" in found}


def test_every_kind_that_a_list_shows_is_walked() -> None:
    assert listing_commands().keys() == KINDS.keys()


@pytest.mark.parametrize("command", sorted(listing_commands()))
@pytest.mark.parametrize("verb", ["describe", "delete"])
def test_a_kind_that_is_listed_has_the_verb(command: str, verb: str) -> None:
    verbs = listing_commands()[command]
    word = OTHER_WORDS.get((command, verb), verb)
    assert (word in verbs) != ((command, verb) in WITHOUT)


@pytest.mark.parametrize(
    ("command", "make"),
    [(command, make) for command, makes in KINDS.items() for make in makes],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_whatever_is_listed_is_described_and_deleted(
    quick: QuickCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, make: Make
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    thing = make(quick, unique("kind"), tmp_path / "data")
    with thing.stack:
        assert thing.listed.split()[0] == command

        def shown() -> bool:
            done = quick(*shlex.split(thing.listed), "--json")
            return thing.named in [value for one in done.objects for value in _texts(one)]

        assert shown()
        if (command, "describe") not in WITHOUT:
            (described,) = quick(*shlex.split(thing.described), "--json").objects
            assert thing.named in _texts(described)
            quick(*shlex.split(thing.described))
        quick(*shlex.split(thing.deleted))
        wait_for(lambda: not shown(), "it is deleted")


def _texts(one: object) -> Iterator[str]:
    """Every text in it, at any depth."""
    if isinstance(one, dict):
        for value in one.values():
            yield from _texts(value)
    elif isinstance(one, list):
        for value in one:
            yield from _texts(value)
    elif isinstance(one, str):
        yield from (one, one.removeprefix("queue:"))


def test_positions_of_a_share_group_in_one_topic_are_deleted(quick: QuickCli, tmp_path: Path) -> None:
    name = unique("kind")
    shared_group(quick, name, tmp_path)
    quick("groups", "delete", name, "--topic", f"{name}.topic", "--yes")
    assert quick("groups", "describe", name, "--json").json["offsets"] == []
    assert "no position" in quick("groups", "delete", name, "--topic", f"{name}.topic", "--yes", code=1).err


def test_a_pipeline_that_runs_is_not_deleted(quick: QuickCli) -> None:
    name = unique("kind")
    reporter = Reporter(quick.server, PipelineState(name, "run", phase="running", host="elsewhere"), lambda text: None)
    reporter.start()
    try:
        wait_for(lambda: name in quick("pipeline", "list").text, "it is listed")
        assert f"waystation pipeline stop {name}" in quick("pipeline", "delete", name, "--yes", code=1).err
    finally:
        reporter.close()


def test_dead_letters_are_deleted_by_filter_or_all_of_them_and_never_by_a_slip(quick: QuickCli, queue: str) -> None:
    dead = f"{queue}.dead"
    quick("queues", "create", dead)
    quick("queues", "create", queue, "--dead-letter", dead)
    for number in range(4):
        quick("queues", "put", queue, f'{{"n": {number}}}', "--content-type", "application/json")
        quick("queues", "get", queue, "--then", "dead-letter")
    wait_for(lambda: len(quick("dead-letters", "show", dead, "--json").objects) == 4, "all are dead")
    assert "say which" in quick("dead-letters", "delete", dead, "--yes", code=1).err
    assert "--yes" in quick("dead-letters", "delete", dead, "--all", code=1).err
    done = quick("dead-letters", "delete", dead, "--filter", "json.n < 2", "--yes", "--json").json
    assert (done["deleted"], done["missing"]) == (2, [])
    assert "not in queue" in quick("dead-letters", "delete", dead, "nobody", "--yes", code=1).err
    assert quick("dead-letters", "delete", dead, "--all", "--yes").text == f"deleted 2 messages of {dead}\n"
    quick("queues", "put", queue, "at work")
    assert "queues purge" in quick("dead-letters", "delete", queue, "--all", "--yes", code=1).err
    assert len(quick("queues", "peek", queue, "--json").objects) == 1
