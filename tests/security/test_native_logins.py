"""The native protocol: logins in the hello, over TLS, by the client, JSON lines and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import waystation as ws
from tests.security.tls_kit import make_certificates, write_config
from tests.security.users_kit import PASSWORDS, add_users, waystation
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation import aio
from waystation.client.links.login import Credentials, ScramLogin
from waystation.client.links.servers import parse_servers, shown
from waystation.errors import ConnectionLost, Invalid, NotAuthenticated

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


def address(server: Server, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> str:
    return f"waystation://{quote(name)}:{quote(password, safe='')}@{server.bootstrap}?mechanism={mechanism}"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_client_logs_in(closed: Server, mechanism: str) -> None:
    with ws.connect(address(closed, "alice", PASSWORDS["alice"], mechanism)) as mq:
        queue = mq.queue(unique("queue"))
        queue.put("hello")
        with queue.get(timeout=20) as message:
            assert message.text() == "hello"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_a_wrong_password_is_refused(closed: Server, mechanism: str, name: str) -> None:
    with pytest.raises(NotAuthenticated, match="the login was refused"):
        ws.connect(address(closed, name, "wrong", mechanism))


def test_without_a_login_the_client_is_told_what_to_do(closed: Server) -> None:
    with pytest.raises(NotAuthenticated, match="waystation://USER:PASSWORD@HOST"):
        ws.connect(closed.bootstrap)


def test_the_asyncio_client_logs_in(closed: Server) -> None:
    async def run() -> None:
        async with aio.connect(address(closed, "bob", PASSWORDS["bob"])) as mq:
            await (await mq.queue(unique("queue"))).put("hello")

    asyncio.run(run())


class Lines:
    """A connection that speaks JSON lines."""

    def __init__(self, server: Server) -> None:
        host, _, port = server.bootstrap.rpartition(":")
        self._file = socket.create_connection((host, int(port)), timeout=20).makefile("rwb")

    def rest(self) -> bytes:
        """What comes until the broker hangs up."""
        return self._file.read()

    def ask(self, **command: Any) -> dict[str, Any] | None:
        self._file.write(json.dumps(command).encode() + b"\n")
        self._file.flush()
        line = self._file.readline()
        return json.loads(line) if line else None


def test_json_lines_log_in_with_a_user_and_a_password(closed: Server) -> None:
    lines = Lines(closed)
    refused = lines.ask(action="list_queues")
    assert refused is not None
    assert refused["error_type"] == "NotAuthenticated"
    answer = lines.ask(action="hello", user="bob", password=PASSWORDS["bob"])
    assert answer is not None
    assert answer["status"] == "success"
    listed = lines.ask(action="list_queues")
    assert listed is not None
    assert listed["status"] == "success"


def test_no_action_of_json_lines_is_done_before_the_login(closed: Server) -> None:
    from waystation.protocols.native.framing.json_lines import COMMANDS

    lines = Lines(closed)
    for action in (*COMMANDS, "publish", "subscribe", "poll", "stats"):
        if action in ("hello", "authenticate"):
            continue
        answer = lines.ask(action=action)
        assert answer is not None
        assert answer["error_type"] == "NotAuthenticated", action


def test_nobody_becomes_somebody_else_on_a_connection(closed: Server) -> None:
    """What it has opened would not end with the user, or with the key, that it was opened by."""
    lines = Lines(closed)
    for name in ("alice", "alice", "bob"):
        answer = lines.ask(action="hello", user=name, password=PASSWORDS[name])
        assert answer is not None
        assert (answer.get("error_type") == "NotAuthenticated") is (name == "bob")
    assert lines.rest() == b""


def test_connections_of_a_removed_user_end_though_there_is_another_one_of_its_name(own_closed: Any) -> None:
    server = own_closed()
    lines = Lines(server)
    answer = lines.ask(action="hello", user="bob", password=PASSWORDS["bob"])
    assert answer is not None
    assert answer["status"] == "success"
    with ws.connect(address(server, "admin", PASSWORDS["admin"])) as mq:
        mq.act("remove-user", user="bob")
        mq.act("add-user", user="bob", password="another")
        lines.rest()  # until the broker ends it
        with ws.connect(address(server, "bob", "another")) as new:
            new.queue(unique("queue")).put("hello")


def test_a_failed_login_ends_the_connection(closed: Server) -> None:
    lines = Lines(closed)
    answer = lines.ask(action="hello", user="bob", password="wrong")
    assert answer is not None
    assert answer["error_type"] == "NotAuthenticated"
    assert lines.rest() == b""


def test_over_tls_with_a_password_and_with_a_certificate(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates", "alice")
    add_users(tmp_path / "broker" / "data", PASSWORDS)
    config = """
[tls]
certificate = "server.crt"
key = "server.key"
client-ca = "ca.crt"
[broker]
"ssl.principal.mapping.rules" = "RULE:^CN=([^,]+).*$/$1/"
"""
    with Server(tmp_path / "broker", arguments=write_config(certificates, config)) as server:
        place = f"{server.bootstrap}?ca={certificates / 'ca.crt'}"
        with ws.connect(f"waystations://bob:builder@{place}") as mq:
            queue = mq.queue(unique("queue"))
            for _ in range(20):
                queue.put(b"x" * 500_000)
            assert queue.get(timeout=20).payload == b"x" * 500_000
        own = f"&certificate={certificates / 'alice.crt'}&key={certificates / 'alice.key'}"
        with ws.connect(f"waystations://{place}{own}") as mq:
            users = [one["user"] for one in mq.view("connections")["connections"] if one["door"] == "native"]
            assert users == ["alice"]
        with pytest.raises(ConnectionLost, match="certificate verify failed"):
            ws.connect(f"waystations://bob:builder@{server.bootstrap}")
        listed = waystation("queues", "list", "--server", f"waystations://bob:builder@{place}")
        assert "queue" in listed.stdout


def test_the_command_line_has_a_context_with_a_password_and_does_not_show_it(
    closed: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    made = waystation("context", "add", "prod", "--server", address(closed, "bob", PASSWORDS["bob"]))
    listed = waystation("context", "list")
    assert waystation("topics", "list", "--context", "prod").returncode == 0
    for output in (made.stdout, listed.stdout, waystation("context", "show", "prod", "--json").stdout):
        assert PASSWORDS["bob"] not in output
        assert closed.bootstrap in output
    assert (tmp_path / "waystation" / "contexts.json").stat().st_mode & 0o077 == 0
    refused = waystation("topics", "list", "--server", closed.bootstrap, check=False)
    assert refused.returncode == 1
    assert "requires a login" in refused.stderr


def test_the_status_of_a_broker_that_does_not_tell_this_user_is_unknown_and_not_unreachable(own_closed: Any) -> None:
    server = own_closed()
    for where in (server.bootstrap, address(server, "bob", "wrong")):
        done = waystation("status", "--json", "--server", where, check=False)
        assert (done.returncode, json.loads(done.stdout)["status"]) == (1, "unknown")


def test_users_are_managed_on_a_running_broker(own_closed: Any) -> None:
    server = own_closed()
    admin = address(server, "admin", PASSWORDS["admin"])
    told = waystation("users", "add", "eve", "--password-stdin", "--server", admin, stdin="first\n")
    assert "added user eve" in told.stdout
    assert "first user" not in told.stdout + told.stderr
    with ws.connect(address(server, "eve", "first")) as mq:
        waystation("users", "passwd", "eve", "--password-stdin", "--server", admin, stdin="second\n")
        with pytest.raises(NotAuthenticated):
            ws.connect(address(server, "eve", "first"))
        ws.connect(address(server, "eve", "second")).close()
        waystation("users", "remove", "eve", "--server", admin)
        wait_for(lambda: _is_cut(mq), "the connection of a removed user ends")
    assert "eve" not in waystation("users", "list", "--server", admin).stdout


def _is_cut(mq: ws.Client) -> bool:
    try:
        mq.view("users")
    except ws.WaystationError:
        return True
    return False


def test_the_password_comes_from_the_environment_where_the_address_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYSTATION_PASSWORD", "geheim")
    found = parse_servers("waystation://bob@host", os.environ)[0].credentials
    assert found == Credentials("bob", "geheim")
    assert "geheim" not in repr(found)


@pytest.mark.parametrize(
    ("url", "user", "password", "encrypted"),
    [
        ("waystation://al%40x:p%2Fw%2C@host:1", "al@x", "p/w,", False),
        ("waystations://alice:a:b@host", "alice", "a:b", True),
        ("alice:pw@host", "alice", "pw", False),
    ],
)
def test_an_address_may_have_a_user_and_a_password(url: str, user: str, password: str, encrypted: bool) -> None:
    found = parse_servers(url)[0]
    assert found.credentials == Credentials(user, password)
    assert (found.tls is not None) is encrypted
    assert password not in shown(url)


@pytest.mark.parametrize(
    "url",
    [
        "waystation://alice:geheim@host/queue",
        "ftp://alice:geheim@host",
        "waystation://alice:geheim@host?colour=red",
        "waystation://alice:geheim@host?ca=x",
        "waystation://alice:geheim@host?mechanism=DIGEST",
        "waystations://alice:geheim@host?certificate=missing.crt",
        "http://alice:geheim@host",
        "waystation://alice:geheim@host:999999",
    ],
)
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    def use() -> None:
        for server in parse_servers(url):
            if server.tls is not None:
                server.tls.context()

    with pytest.raises(Invalid) as caught:
        use()
    assert "geheim" not in str(caught.value)


def test_a_broker_that_does_not_know_the_verifier_is_not_believed() -> None:
    login = ScramLogin(Credentials("alice", "pw"))
    nonce = login.first().rpartition(b"r=")[2]
    login.answer(b"r=" + nonce + b"server,s=c2FsdA==,i=4096")
    with pytest.raises(NotAuthenticated, match="has not proved"):
        login.finish(b"v=AAAA")
    with pytest.raises(NotAuthenticated, match="not one of this login"):
        ScramLogin(Credentials("alice", "pw")).answer(b"r=other,s=c2FsdA==,i=4096")
