"""What a WebSocket's client sends is looked at, and done, a part at a time, and no more of it waits than has its
bound."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec

from tests.protocols.http.test_parsing_in_turns import HEAD, Lab, Wire
from waystation.protocols.http.connection import HttpConnection
from waystation.protocols.http.transport.calls import Stream
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.http.transport.websocket import (
    FRAMES_PER_TURN,
    MAX_MESSAGE_BYTES,
    MAX_WAITING,
    PIECE_BYTES,
    SHORT_FRAMES,
)
from waystation.protocols.http.transport.wire import Outlet

HANDSHAKE = (
    b"GET /stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
READ_BYTES = 64 * 1024
TEXT, CONTINUATION, PING, PONG = 1, 0, 9, 10


def frame(data: bytes, opcode: int = TEXT, *, last: bool = True) -> bytes:
    """As a client sends it; the mask is zero."""
    size = len(data)
    short = size if size < 126 else 126 if size < 2**16 else 127
    extended = b"" if size < 126 else size.to_bytes(2 if size < 2**16 else 8, "big")
    return bytes([opcode | (0x80 if last else 0), 0x80 | short]) + extended + bytes(4) + data


class Session:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.wait: asyncio.Event | None = None  # before it answers

    def begin(self, outlet: Outlet) -> None: ...

    async def receive(self, value: dict[str, Any]) -> dict[str, Any] | None:
        self.heard.append(value)
        if self.wait is not None:
            await self.wait.wait()
        return None

    def filled(self) -> None: ...

    def drained(self) -> None: ...

    def end(self) -> None: ...


class SocketLab(Lab):
    """Whoever asks for a WebSocket gets one with this session; anybody else an empty answer."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session()
        self.dispatcher.answer = self._answer  # type: ignore[method-assign]

    async def _answer(self, request: Any, _connection: HttpConnection) -> Any:
        return Stream(self.session) if request.websocket else Reply(204)

    async def open(self, rest: bytes = b"") -> tuple[HttpConnection, Wire]:
        connection, wire = self.connect()
        connection.data_received(HANDSHAKE + rest)
        await self.line.turns()
        assert wire.sent.startswith(b"HTTP/1.1 101")
        wire.sent.clear()
        return connection, wire

    async def steps(self, done: Callable[[], bool], most: int) -> int:
        """How many it took; in each so many messages at most were dealt with, and somebody else was answered."""
        ordinary, wire = self.connect()
        steps = 0
        while not done():
            before = len(self.session.heard)
            ordinary.data_received(HEAD + b"Content-Length: 1\r\n\r\nx")
            await self.line.turns()
            assert wire.sent.startswith(b"HTTP/1.1 204")
            wire.sent.clear()
            await self.line.rested()
            assert len(self.session.heard) - before <= most
            steps += 1
            assert steps < 1000
        return steps


def numbered(count: int) -> bytes:
    return b"".join(frame(b'{"n":%d}' % number) for number in range(count))


def heard(session: Session) -> list[int]:
    return [value["n"] for value in session.heard]


def test_many_small_frames_in_one_read_are_for_several_turns() -> None:
    async def story() -> None:
        lab = SocketLab()
        connection, wire = await lab.open()
        connection.data_received(numbered(5_000))
        assert not wire.reading, "the rest is here already"
        await lab.line.turns()
        most = FRAMES_PER_TURN + PIECE_BYTES // len(frame(b'{"n":1}'))
        assert 0 < len(lab.session.heard) <= most
        steps = await lab.steps(lambda: len(lab.session.heard) == 5_000, SHORT_FRAMES + most - FRAMES_PER_TURN)
        assert steps >= 5_000 // (SHORT_FRAMES + most - FRAMES_PER_TURN) - 5
        assert heard(lab.session) == list(range(5_000))
        assert wire.reading

    asyncio.run(story())


def test_frames_behind_the_handshake_are_for_several_turns_too() -> None:
    async def story() -> None:
        lab = SocketLab()
        await lab.open(numbered(2_000))
        most = FRAMES_PER_TURN + PIECE_BYTES // len(frame(b'{"n":1}'))
        assert 0 < len(lab.session.heard) <= most
        await lab.steps(lambda: len(lab.session.heard) == 2_000, most)
        assert heard(lab.session) == list(range(2_000))

    asyncio.run(story())


def test_control_frames_count_as_well() -> None:
    async def story() -> None:
        lab = SocketLab()
        connection, wire = await lab.open()
        connection.data_received(frame(b"", PONG) * 10_000 + numbered(1))
        turns = 0
        while not lab.session.heard:
            turns += 1
            await lab.line.turns()
            await lab.line.rested()
            assert turns < 1000
        assert turns >= 10_000 // (FRAMES_PER_TURN + PIECE_BYTES // 6)
        assert wire.reading

    asyncio.run(story())


def test_messages_that_have_waited_are_dealt_with_in_several_turns() -> None:
    async def story() -> None:
        lab = SocketLab()
        first = asyncio.Event()
        lab.session.wait = first
        connection, wire = await lab.open()
        connection.data_received(numbered(3 * MAX_WAITING))
        for _ in range(50):
            await lab.line.turns()
            await lab.line.rested()
        assert heard(lab.session) == [0]
        assert not wire.reading, "so many wait"
        first.set()
        await lab.line.turns()
        assert len(lab.session.heard) <= FRAMES_PER_TURN + 1
        await lab.steps(lambda: len(lab.session.heard) == 3 * MAX_WAITING, FRAMES_PER_TURN)
        assert heard(lab.session) == list(range(3 * MAX_WAITING))
        assert wire.reading

    asyncio.run(story())


def test_a_large_message_in_many_reads_is_one() -> None:
    async def story() -> None:
        lab = SocketLab()
        connection, wire = await lab.open()
        text = b"x" * 900_000
        whole = frame(msgspec.json.encode({"text": text.decode()}))
        for at in range(0, len(whole), 100_000):
            connection.data_received(whole[at : at + 100_000])
            assert len(lab.line) == 0, "nobody got in the line for it"
        await lab.line.turns()
        [value] = lab.session.heard
        assert value["text"].encode() == text
        assert wire.reading

    asyncio.run(story())


def test_messages_that_wait_have_a_bound_in_bytes() -> None:
    async def story() -> None:
        lab = SocketLab()
        first = asyncio.Event()
        lab.session.wait = first
        connection, wire = await lab.open()
        count = 20
        text = msgspec.json.encode({"n": 1, "text": "x" * 500_000})
        data = memoryview(frame(text) * count)
        sent = 0

        async def send(most: int) -> None:
            nonlocal sent
            for _ in range(most):
                if wire.reading:
                    connection.data_received(bytes(data[sent : sent + READ_BYTES]))
                    sent += READ_BYTES
                await lab.line.turns()
                await lab.line.rested()

        await send(2 * len(data) // READ_BYTES)
        assert sent <= 2 * MAX_MESSAGE_BYTES, "nothing is dealt with, and nothing more is read"
        first.set()
        await send(3 * len(data) // READ_BYTES)
        assert heard(lab.session) == [1] * count
        assert wire.reading

    asyncio.run(story())


def test_a_message_in_small_fragments_takes_no_more_than_a_whole_one() -> None:
    async def story() -> None:
        lab = SocketLab()
        connection, _ = await lab.open()
        data = frame(b'{"n":1', last=False) + frame(b"  ", CONTINUATION, last=False) * 50_000
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for at in range(0, len(data), READ_BYTES):
                connection.data_received(data[at : at + READ_BYTES])
                while len(lab.line):
                    await lab.line.rested()
            assert tracemalloc.get_traced_memory()[0] - before < 4 * 100_000 + READ_BYTES
        finally:
            tracemalloc.stop()
        connection.data_received(frame(b"}", CONTINUATION))
        await lab.line.turns()
        assert heard(lab.session) == [1]

    asyncio.run(story())


def test_a_client_that_does_not_read_is_owed_one_pong() -> None:
    async def story() -> None:
        lab = SocketLab()
        connection, wire = await lab.open()
        connection.data_received(frame(b"first", PING))
        assert wire.sent == b"\x8a\x05first"
        wire.sent.clear()
        connection.pause_writing()
        connection.data_received(frame(b"x" * 125, PING) * 50 + frame(b"last", PING))
        assert not wire.sent
        connection.resume_writing()
        assert wire.sent == b"\x8a\x04last"
        connection.data_received(frame(b"", PING))
        assert wire.sent == b"\x8a\x04last\x8a\x00"

    asyncio.run(story())
