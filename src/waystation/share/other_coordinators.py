"""Share groups that other nodes of the cluster coordinate, as this node uses them: for clients that ask it.

Any node answers for any group: Kafka's clients look for the coordinator of a group where consumer groups have theirs
(FindCoordinator knows no kind), and fetch where a partition is led. What is kept of a group is with its coordinator
alone; here is nothing that could be lost. On the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

import msgspec

from waystation.cluster.links.link import Links
from waystation.cluster.links.peer import PeerRefusal, ShareAsk, ShareTold
from waystation.cluster.links.peer_errors import error_of
from waystation.cluster.view import ClusterView
from waystation.errors import NotLeader, Unavailable, WaystationError
from waystation.groups.machines.calls import OffsetResult, TopicPartition
from waystation.groups.machines.errors import NotCoordinator
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header
from waystation.message import Run
from waystation.queues.ledger.ledger import Grant
from waystation.share.group import start_by
from waystation.share.journal import SharedJournal
from waystation.share.machines.calls import ShareBeat, ShareBeatAnswer, ShareGroupView, ShareOffset
from waystation.share.machines.sessions import ShareSession
from waystation.share.machines.window import Batch, OpenedBatches, SharedWindow
from waystation.share.peer_calls import (
    ABORTED,
    NOTHING,
    RECORDS,
    VERBS,
    Acquire,
    Acquired,
    AllSettled,
    NewOffsets,
    NoFields,
    Offered,
    OffsetList,
    OwnSettings,
    Release,
    ResultList,
    SeenBatch,
    Settle,
    SettledFor,
    Settling,
    TopicNames,
    WantedOffsets,
    decode,
    encode,
)
from waystation.topics.partitions.partition import Partition
from waystation.topics.topics import SHARE_TOPIC, Topics
from waystation.world.clock import Clock

T = TypeVar("T")

ANSWER_S = 10.0
"""The coordinator may have to write something down: a replicated write."""
OFFER_BATCHES = 500
OFFER_BYTES = 1024 * 1024
"""Looked through for one question, at most."""
ROUNDS = 3
"""The coordinator wants to hear of another place, or where to begin: the question is asked again at once."""


class GivenRecords(msgspec.Struct, frozen=True):
    """What a member was given of a partition: batches as they are stored, and which of their records are its own."""

    grants: list[Grant]
    records: bytes
    error: WaystationError | None = None


Given = dict[TopicPartition, GivenRecords]


class ShareCoordinators:
    """One per broker. `links` None: it is alone, and coordinates all of them."""

    def __init__(
        self, journal: SharedJournal, topics: Topics, view: ClusterView, links: Links | None, clock: Clock
    ) -> None:
        self._journal = journal
        self._topics = topics
        self._view = view
        self._links = links
        self._clock = clock
        self._releasing: set[asyncio.Task[None]] = set()

    def home_of(self, group_id: str) -> int | None:
        """The node that coordinates the group; None: this one, or it will say itself that it does not."""
        index = self._journal.index_of(group_id)
        if self._links is None or self._journal.leads(index):
            return None
        placed = self._view.placed(self._topics.get(SHARE_TOPIC).id, index)
        if placed is None or not placed.has_leader:
            raise NotCoordinator(f"nobody coordinates share group {group_id!r} now; ask again in a moment")
        return None if placed.leader == self._view.node_id else placed.leader

    def elsewhere(self, group_id: str) -> OtherShareGroup | None:
        """The group, if another node coordinates it."""
        home = self.home_of(group_id)
        return None if home is None else OtherShareGroup(self, self._topics, self._clock, group_id, home)

    def release_later(self, group_id: str, member: str, keys: Sequence[TopicPartition]) -> None:
        """The member's connection is closed. If the coordinator is not told, locks run out by themselves."""
        task = asyncio.get_running_loop().create_task(self._release(group_id, member, keys))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, group_id: str, member: str, keys: Sequence[TopicPartition]) -> None:
        with contextlib.suppress(WaystationError):
            group = self.elsewhere(group_id)
            if group is not None:
                await group.release(member, keys)

    async def close(self) -> None:
        for task in tuple(self._releasing):
            task.cancel()
        await asyncio.gather(*self._releasing, return_exceptions=True)

    async def ask(self, node_id: int, group_id: str, verb: str, call: msgspec.Struct, answer: type[T]) -> T:
        if self._links is None:
            raise NotCoordinator(f"this broker is alone, and does not coordinate {group_id!r}")
        told = await self._links.to(node_id).ask(ShareAsk(group_id, verb, encode(call)), ANSWER_S)
        if isinstance(told, PeerRefusal):
            raise error_of(told)
        if not isinstance(told, ShareTold):
            raise Unavailable(f"node {node_id} gave another answer than one about share groups")
        return decode(told.body, answer)


class OtherShareGroup:
    """For one request: the next one looks again who coordinates the group."""

    def __init__(self, coordinators: ShareCoordinators, topics: Topics, clock: Clock, group_id: str, home: int) -> None:
        self._coordinators = coordinators
        self._topics = topics
        self._clock = clock
        self.id = group_id
        self.home = home
        self.lock_ms = 0  # as the coordinator said last

    async def _ask(self, verb: str, call: msgspec.Struct, answer: type[T]) -> T:
        if VERBS[verb][1] is not answer:
            raise TypeError(f"{verb} is not answered by {answer.__name__}")
        return await self._coordinators.ask(self.home, self.id, verb, call, answer)

    # -- members ----------------------------------------------------------------------------------------------------

    async def heartbeat(self, beat: ShareBeat) -> ShareBeatAnswer:
        return await self._ask("heartbeat", beat, ShareBeatAnswer)

    async def settle(self, member: str, settling: Sequence[Settling]) -> list[SettledFor]:
        """Durable when this returns. In the order of what was asked."""
        told = await self._ask("settle", Settle(member, tuple(settling)), AllSettled)
        self.lock_ms = told.lock_ms
        return list(told.partitions)

    async def release(self, member: str, keys: Sequence[TopicPartition]) -> None:
        if keys:
            await self._ask("release", Release(member, tuple(keys)), NoFields)

    async def acquire(
        self,
        session: ShareSession,
        partitions: Sequence[Partition],
        member: str,
        count: int,
        size: int,
        *,
        whole: bool,
    ) -> Given:
        """Records of these partitions, which this node leads. Those that nobody was asked for are left out."""
        given: Given = {}
        starts: dict[TopicPartition, int] = {}
        for _ in range(ROUNDS):
            for one in partitions:
                if not one.leads:  # any more: its log says nothing of the leader's, whose epoch it knows
                    given.setdefault(
                        key_of(one), GivenRecords([], b"", NotLeader(f"{one.topic.name}-{one.index}: deposed"))
                    )
            offered = [_offered(one, session.ends, starts, count) for one in partitions if key_of(one) not in given]
            if not offered:
                break
            told = await self._ask("acquire", Acquire(member, count, size, whole, tuple(offered)), Acquired)
            self.lock_ms = told.lock_ms
            again = False
            for offer, taken in zip(offered, told.taken, strict=False):
                key = (offer.topic, offer.index)
                session.ends[key] = taken.end
                partition = self._topics.partition(*key)
                if taken.error is not None:
                    given[key] = GivenRecords([], b"", taken.error)
                elif taken.reset is not None:
                    starts[key] = start_by(taken.reset, partition, self._clock.now_ms())
                    again = True
                elif taken.grants:
                    given[key] = await self._read(partition, member, taken.grants, taken.batches)
                    count -= sum(grant.count for grant in taken.grants)
                    size -= len(given[key].records)
                elif taken.end != offer.first and taken.end < partition.visible_offset:
                    again = True
            if not again or count <= 0 or size <= 0:
                break
        if session.ended:  # the member has left meanwhile: nobody would settle these
            granted = [key for key, one in given.items() if one.grants]
            with contextlib.suppress(WaystationError):
                await self.release(member, granted)
        return given

    async def _read(
        self, partition: Partition, member: str, grants: Sequence[Grant], seen: Sequence[Batch]
    ) -> GivenRecords:
        window = SharedWindow(partition, OpenedBatches(0))
        for batch in seen:
            window.add_batch(batch)
        try:
            return GivenRecords(list(grants), b"".join(window.stored(grants)))
        except WaystationError as error:
            runs: tuple[Run, ...] = tuple((grant.first, grant.count) for grant in grants)
            topic, index = key_of(partition)
            with contextlib.suppress(WaystationError):
                await self.settle(member, [Settling(topic, index, (("release", runs),))])
            return GivenRecords([], b"", error)

    # -- administration ---------------------------------------------------------------------------------------------

    async def describe(self) -> ShareGroupView:
        return await self._ask("describe", NoFields(), ShareGroupView)

    async def delete(self) -> None:
        await self._ask("delete", NoFields(), NoFields)

    async def offsets(self, wanted: Sequence[tuple[str, Sequence[int]]] | None) -> list[ShareOffset]:
        asked = None if wanted is None else tuple((topic, tuple(indexes)) for topic, indexes in wanted)
        return list((await self._ask("offsets", WantedOffsets(asked), OffsetList)).offsets)

    async def alter_offsets(self, offsets: Sequence[tuple[str, int, int]]) -> list[OffsetResult]:
        return list((await self._ask("alter_offsets", NewOffsets(tuple(offsets)), ResultList)).results)

    async def delete_offsets(self, topics: Sequence[str]) -> list[OffsetResult]:
        return list((await self._ask("delete_offsets", TopicNames(tuple(topics)), ResultList)).results)

    async def settings(self) -> dict[str, str]:
        return (await self._ask("settings", NoFields(), OwnSettings)).own

    async def alter_settings(self, own: dict[str, str]) -> None:
        await self._ask("alter_settings", OwnSettings(own), NoFields)


def key_of(partition: Partition) -> tuple[UUID, int]:
    return partition.topic.id, partition.index


def _offered(
    partition: Partition, ends: dict[TopicPartition, int], starts: dict[TopicPartition, int], wanted: int
) -> Offered:
    """What the partition has behind the place where the coordinator's window ended last."""
    key = key_of(partition)
    visible = partition.visible_offset
    first = max(ends.get(key, starts.get(key, partition.start_offset)), partition.start_offset)
    seen: list[SeenBatch] = []
    records, at, budget = 0, first, OFFER_BYTES
    while at < visible and records < wanted and len(seen) < OFFER_BATCHES and budget > 0:
        data = partition.read(at, budget, visible)
        if not data:
            break
        budget -= len(data)
        for _, header in batches.scan(data):
            if header.last_offset >= visible:
                break
            seen.append(SeenBatch(header.base_offset, header.last_offset, header.size, _kind(partition, header)))
            records += header.last_offset + 1 - header.base_offset
            at = header.last_offset + 1
            if len(seen) >= OFFER_BATCHES or records >= wanted:
                break
        else:
            continue
        break
    return Offered(
        *key,
        first,
        partition.start_offset,
        partition.end_offset,
        visible,
        partition.stable_offset,
        tuple(seen),
        starts.get(key),
        partition.epoch,
    )


def _kind(partition: Partition, header: Header) -> int:
    if header.control or header.record_count == 0:
        return NOTHING
    if header.transactional and any(
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset
        for one in partition.aborted.overlapping(header.base_offset, header.last_offset + 1)
    ):
        return ABORTED
    return RECORDS
