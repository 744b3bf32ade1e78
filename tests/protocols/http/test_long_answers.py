"""A long answer is made and sent a step in a turn, and no further than its client reads. What it holds is counted."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import waystation
from tests.protocols.test_long_work import ByHand
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S
from waystation.broker.broker import Broker
from waystation.broker.open import open_broker
from waystation.config import BrokerSettings
from waystation.protocols.budget import FIRST_ANSWER_BYTES, Budgets
from waystation.protocols.http import request_dispatcher
from waystation.protocols.http.connection import HttpConnection
from waystation.protocols.http.transport.calls import SHORT_STEP_BYTES, STEP_BYTES, Stream
from waystation.protocols.http.transport.engine import Request
from waystation.protocols.http.transport.json_pieces import PIECE_CHARS
from waystation.protocols.http.transport.replies import Reply

LONG = {"messages": [{"payload": "x" * 900_000}] * 3}
SHORT = {"messages": [{"payload": "x" * 100}] * 1_000}
HELLO = b"GET /v1/queues/q/peek HTTP/1.1\r\nHost: a\r\n\r\n"


class Wire:
    """A transport whose client reads everything, or nothing."""

    def __init__(self, connection: HttpConnection, *, reads: bool) -> None:
        self.connection, self.reads = connection, reads
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        if not self.reads:
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return 0 if self.reads else sum(map(len, self.writes))

    def read_all(self) -> None:
        self.reads = True
        self.connection.resume_writing()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return None if name == "ssl_object" else ("127.0.0.1", 1)

    def set_write_buffer_limits(self, *_limits: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Lab:
    """Connections without sockets that are answered with `shown`, and a line whose rests the test ends."""

    def __init__(self, broker: Broker) -> None:
        self.line = ByHand()
        self.line.now_s = 100.0
        self.budgets = Budgets(broker.settings, broker.world.clock)
        self.budgets.long_work = self.line
        self.shown: Any = LONG
        self._listener: Any = SimpleNamespace(
            budgets=self.budgets,
            broker=broker,
            entrance=SimpleNamespace(certificate=lambda _: None),
            dispatcher=self,
            now_s=broker.world.clock.monotonic,
            date=lambda: "now",
            add=lambda _: None,
            dismiss=lambda _: None,
        )

    async def answer(self, _request: Request, connection: HttpConnection) -> Reply | Stream:
        short = SHORT_STEP_BYTES if connection.others_wait else STEP_BYTES
        return request_dispatcher._made_in_turns(self.shown, 200, short)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        yield

    def client(self, *, reads: bool) -> Wire:
        connection = HttpConnection(self._listener)
        wire = Wire(connection, reads=reads)
        connection.connection_made(wire)  # type: ignore[arg-type]
        return wire


def with_lab(tmp_path: Path, story: Callable[[Lab], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            await story(Lab(broker))
        finally:
            await broker.stop()

    asyncio.run(run())


def body_of(wire: Wire) -> bytes:
    """Of an answer in chunks."""
    head, _, rest = b"".join(wire.writes).partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head:
        return rest
    whole = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if size == b"0":
            assert rest == b"\r\n"
            return whole
        whole, rest = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]


def test_a_long_answer_is_sent_a_step_in_a_turn(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        wire = lab.client(reads=True)
        wire.connection.data_received(HELLO)
        await lab.line.turns()
        while len(lab.line):
            before = len(wire.writes)
            await lab.line.rested()
            assert sum(map(len, wire.writes[before:])) <= STEP_BYTES + 6 * PIECE_CHARS
        assert body_of(wire) == msgspec.json.encode(LONG) + b"\n"
        assert len(wire.writes) > 2_700_000 // (STEP_BYTES + 6 * PIECE_CHARS)
        assert lab.budgets.unsent.used == 0

    with_lab(tmp_path, story)


def test_while_others_wait_for_short_answers_the_steps_are_shorter(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        wire = lab.client(reads=True)
        lab.line.asked(object())
        wire.connection.data_received(HELLO)
        await lab.line.turns()
        while len(lab.line):
            await lab.line.rested()
        assert max(map(len, wire.writes)) <= SHORT_STEP_BYTES + PIECE_CHARS + 100
        assert body_of(wire) == msgspec.json.encode(LONG) + b"\n"

    with_lab(tmp_path, story)


def test_nothing_is_made_for_a_client_that_does_not_read_and_what_it_holds_is_counted(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        wire = lab.client(reads=False)
        wire.connection.data_received(HELLO)
        for _ in range(20):
            await lab.line.rested()
        sent = sum(map(len, wire.writes))
        assert sent <= STEP_BYTES + 6 * PIECE_CHARS + 1_000
        assert lab.budgets.unsent.used >= 3 * 900_000, "the text that is not made yet"
        assert not len(lab.line)
        wire.read_all()
        await lab.line.turns()
        while len(lab.line):
            await lab.line.rested()
        assert body_of(wire) == msgspec.json.encode(LONG) + b"\n"
        assert lab.budgets.unsent.used == 0

    with_lab(tmp_path, story)


def test_the_answer_of_a_client_that_goes_holds_nothing(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        wire = lab.client(reads=False)
        wire.connection.data_received(HELLO)
        await lab.line.rested()
        assert lab.budgets.unsent.used
        wire.closed = True
        wire.connection.connection_lost(None)
        await lab.line.turns()
        assert lab.budgets.unsent.used == 0
        assert wire.connection._task is None
        assert not len(lab.line)

    with_lab(tmp_path, story)


def test_an_ordinary_answer_is_sent_as_a_whole_with_its_length(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        lab.shown = SHORT
        wire = lab.client(reads=True)
        wire.connection.data_received(HELLO)
        await lab.line.turns()
        (written,) = wire.writes
        head, _, body = written.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
        assert body == msgspec.json.encode(SHORT) + b"\n"

    with_lab(tmp_path, story)


def test_a_client_of_the_first_version_is_told_the_end_by_the_end_of_the_connection(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        wire = lab.client(reads=True)
        wire.connection.data_received(b"GET /v1/queues/q/peek HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        await lab.line.turns()
        while len(lab.line):
            await lab.line.rested()
        head, _, body = b"".join(wire.writes).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert b"connection: close" in head
        assert body == msgspec.json.encode(LONG) + b"\n"
        assert wire.closed

    with_lab(tmp_path, story)


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_whoever_reads_gets_longer_answers_from_look_to_look(tmp_path: Path, connection: str) -> None:
    with Server(tmp_path / "broker") as server:
        with waystation.connect(server.bootstrap) as native:
            native.queue("q")
        client = http.client.HTTPConnection(server.addresses["http"], timeout=DEADLINE_S)
        for number in range(12):
            client.request("POST", "/v1/queues/q/messages?raw=true", body=bytes([65 + number]) * 900_000)
            assert client.getresponse().read()
        found: list[str] = []
        sizes: list[int] = []
        after = -1
        while True:
            client.request("GET", f"/v1/queues/q/peek?count=100&after={after}", headers={"Connection": connection})
            messages = msgspec.json.decode(client.getresponse().read())["messages"]
            if not messages:
                break
            sizes.append(sum(len(one["payload"]) for one in messages))
            found += [one["payload"][0] for one in messages]
            after = messages[-1]["tag"]
        assert "".join(found) == "ABCDEFGHIJKL"
        assert sizes[0] <= FIRST_ANSWER_BYTES + 900_000, "and a message that begins within it"
        if connection == "keep-alive":
            assert max(sizes) > 2 * FIRST_ANSWER_BYTES
