"""Bytes of which each few are something of their own (small chunks, many requests) are looked through a part at a time;
the body of one request as it comes."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from tests.protocols.test_long_work import ByHand
from waystation.config import BrokerSettings
from waystation.protocols.budget import MUCH_BYTES, Budgets
from waystation.protocols.http.connection import PARSE_BYTES, HttpConnection
from waystation.protocols.http.transport.replies import Reply
from waystation.world.clock import SystemClock

HEAD = b"POST /x HTTP/1.1\r\nHost: localhost\r\n"


class Wire:
    def __init__(self) -> None:
        self.sent = bytearray()
        self.reading = True

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, parts: list[bytes]) -> None:
        self.sent += b"".join(parts)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, *_limits: int) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None: ...


class Dispatcher:
    """Answers everything, and keeps what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def answer(self, request: Any, _connection: HttpConnection) -> Reply:
        self.bodies.append(request.body)
        return Reply(204)

    def under_way(self) -> AbstractContextManager[None]:
        return nullcontext()


class Lab:
    def __init__(self, short_s: float = -1.0) -> None:
        clock = SystemClock()
        self.line = ByHand(short_s)
        budgets = Budgets(BrokerSettings(), clock)
        budgets.long_work = self.line
        self.dispatcher = Dispatcher()
        nothing = SimpleNamespace(add=lambda _: None, discard=lambda _: None)
        everybody = SimpleNamespace(certificate=lambda _: None)
        broker = SimpleNamespace(connections=nothing, world=SimpleNamespace(clock=clock))
        self.listener: Any = SimpleNamespace(
            budgets=budgets,
            broker=broker,
            entrance=everybody,
            dispatcher=self.dispatcher,
            now_s=clock.monotonic,
            add=nothing.add,
            dismiss=nothing.add,
        )
        self.listener.date = lambda: "now"

    def connect(self) -> tuple[HttpConnection, Wire]:
        connection, wire = HttpConnection(self.listener), Wire()
        connection.connection_made(wire)  # type: ignore[arg-type]
        return connection, wire

    def body_of(self, connection: HttpConnection) -> int:
        return len(connection._engine._body)


def test_small_chunks_are_looked_through_a_part_at_a_time_and_others_are_answered_in_between() -> None:
    async def story() -> None:
        lab = Lab()
        (greedy, wire), (ordinary, ordinary_wire) = lab.connect(), lab.connect()
        chunks = 10 * PARSE_BYTES // 7
        greedy.data_received(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"2\r\nxy\r\n" * chunks + b"0\r\n\r\n")
        assert lab.body_of(greedy) <= PARSE_BYTES
        assert not wire.reading, "the rest is here already"
        steps = 0
        await lab.line.turns()
        while not wire.sent:
            before = lab.body_of(greedy)
            ordinary.data_received(HEAD + b"Content-Length: 1\r\n\r\nx")
            await lab.line.turns()
            assert ordinary_wire.sent.startswith(b"HTTP/1.1 204")
            ordinary_wire.sent.clear()
            await lab.line.rested()
            assert lab.body_of(greedy) - before <= 2 * PARSE_BYTES
            steps += 1
        assert steps >= 8
        assert b"xy" * chunks in lab.dispatcher.bodies
        assert wire.reading

    asyncio.run(story())


def test_the_body_of_one_request_is_taken_as_it_comes_and_a_full_read_is_followed_by_others_turn() -> None:
    async def story() -> None:
        lab = Lab(short_s=1.0)
        connection, wire = lab.connect()
        size = 3 * MUCH_BYTES
        connection.data_received(HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * MUCH_BYTES)
        assert lab.body_of(connection) == MUCH_BYTES
        assert not wire.reading, "the next read is for the next turn"
        await lab.line.turns()
        assert wire.reading
        connection.data_received(b"x" * (size - MUCH_BYTES) + HEAD + b"Content-Length: 1\r\n\r\ny")
        await lab.line.turns()
        assert lab.dispatcher.bodies == [b"x" * size, b"y"]
        assert len(lab.line) == 0, "nobody got in the line for it"

    asyncio.run(story())


def test_many_requests_in_one_read_are_all_answered() -> None:
    async def story() -> None:
        lab = Lab()
        connection, wire = lab.connect()
        count = 3 * PARSE_BYTES // 50
        connection.data_received((HEAD + b"Content-Length: 1\r\n\r\nz") * count)
        assert lab.line.taken
        async with asyncio.timeout(60):
            while wire.sent.count(b"HTTP/1.1 204") < count:
                await lab.line.rested()
        assert wire.reading

    asyncio.run(story())


def test_of_many_who_send_much_one_reads_on_in_a_turn() -> None:
    async def story() -> None:
        lab = Lab()
        senders = [lab.connect() for _ in range(5)]
        for connection, _ in senders:
            connection.data_received(HEAD + b"Content-Length: %d\r\n\r\n" % (4 * MUCH_BYTES) + b"x" * MUCH_BYTES)
        assert not any(wire.reading for _, wire in senders)
        await lab.line.turns()
        for reading in range(1, len(senders) + 1):
            assert sum(wire.reading for _, wire in senders) == reading
            await lab.line.rested()

    asyncio.run(story())
