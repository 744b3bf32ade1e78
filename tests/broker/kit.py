"""Brokers on real folders, and what a publisher and a reader do with them, without a protocol."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from waystation.broker.broker import Broker
from waystation.broker.open import open_broker
from waystation.config import BrokerSettings
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Record
from waystation.log.log import Appended
from waystation.topics.partitions.partition import log_of
from waystation.world import OsDisk, SystemRandom, ThreadOffload, World

T = TypeVar("T")

NOW_MS = 1_772_366_400_000


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


class HandClock:
    """A wall clock that moves when it is moved; durations are real."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return asyncio.get_event_loop().time()


@asynccontextmanager
async def broker_on(folder: Path, clock: HandClock | None = None, **settings: str) -> AsyncIterator[Broker]:
    world = World(clock or HandClock(), SystemRandom(), OsDisk(), ThreadOffload())
    given = {name.replace("_", "."): text for name, text in settings.items()}
    broker = await open_broker(str(folder), BrokerSettings(given), world)
    try:
        yield broker
    finally:
        await broker.stop()


def snapshot(folder: Path, name: str) -> Path:
    """The folder as a process leaves it that is killed now."""
    copy = folder.with_name(name)
    shutil.copytree(folder, copy)
    return copy


def publish(broker: Broker, topic: str, batch: bytearray, partition: int = 0) -> Appended:
    """What a protocol does with a batch that it was sent."""
    target = broker.topics.get(topic).partition(partition)
    return broker.publishing.append(target, batch, broker.publishing.check(target, batch))


def send(broker: Broker, topic: str, *values: bytes | None, key: bytes | None = None, **options: Any) -> Appended:
    now = options.pop("at", broker.world.clock.now_ms())
    headers = options.pop("headers", ())
    return publish(broker, topic, batches.build([(key, value, headers) for value in values], now, **options))


def read(broker: Broker, topic: str, partition: int = 0) -> list[Record]:
    log = log_of(broker.topics.get(topic).partition(partition))
    found = []
    for data, header in log.batches_from(log.start_offset):
        if not header.control:
            found += list(batches.records_of(data, header))
    return [record for record in found if record.offset >= log.start_offset]


def values(broker: Broker, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in read(broker, topic, partition)]
