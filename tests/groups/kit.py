"""What the group tests share: topics without a broker, a log that loses its undurable tail, a coordinator on a stage.

Everything runs in the simulated world's virtual time. Only tests of groups use this.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from uuid import UUID, uuid5

from tests.simulation.world import Simulation
from waystation.errors import StorageFailed
from waystation.groups.coordinator import GroupCoordinator
from waystation.groups.machines.calls import ConsumerBeat, JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from waystation.groups.machines.errors import MemberIdRequired
from waystation.groups.machines.settings import GroupSettings
from waystation.log.state import StateBatch, StateLog
from waystation.world import World

T = TypeVar("T")

PARTITIONS = 4
_SPACE = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def topic_id(name: str, incarnation: int = 0) -> UUID:
    return uuid5(_SPACE, f"{name}/{incarnation}")


class FakeTopics:
    """A `TopicView` that tests change at will."""

    def __init__(self, **counts: int) -> None:
        self._counts = dict(counts)
        self._incarnations: dict[str, int] = {}
        self._callbacks: list[Callable[[], None]] = []

    def __contains__(self, topic: object) -> bool:
        return topic in self._counts

    def partitions_of(self, topic: str) -> int | None:
        return self._counts.get(topic)

    def id_of(self, topic: str) -> UUID | None:
        return topic_id(topic, self._incarnations.get(topic, 0)) if topic in self._counts else None

    def name_of(self, wanted: UUID) -> str | None:
        return next((name for name in self._counts if self.id_of(name) == wanted), None)

    def names(self) -> Iterable[str]:
        return [name for name in self._counts if not name.startswith("__")]

    def meant_by(self, group_id: str) -> Iterable[str]:
        return self.names()

    def subscribe_changes(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def put(self, topic: str, partitions: int) -> None:
        self._counts[topic] = partitions
        self._tell()

    def drop(self, topic: str) -> None:
        del self._counts[topic]
        self._incarnations[topic] = self._incarnations.get(topic, 0) + 1
        self._tell()

    def _tell(self) -> None:
        for callback in self._callbacks:
            callback()


@dataclass
class FakeLog:
    """A `StateLog` that becomes durable a moment after the append, and can be made to fail."""

    partition: int
    batches: list[StateBatch] = field(default_factory=list)
    durable_count: int = 0
    epoch: int = 0
    failure: StorageFailed | None = None
    flush_s: float = 0.002
    replicated: bool = False
    """Whether others have it, too: as if what is durable were what they have."""

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    @property
    def replicated_offset(self) -> int:
        batches = self.batches[: self.durable_count] if self.replicated else self.batches
        return batches[-1].end_offset if batches else 0

    def append(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
    ) -> None:
        if self.failure is not None:
            raise self.failure
        self._add(producer_id, producer_epoch, transactional, None, tuple(records))

    def mark(self, producer_id: int, outcome: Literal["commit", "abort"]) -> None:
        self._add(producer_id, 0, True, outcome, ())

    def _add(
        self,
        producer_id: int,
        epoch: int,
        transactional: bool,
        control: Literal["commit", "abort"] | None,
        records: tuple[tuple[bytes, bytes | None], ...],
    ) -> None:
        base, end = self.end_offset, self.end_offset + max(1, len(records))
        self.batches.append(StateBatch(base, end, producer_id, epoch, transactional, control, records))

    async def committed(self) -> None:
        count = len(self.batches)
        if self.durable_count < count:
            await asyncio.sleep(self.flush_s)
            if self.failure is not None:
                raise self.failure
            self.durable_count = max(self.durable_count, count)

    def replay(self) -> Iterator[StateBatch]:
        return iter(list(self.batches))

    def compacted(self) -> FakeLog:
        """As compaction leaves it: of each key the newest record, up to the first open transaction; markers stay."""
        stable = self._first_open()
        newest: dict[bytes, tuple[int, int]] = {}
        for number, batch in enumerate(self.batches[:stable]):
            if not (batch.transactional and self._outcome(number) == "abort"):
                newest |= {key: (number, index) for index, (key, _) in enumerate(batch.records)}
        kept = FakeLog(self.partition)
        for number, batch in enumerate(self.batches):
            records = tuple(
                record
                for index, record in enumerate(batch.records)
                if number >= stable or newest.get(record[0]) == (number, index)
            )
            if records or batch.control is not None:
                kept._add(batch.producer_id, batch.producer_epoch, batch.transactional, batch.control, records)
        return kept

    def _outcome(self, number: int) -> str | None:
        """How the transaction that this batch is part of ended."""
        producer = self.batches[number].producer_id
        return next(
            (batch.control for batch in self.batches[number:] if batch.control and batch.producer_id == producer), None
        )

    def _first_open(self) -> int:
        return next(
            (
                number
                for number, batch in enumerate(self.batches)
                if batch.transactional and batch.control is None and self._outcome(number) is None
            ),
            len(self.batches),
        )


class Stage:
    """A coordinator with its logs and topics; `restart` gives the next one that reads the same logs."""

    def __init__(
        self,
        world: World,
        settings: GroupSettings | None = None,
        topics: FakeTopics | None = None,
        logs: dict[int, FakeLog] | None = None,
        *,
        restarted: bool = False,
    ) -> None:
        self.world = world
        self.settings = settings or GroupSettings()
        self.topics = topics if topics is not None else FakeTopics(orders=4, payments=2)
        self.logs: dict[int, FakeLog] = logs if logs is not None else {}
        self.coordinator = GroupCoordinator(
            world.clock, world.random, self.settings, self.topics, self.log_for, PARTITIONS
        )
        self.coordinator.recover(list[StateLog](self.logs.values()))
        self.coordinator.start(restarted=restarted)

    def log_for(self, partition: int) -> FakeLog:
        return self.logs.setdefault(partition, FakeLog(partition))

    def log_of(self, group_id: str) -> FakeLog:
        return self.log_for(self.coordinator.partition_for(group_id))

    async def restart(self, *, only_durable: bool = False, compacted: bool = False, restarted: bool = False) -> Stage:
        await self.coordinator.close()
        logs: dict[int, FakeLog] = {}
        for partition, log in self.logs.items():
            kept = log.batches[: log.durable_count] if only_durable else list(log.batches)
            logs[partition] = FakeLog(partition, kept, len(kept))
            if compacted:
                logs[partition] = logs[partition].compacted()
                logs[partition].durable_count = len(logs[partition].batches)
        topics = FakeTopics()
        topics._counts, topics._incarnations = self.topics._counts, self.topics._incarnations
        return Stage(self.world, self.settings, topics, logs, restarted=restarted)


def play(story: Callable[[Stage], Coroutine[Any, Any, T]], settings: GroupSettings | None = None, seed: int = 1) -> T:
    """Runs a story on a fresh stage, in virtual time."""
    simulation = Simulation(seed)

    async def main() -> T:
        stage = Stage(simulation.world, settings)
        try:
            return await story(stage)
        finally:
            await stage.coordinator.close()

    return simulation.run(main())


def subscription(*topics: str, owned: bytes = b"") -> bytes:
    """What a consumer says in its join: version, topic names, user data, and (opaque here) what it owns."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1) + owned


def join_request(group_id: str = "g", member_id: str = "", **changes: Any) -> JoinRequest:
    values: dict[str, Any] = {
        "group_id": group_id,
        "member_id": member_id,
        "client_id": "app",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": (("range", subscription("orders")),),
    }
    return JoinRequest(**(values | changes))


def sync_request(answer: JoinAnswer, **assignments: bytes) -> SyncRequest:
    return SyncRequest(
        group_id="g",
        member_id=answer.member_id,
        generation_id=answer.generation_id,
        assignments=tuple(assignments.items()),
    )


async def join(stage: Stage, **changes: Any) -> JoinAnswer:
    """As a client of today joins: it asks, is given an id, and asks again."""
    request = join_request(**changes)
    try:
        return await stage.coordinator.join(request)
    except MemberIdRequired as required:
        return await stage.coordinator.join(join_request(**(changes | {"member_id": required.member_id})))


async def settle(stage: Stage, answers: Sequence[JoinAnswer], group_id: str = "g") -> list[SyncAnswer]:
    """Everybody syncs; the leader assigns each member its own id, as bytes."""

    def request(answer: JoinAnswer) -> SyncRequest:
        assigns = tuple((member.member_id, member.member_id.encode()) for member in answer.members)
        return SyncRequest(
            group_id=group_id,
            member_id=answer.member_id,
            generation_id=answer.generation_id,
            assignments=assigns,
        )

    return list(await asyncio.gather(*(stage.coordinator.sync(request(answer)) for answer in answers)))


def first_beat(member_id: str, *topics: str, group_id: str = "g", **changes: Any) -> ConsumerBeat:
    values: dict[str, Any] = {
        "group_id": group_id,
        "member_id": member_id,
        "member_epoch": 0,
        "rebalance_timeout_ms": 30_000,
        "topics": topics or ("orders",),
        "owned": frozenset(),
    }
    return ConsumerBeat(**(values | changes))
