"""A share of `make soak-logins`: mutated logins and TLS starts on every listener; and logins that are slow."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

import waystation
from tests.protocols.native.kit import frame_of
from tests.security.fuzz_logins import KINDS, LOGIN_S, Brokers, Listener, brokers
from tests.security.test_kafka_logins import authenticate, handshake
from tests.security.tls_kit import client_context
from tests.security.users_kit import PASSWORDS
from tests.support.waiting import wait_for
from waystation.protocol import MAGIC, Hello

CASES = 150
ROOM_S = 20.0
"""For a machine that has other things to do."""


@pytest.fixture(scope="module")
def under_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with brokers(tmp_path_factory.mktemp("fuzz")) as found:
        yield found


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_login_begins_with_the_connection_ends_and_nobody_else_feels_it(
    under_test: Brokers, kind: str
) -> None:
    listener = under_test.listener(kind)
    listener.run(1_000_000, CASES)
    assert listener.figures.cases == CASES
    assert not listener.figures.late, listener.figures.line()
    assert not under_test.wrong()
    if not kind.endswith("tls"):
        address = under_test.servers[""].addresses["kafka"]
        with waystation.connect(f"waystation://bob:{PASSWORDS['bob']}@{address}") as mq:
            mq.queue("still-there").put("x")


def test_a_broken_request_over_tls_is_answered_before_the_connection_ends(under_test: Brokers) -> None:
    server = under_test.servers["tls"]
    host, _, port = server.addresses["http"].rpartition(":")
    context = client_context(under_test.certificates)
    with (
        socket.create_connection((host, int(port)), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as link,
    ):
        link.sendall(b"GET / HTTP/9.9\r\n\r\n")
        assert link.recv(65536).startswith(b"HTTP/1.1 ")
    assert "NotImplementedError" not in server.log.read_text()


SLOW: dict[str, tuple[bytes, ...]] = {
    "says nothing": (),
    "a part of a request": (b"\0\0\0\x20\0\x12",),
    "a handshake and no login": (handshake("SCRAM-SHA-256"),),
    "half of a login": (handshake("SCRAM-SHA-256"), authenticate(b"n,,n=alice,r=abc")),
    "native, half of a login": (MAGIC + frame_of(Hello(id=1, mechanism="SCRAM-SHA-256", data=b"n,,n=alice,r=abc")),),
    "native, says hello and nothing more": (MAGIC + frame_of(Hello(id=1)),),
    "JSON lines, no login": (b'{"action": "ping", "id": 1}\n',),
}


@pytest.mark.parametrize("what", SLOW)
def test_a_client_that_does_not_log_in_in_time_is_shut_out(under_test: Brokers, what: str) -> None:
    host, _, port = under_test.servers[""].addresses["kafka"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LOGIN_S * 2 + ROOM_S) as link:
        began = time.monotonic()
        for part in SLOW[what]:
            link.sendall(part)
        while link.recv(65536):
            pass
        assert time.monotonic() - began > 1, "not before it had time"


def test_a_client_that_sends_a_byte_now_and_then_is_shut_out_as_well(under_test: Brokers) -> None:
    host, _, port = under_test.servers[""].addresses["kafka"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as link:
        wait_for(lambda: not _takes_a_byte(link), "the broker ends it", within_s=LOGIN_S * 2 + ROOM_S, every_s=0.2)


def _takes_a_byte(link: socket.socket) -> bool:
    try:
        link.sendall(b"\0")
    except OSError:
        return False
    return True


def test_who_has_logged_in_stays(under_test: Brokers) -> None:
    address = under_test.servers[""].addresses["kafka"]
    with waystation.connect(f"waystation://bob:{PASSWORDS['bob']}@{address}") as mq:
        before = mq.view("connections")["total"]
        time.sleep(LOGIN_S * 2)  # longer than a login may take, and the check that ends it
        assert mq.view("connections")["total"] == before


def test_a_case_is_repeated_by_its_seed(under_test: Brokers) -> None:
    listener: Listener = under_test.listener("kafka")
    assert listener.case(7)[0] == listener.case(7)[0]
