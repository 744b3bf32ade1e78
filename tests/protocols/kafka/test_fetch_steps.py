"""Fetches that are answered with megabytes: read a step at a time, so that whoever asks for little waits for nobody;
and no more of it than the client has shown to read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kafka_wire import kafka_fetch
from tests.protocols.test_long_work import ByHand
from tests.support.entrances import entrance_of
from waystation.broker.broker import Broker
from waystation.broker.open import open_broker
from waystation.config import BrokerSettings
from waystation.log.batches.batch import scan
from waystation.message import Message
from waystation.protocols.budget import FIRST_ANSWER_BYTES, FREE_BYTES, Budgets
from waystation.protocols.kafka.connection import KafkaConnection
from waystation.protocols.kafka.server import KafkaListener
from waystation.topics.partitions.partition import log_of
from waystation.world.disk import OsFile

BATCHES, BATCH_BYTES = 80, 100_000
LONG, SHORT = "long", "short"
STEP = 256 * 1024


class Wire:
    """A transport whose client reads everything, or nothing."""

    def __init__(self, connection: KafkaConnection, *, reads: bool) -> None:
        self.connection, self.reads = connection, reads
        self.sent = bytearray()

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, parts: list[Any]) -> None:
        for part in parts:
            self.sent += part
        if not self.reads and len(self.sent) > FREE_BYTES:
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return 0 if self.reads else len(self.sent)

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, **_limits: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...


class Client:
    def __init__(self, listener: KafkaListener, *, reads: bool = False) -> None:
        self.connection = KafkaConnection(listener, lambda: None)
        self.wire = Wire(self.connection, reads=reads)
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]

    def send(self, request: bytes) -> None:
        self.connection.get_buffer(-1)[: len(request)] = request
        self.connection.buffer_updated(len(request))

    def answers(self) -> list[bytes]:
        """The records of each fetch of one partition that was answered."""
        found, data = [], bytes(self.wire.sent)
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            found.append(_records(data[8:size]))
            data = data[size:]
        self.wire.sent.clear()
        return found


def _records(body: bytes) -> bytes:
    """Version 4: throttle time, topics, name, partitions, index, error, two offsets, aborted ones, records."""
    at = 8 + 2 + int.from_bytes(body[8:10], "big") + 4 + 4 + 2 + 16 + 4
    size = int.from_bytes(body[at : at + 4], "big")
    assert len(body) == at + 4 + size
    return body[at + 4 :]


class Lab:
    """A broker without sockets, a line whose rests the test ends, and the bytes that were read from files."""

    def __init__(self, broker: Broker, read: list[int]) -> None:
        self.broker = broker
        self.line = ByHand()
        budgets = Budgets(broker.settings, broker.world.clock)
        budgets.long_work = self.line
        self.listener = KafkaListener(broker, budgets, entrance_of(broker))
        self._read = read

    def read_now(self) -> int:
        """Bytes since the last call."""
        size = sum(self._read)
        self._read.clear()
        return size

    def read_whole(self, topic: str) -> bytes:
        return log_of(self.broker.topics.get(topic).partition(0)).read(0, 2 * BATCHES * BATCH_BYTES)


def with_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: Callable[[Lab], Coroutine[Any, Any, None]]
) -> None:
    read: list[int] = []
    plain = OsFile.read

    def counted(self: OsFile, size: int, position: int) -> bytes:
        data = plain(self, size, position)
        read.append(len(data))
        return data

    async def run() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            await broker.messages.ensure(LONG)
            await broker.messages.ensure(SHORT)
            for number in range(BATCHES):
                broker.messages.publish(LONG, [Message(bytes([number]) * BATCH_BYTES)])
            broker.messages.publish(SHORT, [Message(b"x")])
            monkeypatch.setattr(OsFile, "read", counted)
            await story(Lab(broker, read))
        finally:
            await broker.stop()

    asyncio.run(run())


def test_fetches_of_megabytes_are_read_one_step_a_turn_and_a_short_one_is_answered_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(lab: Lab) -> None:
        first, *others = [Client(lab.listener) for _ in range(10)]
        ordinary = Client(lab.listener, reads=True)
        first.send(kafka_fetch(1, LONG))
        assert lab.read_now() <= FIRST_ANSWER_BYTES + BATCH_BYTES + FREE_BYTES
        for client in others:
            client.send(kafka_fetch(1, LONG))
        assert lab.read_now() <= len(others) * 2 * FREE_BYTES, "one long step was made in this turn: they wait"
        answered = 0
        for number in range(1, 1_000):
            ordinary.send(kafka_fetch(number, SHORT))
            assert len(ordinary.answers()) == 1
            lab.read_now()
            await lab.line.rested()
            assert lab.read_now() <= STEP + BATCH_BYTES + 2 * FREE_BYTES
            answered = sum(bool(client.wire.sent) for client in others)
            if answered == len(others):
                break
        assert answered == len(others)
        (whole,) = {records for client in others for records in client.answers()}
        assert lab.read_whole(LONG).startswith(whole)

    with_lab(tmp_path, monkeypatch, story)


def test_a_client_is_sent_twice_what_it_has_read_and_one_who_never_read_a_megabyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(lab: Lab) -> None:
        silent, reader = Client(lab.listener), Client(lab.listener, reads=True)
        silent.send(kafka_fetch(1, LONG))
        assert len(silent.wire.sent) <= FIRST_ANSWER_BYTES + 1_000
        sizes, whole, offset = [], b"", 0
        while offset < BATCHES:
            reader.send(kafka_fetch(1, LONG, offset=offset))
            while not reader.wire.sent:
                await lab.line.rested()
            (records,) = reader.answers()
            sizes.append(len(records))
            for at, header in scan(records):
                whole += records[at : at + header.size]
                offset = header.last_offset + 1
        assert whole == lab.read_whole(LONG)
        assert sizes[0] <= FIRST_ANSWER_BYTES
        assert all(later <= 2 * earlier + 1_000 for earlier, later in pairwise(sizes))
        assert max(sizes) > 3 * FIRST_ANSWER_BYTES

    with_lab(tmp_path, monkeypatch, story)


def test_an_answer_ends_with_a_whole_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client drops since it is not whole, and fetches again, need not be sent."""

    async def story(lab: Lab) -> None:
        client = Client(lab.listener, reads=True)
        client.send(kafka_fetch(1, LONG))
        (records,) = client.answers()
        assert len(records) > FIRST_ANSWER_BYTES // 2
        assert sum(header.size for _, header in scan(records)) == len(records)

    with_lab(tmp_path, monkeypatch, story)


def test_a_fetch_whose_client_is_gone_is_read_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(lab: Lab) -> None:
        client, other = Client(lab.listener), Client(lab.listener)
        client.send(kafka_fetch(1, LONG))
        other.send(kafka_fetch(1, LONG))
        other.connection.connection_lost(None)
        lab.read_now()
        await lab.line.rested()
        await lab.line.rested()
        assert lab.read_now() == 0
        assert lab.listener.budgets.unsent.used <= FIRST_ANSWER_BYTES + 1_000, "and holds no room"

    with_lab(tmp_path, monkeypatch, story)


def test_a_fetch_is_answered_though_its_topic_is_deleted_in_the_middle_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(lab: Lab) -> None:
        client, other = Client(lab.listener), Client(lab.listener)
        client.send(kafka_fetch(1, LONG))
        other.send(kafka_fetch(1, LONG))
        await lab.line.rested()
        assert not other.wire.sent, "it is being read"
        await lab.broker.topics.delete(LONG)
        for _ in range(100):
            if other.wire.sent:
                break
            await lab.line.rested()
        assert other.wire.sent

    with_lab(tmp_path, monkeypatch, story)
