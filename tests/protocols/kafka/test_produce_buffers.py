"""What produce requests hold while they wait for the disk: their answers, not their records."""

from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from benchmarks.kafka_wire import kafka_produce
from tests.protocols.kafka.test_fetch_steps import Client
from tests.support.entrances import entrance_of
from tests.support.waiting import wait_for
from waystation.broker.open import open_broker
from waystation.config import BrokerSettings
from waystation.protocols.budget import Budgets
from waystation.protocols.kafka.server import KafkaListener
from waystation.topics.partitions.partition import log_of
from waystation.world.disk import OsFile

TOPIC = "held"
REQUESTS, REQUEST_BYTES = 60, 300_000


def test_requests_that_wait_for_the_disk_do_not_hold_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of them may wait on one connection, with a megabyte each. Two sizes, so that what is read ends in the
    middle of a request and goes on in another buffer."""
    synced = threading.Event()
    plain = OsFile.sync

    def held_up(self: OsFile) -> None:
        synced.wait()
        plain(self)

    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({}))
        try:
            await broker.messages.ensure(TOPIC)
            client = Client(
                KafkaListener(broker, Budgets(broker.settings, broker.world.clock), entrance_of(broker)), reads=True
            )
            monkeypatch.setattr(OsFile, "sync", held_up)
            tracemalloc.start()
            unsent = b""
            for number in range(REQUESTS):  # the buffer always has the beginning of the next one
                unsent += kafka_produce(number, TOPIC, [b"x" * (REQUEST_BYTES >> number % 2)], int(time.time() * 1000))
                while unsent and (len(unsent) >= 2 * REQUEST_BYTES or number == REQUESTS - 1):
                    room = client.connection.get_buffer(-1)
                    size = min(len(room), len(unsent))
                    room[:size] = unsent[:size]
                    room.release()
                    client.connection.buffer_updated(size)
                    unsent = unsent[size:]
                await asyncio.sleep(0)
            log = log_of(broker.topics.get(TOPIC).partition(0))
            assert log.written_offset == REQUESTS, "all of them are in the log"
            assert not client.wire.sent, "and none is answered before the disk has it"
            held, _ = tracemalloc.get_traced_memory()
            assert held < REQUESTS * REQUEST_BYTES // 8
            synced.set()
            await asyncio.to_thread(wait_for, lambda: len(client.wire.sent) > REQUESTS * 40, "an answer to each")
        finally:
            synced.set()
            tracemalloc.stop()
            await broker.stop()

    asyncio.run(story())
