"""Node's amqplib logs in by password and by certificate, with and without TLS; whatever is wrong, it is refused."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.security.tls_kit import make_certificates, write_config
from tests.security.users_kit import PASSWORDS, add_users
from tests.support.npm import node_modules
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S

VERSIONS = ("0.10.9", "2.3.1")
"""The line that most programs have, and the newest one."""
PROGRAM = Path(__file__).with_name("amqplib_login.js")
LET_IN = "hello"
"""What an attempt says that has put a message into a queue and got it."""
CONFIG = """
[tls]
certificate = "server.crt"
key = "server.key"
client-ca = "ca.crt"
client-certificates = "optional"
plain = true
[broker]
"ssl.principal.mapping.rules" = "RULE:^CN=([^,]+).*$/$1/"
"connection.failed.authentication.delay.ms" = 1
"""


@pytest.fixture(scope="module", params=VERSIONS)
def modules(request: pytest.FixtureRequest) -> Path:
    return node_modules("amqplib", str(request.param))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"), "alice")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("secure")
    add_users(folder / "data", PASSWORDS)
    with Server(folder, arguments=write_config(certificates, CONFIG)) as server:
        yield server


def attempts(modules: Path, *given: dict[str, Any]) -> list[str]:
    """What became of each login."""
    done = subprocess.run(
        ["node", str(PROGRAM)],
        input=json.dumps(given).encode(),
        capture_output=True,
        timeout=2 * DEADLINE_S,
        check=False,
        env={**os.environ, "NODE_PATH": str(modules)},
    )
    assert done.returncode == 0, done.stderr.decode()
    said: list[str] = json.loads(done.stdout)
    assert len(said) == len(given)
    return said


def url(server: Server, user: str, password: str) -> str:
    return f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@{server.addresses['amqp']}"


def over_tls(server: Server) -> str:
    return f"amqps://localhost:{server.addresses['amqp'].rpartition(':')[2]}"


def test_amqplib_logs_in_by_password(closed: Server, modules: Path) -> None:
    bare = f"amqp://{closed.addresses['amqp']}"
    said = attempts(
        modules,
        *({"url": url(closed, name, PASSWORDS[name])} for name in ("admin", "bob")),
        *(  # in an address amqplib reads what is not ASCII as Latin-1
            {"url": bare, "user": "alice", "password": PASSWORDS["alice"], "mechanism": one}
            for one in ("PLAIN", "AMQPLAIN")
        ),
    )
    assert said == [LET_IN] * 4


def test_amqplib_is_refused_the_same_way_whatever_is_wrong(closed: Server, modules: Path) -> None:
    wrong = (("alice", "wrong"), ("nobody", "wrong"), ("guest", "guest"), ("alice", PASSWORDS["bob"]))
    said = attempts(
        modules,
        *({"url": url(closed, name, password)} for name, password in wrong),
        {"url": f"amqp://{closed.addresses['amqp']}"},  # as guest
        {"url": url(closed, "bob", PASSWORDS["bob"])},
    )
    assert said.pop() == LET_IN, "who is right is not kept out by those before"
    assert len(set(said)) == 1, "no answer tells whether there is such a user"
    assert "403" in said[0]
    assert "ACCESS-REFUSED" in said[0]


def test_amqplib_logs_in_over_tls(secure: Server, certificates: Path, modules: Path) -> None:
    where = {"url": over_tls(secure), "ca": str(certificates / "ca.crt")}
    pair = {"certificate": str(certificates / "alice.crt"), "key": str(certificates / "alice.key")}
    by_password, by_certificate, wrong, without, untrusted = attempts(
        modules,
        {**where, "user": "bob", "password": PASSWORDS["bob"]},
        {**where, **pair, "external": True},
        {**where, "user": "bob", "password": "wrong"},
        {**where, "external": True},
        {"url": over_tls(secure), "user": "bob", "password": PASSWORDS["bob"]},
    )
    assert (by_password, by_certificate) == (LET_IN, LET_IN)
    assert "403" in wrong
    assert "403" in without or "EXTERNAL" in without
    assert "certificate" in untrusted
