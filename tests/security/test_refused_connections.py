"""What connections leave behind that were refused, or are over: nothing that grows with their number.

Objects are counted in the broker's process, which is this one: memory as the system sees it would need a hundred
thousand connections to tell what stays from what the allocator keeps. `make soak-logins` has those.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.protocols.native.kit import frame_of
from tests.security.fuzz_logins import client_hello
from tests.security.test_kafka_logins import authenticate, handshake
from tests.security.tls_kit import client_context, make_certificates
from tests.support.waiting import DEADLINE_S, wait_for
from waystation.client.links.address import Address
from waystation.client.links.loops import loop_factory
from waystation.config import BrokerSettings
from waystation.protocol import MAGIC, Hello
from waystation.security.credentials import verifiers_of
from waystation.security.tls import load
from waystation.security.tls_files import TlsFiles
from waystation.security.users import User
from waystation.station import Station, plans_of
from waystation.world.listener import Listener
from waystation.world.memory_disk import MEMORY

CONNECTIONS = 30
FEW = 5
"""So many objects of a kind may be other ones: of the client's side, or of what runs beside the test."""
TURNS = 20
"""Of the loop, behind the end of a connection."""

TRANSPORTS = ("SSLProtocol", "_SSLProtocolTransport", "SSLObject", "TCPTransport", "_SelectorSocketTransport")
"""Of uvloop and of asyncio. With TLS one has a buffer of 256 KiB."""
CONNECTION_TYPES = ("Arrival", "KafkaConnection", "NativeConnection", "AmqpConnection", "HttpConnection")
FREED_AT_ONCE = {"kafka": ("Arrival", "KafkaConnection"), "http": ("HttpConnection",)}
"""Of the others, objects around a session refer to each other and wait for a collection, and so does HTTP's parser."""

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "the broker's loop": loop_factory(),
    "asyncio": asyncio.new_event_loop,
}
STARTS = {
    "something else": b"GET / HTTP/1.0\r\n\r\n",
    "nothing": b"",
    "a ClientHello and no more": client_hello(),
    "a part of a ClientHello": client_hello()[:100],
    "a ClientHello and garbage": client_hello() + b"\x16\x03\x03\xff\xff" + b"x" * 300,
}
LOGINS = {
    "kafka": handshake("SCRAM-SHA-256") + authenticate(b"n,,n=nobody,r=abc") + authenticate(b"c=biws,r=abc,p=eA=="),
    "native": MAGIC + frame_of(Hello(id=1, mechanism="SCRAM-SHA-256", data=b"n,,n=nobody,r=abc")) + b"\xff" * 50,
    "amqp": b"AMQP\0\0\x09\x01" + b"\xff" * 50,
    "http": b"GET /v1/overview HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer no\r\nConnection: close\r\n\r\n",
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


def talk(address: tuple[str, int], data: bytes, context: ssl.SSLContext | None) -> None:
    """A client that says this, ends its side, and waits for the broker's end."""
    with suppress(OSError), ExitStack() as stack:
        link = stack.enter_context(socket.create_connection(address, timeout=DEADLINE_S))
        if context is not None:
            link = stack.enter_context(context.wrap_socket(link, server_hostname="localhost"))
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        while link.recv(65536):
            pass


@contextmanager
def no_collection() -> Iterator[None]:
    """Objects go only when nothing refers to them. A broker collects rarely, and what is old almost never."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def counted(*types: str) -> Counter[str]:
    names = (type(one).__name__ for one in gc.get_objects())
    return Counter(name for name in names if name in types)


async def left_behind(
    certificates: Path | None, protocol: str, data: bytes, context: ssl.SSLContext | None, *types: str, collect: bool
) -> Counter[str]:
    """Objects of these types that there are more of after the connections than before."""
    here = Address("127.0.0.1", 0)
    settings = {"connection.failed.authentication.delay.ms": "0", "waystation.audit": "off"}
    if certificates is not None:
        settings["tls.certificate"] = str(certificates / "server.crt")
        settings["tls.key"] = str(certificates / "server.key")
    station = Station(MEMORY, BrokerSettings(settings), plans_of(kafka=here, amqp=here, http=here))
    await station.start()
    try:
        broker = station._broker
        assert broker is not None
        await broker.users.add("alice", User(verifiers=verifiers_of("secret", broker.world.random.token)))
        host, _, port = str(station.addresses["kafka" if protocol == "native" else protocol]).rpartition(":")
        address = (host, int(port))
        await asyncio.to_thread(talk, address, data, context)  # what is made for the first one stays
        with no_collection():
            before = counted(*types)
            for _ in range(CONNECTIONS):
                await asyncio.to_thread(talk, address, data, context)
            await asyncio.to_thread(wait_for, lambda: not broker.admission.count, "all connections are over")
            for _ in range(TURNS):  # what is told of the end behind that
                await asyncio.sleep(0)
            if collect:
                gc.collect()
            return counted(*types) - before
    finally:
        await station.stop()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("protocol", ["kafka", "amqp", "http"])
def test_nothing_is_kept_of_a_tls_handshake_that_failed(
    certificates: Path, protocol: str, start: str, loop: str
) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        types = (*TRANSPORTS, *CONNECTION_TYPES)
        left = runner.run(left_behind(certificates, protocol, STARTS[start], None, *types, collect=True))
    assert all(number < FEW for number in left.values()), left


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("protocol", LOGINS)
def test_a_connection_that_is_over_is_freed_with_its_buffers_before_any_collection(
    certificates: Path, protocol: str, encrypted: bool
) -> None:
    context = client_context(certificates) if encrypted else None
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        folder = certificates if encrypted else None
        types = (*TRANSPORTS, *FREED_AT_ONCE.get(protocol, ()))
        left = runner.run(left_behind(folder, protocol, LOGINS[protocol], context, *types, collect=False))
    assert all(number < FEW for number in left.values()), left


class Certificates:
    """As a listener is given them."""

    plain = False

    def __init__(self, folder: Path) -> None:
        self._context = load(TlsFiles(str(folder / "server.crt"), str(folder / "server.key")))

    def context(self) -> ssl.SSLContext:
        return self._context


@pytest.mark.parametrize("loop", LOOPS)
def test_an_encrypted_connection_that_cannot_be_served_is_ended_and_leaves(certificates: Path, loop: str) -> None:
    left: list[str] = []

    def refuse(leave: Callable[[], None]) -> asyncio.BaseProtocol:
        raise RuntimeError("no protocol")

    async def one_comes() -> None:
        listener = Listener("127.0.0.1", 0, lambda host: lambda: left.append(host), refuse, Certificates(certificates))
        port = await listener.start()
        await asyncio.to_thread(talk, ("127.0.0.1", port), b"hello", client_context(certificates))
        await asyncio.to_thread(wait_for, lambda: left, "it has left")
        listener.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(one_comes())
    assert left == ["127.0.0.1"]
