"""What the transaction tests share: virtual time, and a disk that keeps exactly what the broker is promised.

`Disk` holds state logs and data logs. Its rule is the one of group commit: a record of a state log is written only
after everything appended to data logs before it is durable. A crash keeps, of every log, what is durable and any
longer prefix that respects this rule.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from waystation.config import BrokerSettings
from waystation.errors import NotFound, StorageFailed
from waystation.log.state import StateBatch
from waystation.transactions.coordinator import TransactionCoordinator
from waystation.transactions.machine import Producer
from waystation.transactions.settings import TransactionSettings

T = TypeVar("T")

START_MS = 1_700_000_000_000
PARTITIONS = 4
OFFSETS = "__consumer_offsets"


class _InstantSelector(selectors.SelectSelector):
    """Instead of waiting, moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits and no timer is set: a deadlock")
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which an hour passes at once."""

    def __init__(self) -> None:
        self._virtual = _InstantSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


class VirtualClock:
    """The wall clock of a virtual loop. `shift_ms` is what a user does who sets the time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.shift_ms = 0

    def now_ms(self) -> int:
        return START_MS + self.shift_ms + round(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


class NoChance:
    """Randomness for tests: always the middle."""

    def token(self, n: int) -> bytes:
        return bytes(n)

    def uuid(self) -> UUID:
        return UUID(int=1)

    def below(self, n: int) -> int:
        return n // 2

    def uniform(self) -> float:
        return 0.5


def run(story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a test's coroutine under virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(story())
    finally:
        loop.close()


@dataclass(frozen=True, slots=True)
class Marker:
    producer_id: int
    epoch: int
    commit: bool


@dataclass(frozen=True, slots=True)
class Data:
    """A batch of a transaction; `tag` tells the test which."""

    producer_id: int
    epoch: int
    tag: object


@dataclass(slots=True)
class _Record:
    key: bytes
    value: bytes | None
    data_before: dict[tuple[str, int], int]
    """How long each data log was when this was appended: so much is durable once this is."""


@dataclass(slots=True)
class Disk:
    """The logs, and how much of each is surely kept."""

    state: dict[int, list[_Record]] = field(default_factory=dict)
    state_kept: dict[int, int] = field(default_factory=dict)
    data: dict[tuple[str, int], list[Marker | Data]] = field(default_factory=dict)
    failing: bool = False
    """Refuses everything that touches state logs."""
    markers_failing: bool = False
    partitions_failing: set[tuple[str, int]] = field(default_factory=set)
    gate: asyncio.Event | None = None
    """While set and not open, nothing becomes durable."""
    unsafe: bool = False
    """A deliberate bug: says that it is durable when it is not."""

    def keep(self, partition: int, length: int) -> None:
        self.state_kept[partition] = max(self.state_kept.get(partition, 0), length)

    def crashed(
        self, extra_state: Callable[[int], int], extra_data: Callable[[int], int], *, power: bool = True
    ) -> Disk:
        """What is left after a crash; the functions choose how many of n more entries survive by luck.

        When only the process died, what survived may still be lost in a power cut that follows.
        """
        left = Disk()
        floor: dict[tuple[str, int], int] = {}
        for partition, records in self.state.items():
            kept = self.state_kept.get(partition, 0)
            kept += extra_state(len(records) - kept)
            left.state[partition] = records[:kept]
            left.state_kept[partition] = kept if power else self.state_kept.get(partition, 0)
            for record in records[:kept]:
                for log, length in record.data_before.items():
                    floor[log] = max(floor.get(log, 0), length)
        for log, entries in self.data.items():
            kept = floor.get(log, 0)
            left.data[log] = entries[: kept + extra_data(len(entries) - kept)]
        for records in left.state.values():
            for record in records:
                record.data_before = {log: min(n, len(left.data[log])) for log, n in record.data_before.items()}
        return left


@dataclass(slots=True)
class FakeStateLog:
    disk: Disk
    partition: int
    epoch: int = 0

    @property
    def end_offset(self) -> int:
        return len(self.disk.state.get(self.partition, ()))

    @property
    def replicated_offset(self) -> int:
        return self.end_offset

    def append(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
    ) -> None:
        if self.disk.failing:
            raise StorageFailed("disk full")
        lengths = {log: len(entries) for log, entries in self.disk.data.items()}
        log = self.disk.state.setdefault(self.partition, [])
        log.extend(_Record(key, value, lengths) for key, value in records)

    async def committed(self) -> None:
        log = self.disk.state.setdefault(self.partition, [])
        length = len(log)
        if self.disk.unsafe:
            return
        await asyncio.sleep(0)
        if self.disk.gate is not None:
            await self.disk.gate.wait()
        if self.disk.failing:
            # What waited for this flush is lost, and so are all the others who wait for it.
            self.disk.state[self.partition] = log[: self.disk.state_kept.get(self.partition, 0)]
        if self.disk.state[self.partition] is not log:
            raise StorageFailed("disk full")
        self.disk.keep(self.partition, length)

    def replay(self) -> Iterator[StateBatch]:
        for offset, record in enumerate(self.disk.state.get(self.partition, [])):
            yield StateBatch(offset, offset + 1, -1, -1, False, None, ((record.key, record.value),))


@dataclass(slots=True)
class FakeMarkers:
    disk: Disk
    missing: set[str] = field(default_factory=set)
    epochs: list[int] = field(default_factory=list)
    """Of the coordinators who wrote them."""

    async def spread(self, txn: object, coordinator_epoch: int, attempt: int) -> bool:
        return False

    def write_marker(
        self, topic: str, partition: int, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int
    ) -> None:
        if topic in self.missing:
            raise NotFound(topic)
        if self.disk.markers_failing or (topic, partition) in self.disk.partitions_failing:
            raise StorageFailed("disk full")
        self.epochs.append(coordinator_epoch)
        self.disk.data.setdefault((topic, partition), []).append(Marker(producer_id, producer_epoch, commit))


def outcomes(entries: Sequence[Marker | Data]) -> list[tuple[object, bool | None]]:
    """How a data log's readers see its transactions: (tag, committed? or None while open), in order."""
    open_tags: dict[int, list[object]] = {}
    ended: list[tuple[object, bool | None]] = []
    for entry in entries:
        if isinstance(entry, Data):
            tags = open_tags.setdefault(entry.producer_id, [])
            if entry.tag not in tags:
                tags.append(entry.tag)
        else:
            ended += [(tag, entry.commit) for tag in open_tags.pop(entry.producer_id, [])]
    return ended + [(tag, None) for tags in open_tags.values() for tag in tags]


class Broker:
    """A coordinator on a fake disk, with the little that a produce path does."""

    def __init__(self, disk: Disk | None = None, settings: dict[str, str] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.disk = disk or Disk()
        self.clock = VirtualClock(loop)
        self.markers = FakeMarkers(self.disk)
        logs = [FakeStateLog(self.disk, number) for number in range(PARTITIONS)]
        self.transactions = TransactionCoordinator(
            self.clock,
            NoChance(),
            TransactionSettings(BrokerSettings(settings or {})),
            logs.__getitem__,
            PARTITIONS,
            self.markers,
            lambda group_id: (OFFSETS, len(group_id) % 4),
        )

    async def start(self) -> Broker:
        self.transactions.recover()
        await self.transactions.start()
        return self

    async def restarted(self) -> Broker:
        """A clean stop, and the same disk again."""
        await self.transactions.close()
        return await Broker(self.disk).start()

    def write(self, producer: Producer, topic: str, partition: int, tag: object) -> bool:
        """What the produce path does with a transactional batch: append it if it may be. False: add it first."""
        allowed = self.transactions.check_produce(None, *producer, topic, partition)
        if allowed:
            self.disk.data.setdefault((topic, partition), []).append(Data(*producer, tag))
        return allowed

    def seen(self, topic: str, partition: int) -> list[tuple[object, bool | None]]:
        return outcomes(self.disk.data.get((topic, partition), []))
