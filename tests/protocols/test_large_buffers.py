"""What is large and arrives bit by bit: it takes memory as it comes, is never moved, and is given back in parts."""

from __future__ import annotations

import asyncio
import mmap
import random
from collections.abc import Callable
from itertools import pairwise
from struct import Struct

import pytest

from tests.protocols.test_long_work import ByHand
from waystation.protocol import MAGIC
from waystation.protocols.http.transport.engine import Engine as HttpEngine
from waystation.protocols.http.transport.engine import Request
from waystation.protocols.kafka.engine import Engine as KafkaEngine
from waystation.protocols.native.framing.frames import Frames
from waystation.protocols.native.framing.json_lines import LONG_LINE_BYTES, MAX_LINE_BYTES, Lines
from waystation.world import large_buffers
from waystation.world.large_buffers import FREED_AT_ONCE, LARGE_BYTES, Body, LettingGo, buffer_of

MIB = 1024 * 1024
LENGTH = Struct(">I")
READ = 256 * 1024


class Copies:
    """The sizes of buffers that were made: into each of them, what had arrived was moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: object) -> None:
        self.sizes: list[int] = []
        for module in modules:
            monkeypatch.setattr(module, "buffer_of", self._made)

    def _made(self, size: int) -> large_buffers.Buffer:
        self.sizes.append(size)
        return buffer_of(size)


def feed(
    buffer: Callable[[], memoryview], received: Callable[[int], None], look: Callable[[], object], data: bytes
) -> None:
    """As a socket that has all of it would; `look` is called behind each read."""
    at = 0
    while at < len(data):
        room = buffer()[:READ]
        size = min(len(room), len(data) - at)
        room[:size] = data[at : at + size]
        room.release()
        received(size)
        look()
        at += size


def test_a_kafka_request_of_megabytes_is_moved_once_while_little_of_it_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import waystation.protocols.kafka.engine as module

    copies = Copies(monkeypatch, module)
    engine = KafkaEngine(100 * MIB)
    body = random.Random(1).randbytes(20 * MIB)
    sent = LENGTH.pack(len(body)) + body
    feed(engine.buffer, engine.received, engine.next_request, sent[:-1])
    assert copies.sizes == [len(sent)], "all of it has one place, which it got at once"
    assert engine.next_request() is None
    feed(engine.buffer, engine.received, lambda: None, sent[-1:])
    request = engine.next_request()
    assert request is not None
    assert bytes(request.frame) == body[8:]


def test_a_native_frame_of_megabytes_is_moved_once_while_little_of_it_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import waystation.protocols.native.framing.intake as module

    copies = Copies(monkeypatch, module)
    frames = Frames()
    intake = frames.intake
    sent = MAGIC + LENGTH.pack(20 * MIB) + random.Random(2).randbytes(20 * MIB)
    feed(intake.buffer, intake.received, frames.commands, sent[:-1])
    assert [size for size in copies.sizes if size > LARGE_BYTES] == [20 * MIB + 4]
    assert bytes(intake.view()) == sent[len(MAGIC) : -1]


def test_a_long_line_is_moved_before_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    import waystation.protocols.native.framing.intake as module

    copies = Copies(monkeypatch, module)
    lines = Lines()
    sent = b"{" + b" " * (MAX_LINE_BYTES - 10)
    feed(lines.intake.buffer, lines.intake.received, lines.lines, sent)
    assert len([size for size in copies.sizes if size > LONG_LINE_BYTES]) <= 2
    assert bytes(lines.intake.view()) == sent


@pytest.mark.parametrize("announced", [0, 100, LARGE_BYTES, 9 * MIB])
def test_a_body_is_what_came(announced: int) -> None:
    sent = random.Random(3).randbytes(announced)
    body = Body(announced)
    for at in range(0, announced, 100_000):
        body.add(sent[at : at + 100_000])
    assert len(body) == announced
    assert body.whole() == sent
    assert bool(list(body.large)) == (announced > LARGE_BYTES)


def test_a_body_that_announces_much_and_is_short_takes_little() -> None:
    engine = HttpEngine()
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert engine.receive(head + b"2\r\nxy\r\n") == []
    assert not list(engine._body.large)
    (request,) = engine.receive(b"0\r\n\r\n")
    assert isinstance(request, Request)
    assert request.body == b"xy"


def test_what_many_leave_behind_is_given_back_a_part_in_each_step() -> None:
    async def story() -> None:
        line = ByHand()
        letting_go = LettingGo(line)
        buffers = [buffer_of(9 * MIB) for _ in range(4)]
        letting_go.add([one for one in buffers if isinstance(one, mmap.mmap)])
        sizes = [sum(map(len, buffers))]
        await line.turns()
        while len(line):
            sizes.append(sum(map(len, buffers)))
            await line.rested()
        assert all(0 <= before - after <= FREED_AT_ONCE for before, after in pairwise(sizes))
        assert sum(map(len, buffers)) <= len(buffers) * FREED_AT_ONCE, "the last part goes with the buffer itself"
        assert len(letting_go) == 0

    asyncio.run(story())


def test_what_somebody_still_looks_at_stays() -> None:
    async def story() -> None:
        line = ByHand()
        letting_go = LettingGo(line)
        buffer = buffer_of(9 * MIB)
        assert isinstance(buffer, mmap.mmap)
        buffer[:5] = b"kept!"
        view = memoryview(buffer)
        letting_go.add([buffer])
        await line.turns()
        assert len(buffer) == 9 * MIB
        assert bytes(view[:5]) == b"kept!"
        assert len(letting_go) == 0

    asyncio.run(story())


def test_an_engine_whose_connection_is_over_hands_its_large_buffer_on() -> None:
    engine = KafkaEngine(100 * MIB)
    feed(engine.buffer, engine.received, engine.next_request, LENGTH.pack(20 * MIB) + bytes(3 * MIB))
    assert [len(one) for one in engine.let_go()] == [20 * MIB + 4]
    assert list(engine.let_go()) == []
