"""Bad input against the real broker: its sender gets AMQP's own error or loses its connection, nobody else feels it.

Sessions are real ones (handshake, channels, declarations, publishes, consumes, verdicts, transactions), changed with a
fixed seed: methods in any order and state, frames cut, flipped, repeated and left out, absurd sizes, tables nested to
the sky, content without a header. After every few a well-behaved client must still be served, the log must not speak of
failures of our own, and the broker's memory must not have grown out of proportion.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.base import Frame

from tests.protocols.amqp.kit import HEADER, Amqp, connected, method, publish, raw
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S
from waystation.protocols.amqp.engine import Engine
from waystation.protocols.amqp.events import Broken, Phase

ROUNDS = 150
MEMORY_GROWTH_LIMIT = 150 * 1024 * 1024

NAMES = ["q", "q2", "x", "", "amq.topic", "amq.rabbitmq.reply-to", "__queues", "n" * 127, "a.b", "shop/q", "inbox:none"]
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"x-max-length": 5, "x-overflow": "reject-publish"},
    {"x-message-ttl": -1},
    {"x-queue-type": "quorum", "x-delivery-limit": 2},
    {"x-queue-type": "stream"},
    {"x-topic": "t"},
    {"x-dead-letter-exchange": "x", "x-max-priority": 300},
    {"x-expires": "soon", "x-single-active-consumer": 7},
    {"x-stream-offset": "yesterday", "x-priority": "high"},
]
C: Any = commands  # by position, and whatever the types
Maker = Callable[[random.Random], Frame]
METHODS: list[Maker] = [
    lambda r: C.Queue.Declare(0, _name(r), *_flags(r, 5), _arguments(r)),
    lambda r: C.Queue.Bind(0, _name(r), _name(r), _name(r), False, _arguments(r)),
    lambda r: C.Queue.Unbind(0, _name(r), _name(r), _name(r), _arguments(r)),
    lambda r: C.Queue.Purge(0, _name(r), False),
    lambda r: C.Queue.Delete(0, _name(r), *_flags(r, 3)),
    lambda r: C.Exchange.Declare(
        0, _name(r), r.choice(["topic", "none", "x-consistent-hash", ""]), *_flags(r, 5), _arguments(r)
    ),
    lambda r: C.Exchange.Delete(0, _name(r), *_flags(r, 2)),
    lambda r: C.Exchange.Bind(0, _name(r), _name(r), _name(r), False, _arguments(r)),
    lambda r: C.Basic.Consume(0, _name(r), r.choice(["c", "", "d"]), *_flags(r, 4), _arguments(r)),
    lambda r: C.Basic.Cancel(r.choice(["c", "d", ""]), False),
    lambda r: C.Basic.Get(0, _name(r), *_flags(r, 1)),
    lambda r: C.Basic.Ack(r.choice([0, 1, 2, 2**63 - 1]), *_flags(r, 1)),
    lambda r: C.Basic.Nack(r.choice([0, 1, 3]), *_flags(r, 2)),
    lambda r: C.Basic.Reject(r.choice([0, 1, 2]), *_flags(r, 1)),
    lambda r: C.Basic.Recover(*_flags(r, 1)),
    lambda r: C.Basic.Qos(r.choice([0, 0, 5]), r.choice([0, 1, 65535]), *_flags(r, 1)),
    lambda r: C.Confirm.Select(False),
    lambda r: C.Tx.Select(),
    lambda r: C.Tx.Commit(),
    lambda r: C.Tx.Rollback(),
    lambda r: C.Channel.Flow(r.random() < 0.8),
    lambda r: C.Channel.Open(),
    lambda r: C.Channel.Close(200, "bye", 0, 0),
    lambda r: C.Basic.ConsumeOk("mine"),
]


def _name(rng: random.Random) -> str:
    return rng.choice(NAMES)


def _flags(rng: random.Random, count: int) -> list[bool]:
    return [rng.random() < 0.2 for _ in range(count)]


def _arguments(rng: random.Random) -> dict[str, Any]:
    return rng.choice(ARGUMENTS)


def _unchecked(made: Frame, channel: int) -> bytes:
    """pamqp refuses to write what it takes for wrong names; we want it written."""
    payload = made.marshal()
    return raw(1, channel, made.index.to_bytes(4, "big") + payload)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("fuzz")) as server:
        yield server


class Canary:
    """A client that must never notice what the others do."""

    def __init__(self, server: Server) -> None:
        self._amqp = Amqp(server.addresses["amqp"]).open()
        self._amqp.channel()
        self._amqp.ask(commands.Queue.Declare(0, "canary", False, True))
        self._amqp.ask(commands.Confirm.Select())
        self._sent = 0

    def sings(self) -> None:
        self._sent += 1
        self._amqp.send(publish(1, str(self._sent).encode(), "canary"))
        self._amqp.expect(commands.Basic.Ack)
        self._amqp.say(commands.Basic.Get(0, "canary", True))
        _, _, body = self._amqp.content()
        assert body == str(self._sent).encode()


def _send(server: Server, data: bytes) -> None:
    """Sends all of it, and reads until the broker has nothing more to say for the moment."""
    with socket.create_connection(split_address(server.addresses["amqp"]), 10) as rude:
        try:
            rude.sendall(data)
            rude.settimeout(0.05)
            while rude.recv(65536):
                pass
        except OSError:
            pass


LOGIN = b"".join(
    [
        HEADER,
        method(C.Connection.StartOk({}, "PLAIN", "\x00guest\x00guest", "en_US"), 0),
        method(C.Connection.TuneOk(0, 131_072, 0), 0),
        method(C.Connection.Open("/"), 0),
        method(C.Channel.Open(), 1),
    ]
)


def _session(rng: random.Random) -> list[bytes]:
    """A handshake and a few methods and messages, on channels that are open or not."""
    frames = [LOGIN]
    for _ in range(rng.randrange(1, 25)):
        channel = rng.choice([1, 1, 1, 1, 1, 2])
        if rng.random() < 0.4:
            frames.append(publish(channel, bytes(rng.randrange(300)), rng.choice(["q", "q2", "none"]), mandatory=True))
        else:
            frames.append(_unchecked(rng.choice(METHODS)(rng), channel))
    return frames


def _garbled(rng: random.Random, frames: list[bytes]) -> bytes:
    if rng.random() < 0.3:
        rng.shuffle(frames)
    if rng.random() < 0.3:
        frames.insert(rng.randrange(len(frames) + 1), rng.choice(frames))
    data = bytearray(b"".join(frames))
    if rng.random() < 0.6:
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.3:
        del data[rng.randrange(len(data)) :]
    if rng.random() < 0.2:
        at = rng.randrange(len(data))
        data[at:at] = rng.randbytes(rng.randrange(40))
    return bytes(data)


def test_random_sessions_harm_nobody(server: Server) -> None:
    rng = random.Random(91)
    canary = Canary(server)
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    for number in range(ROUNDS):
        frames = _session(rng)
        _send(server, b"".join(frames) if number % 3 == 0 else _garbled(rng, frames))
        if number % 10 == 0:
            canary.sings()
    canary.sings()
    assert process.memory_info().rss - before < MEMORY_GROWTH_LIMIT
    log = server.log.read_text()
    assert "Traceback" not in log, server.tail(60)


def _nested(depth: int) -> bytes:
    """A field table in a field table, and so on."""
    table = b""
    for _ in range(depth):
        table = b"\x01aF" + struct.pack(">I", len(table)) + table
    return struct.pack(">I", len(table)) + table


def _close_code(server: Server, data: bytes) -> int:
    """The code of the connection.close, or channel.close, that the broker answers with."""
    said = b""
    with socket.create_connection(split_address(server.addresses["amqp"]), DEADLINE_S) as rude:
        rude.sendall(data)
        while more := rude.recv(65536):
            said += more
            at = max(said.rfind(b"\x00\x0a\x00\x32"), said.rfind(b"\x00\x14\x00\x28"))
            if 0 <= at < len(said) - 6:
                return int.from_bytes(said[at + 4 : at + 6], "big")
    return 0


DEEP = _nested(10_000)
PUBLISH = method(C.Basic.Publish(0, "", "q"), 1)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (raw(1, 1, b"\x00\x32\x00\x0a\x00\x00\x01q\x00" + DEEP), 502),
        (PUBLISH + raw(2, 1, b"\x00\x3c\x00\x00" + bytes(8) + b"\x20\x00" + DEEP), 502),
        (b"\x01\x00\x01\x7f\xff\xff\xff", 501),
        (b"\x02\x00\x01\xff\xff\xff\xff", 501),
        (PUBLISH + method(C.Basic.Get(0, "q"), 1), 505),
        (PUBLISH + raw(3, 1, b"no header"), 505),
        (raw(2, 1, b"\x00\x3c\x00\x00" + bytes(8) + b"\x00\x00"), 505),
        (method(C.Basic.Publish(0, "none", "q"), 1) + raw(2, 1, b"\x00\x3c\x00\x00" + bytes(8) + b"\x00\x00"), 404),
        (raw(1, 1, b"\x00\x3c\x00\x14"), 502),
        (raw(1, 1, b"\x00\x77\x00\x77"), 540),
        (method(C.Basic.ConsumeOk("c"), 1), 540),
        (method(C.Connection.TuneOk(0, 0, 0), 0), 503),
        (b"".join(method(C.Channel.Open(), number) for number in range(10_000, 12_048)), 530),
        (raw(1, 1, b"\x00\x3c\x00\x50" + (77).to_bytes(8, "big") + b"\x00"), 406),
    ],
)
def test_what_the_specification_forbids_gets_its_code(server: Server, data: bytes, code: int) -> None:
    canary = Canary(server)
    assert _close_code(server, LOGIN + data) == code
    canary.sings()


def test_a_client_that_says_nothing_or_half_of_it_is_no_trouble(server: Server) -> None:
    halves = [socket.create_connection(split_address(server.addresses["amqp"]), 10) for _ in range(50)]
    for number, half in enumerate(halves):
        half.sendall(LOGIN[: number * 7])
    with connected(server) as amqp:
        assert amqp.ask(commands.Queue.Declare(0, "halves", False, True)).message_count == 0
    for half in halves:
        half.close()


@given(st.binary(max_size=2000), st.booleans())
def test_the_engine_ends_with_an_error_of_the_protocol_or_waits_for_more(data: bytes, opened: bool) -> None:
    engine = Engine(lambda: 100_000)
    if opened:
        engine.receive(LOGIN)
    for event in engine.receive(data):
        if isinstance(event, Broken) and event.channel is None:
            assert engine.phase is Phase.CLOSED
    assert engine.unread < 150_000
