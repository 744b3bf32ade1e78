"""How much there is, and by how much it has changed, without counting everything again and again.

Queues: shards note what a queue was like before it changed (`queues/shard/usage.py`); a fold takes those notes and adds
the differences up. A hundred thousand queues that nobody uses cost nothing. Where very many are used at once, adding up
is done less often: not sooner again than `REST` times as long as it took. Now and then all of them are counted again:
should a change ever go by unnoticed, the sums are right again then. Topics are few enough to be looked at each time.

All of it is done in slices that leave the loop free. What must hold: after a count of everything and any number of
folds, the sums are those of all queues that there are. On the loop's thread only; for the broker's sampling, which
calls nothing here twice at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from operator import sub
from typing import TYPE_CHECKING, TypeVar

from waystation.queues.names import INTERNAL_PREFIX
from waystation.queues.shard.usage import GROWING, NOTHING, Notes, Usage, levels_of, usage_of, with_levels

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker
    from waystation.queues.shard.queue import Queue
    from waystation.queues.shard.shard import Shard
    from waystation.topics.topics import Topic

SLICE = 500
"""Queues, or topics, that are looked at before the loop has its turn: about a millisecond."""
REST = 200
COUNT_REST_S = 60.0
COUNT_REST = 1_000

T = TypeVar("T")
Counts = dict[str, list[int]]


def busy_topic(grown: Sequence[int]) -> int:
    """Published and delivered; bytes do not count."""
    return grown[0] + grown[2]


def busy_queue(grown: Sequence[int]) -> int:
    return grown[0] + grown[1] + grown[2]


class Census:
    """One per broker."""

    def __init__(self, broker: ManagedBroker) -> None:
        self._broker = broker
        self.ready = self.delayed = self.in_flight = 0
        self.own_topics = self.partitions = self.topic_messages = self.data_bytes = self.subscriptions = 0
        self.troubled = False  # some log has failed, or waits for room
        self._topics: dict[Topic, _Seen] = {}
        self._queues_again_s = self._count_again_s = 0.0
        self._shard_changes = 0  # how often shards had been led or dropped at the last count

    def start(self) -> None:
        self._broker.shards.measure(True)
        self._topics = {topic: _Seen(topic) for topic in self._broker.topics}

    def stop(self) -> None:
        self._broker.shards.measure(False)

    # -- queues -----------------------------------------------------------------------------------------------------

    async def fold_queues(self) -> Counts | None:
        """What queues have grown by since the last fold: put, delivered, acked, dead. None: not now."""
        now_s = self._now_s()
        if now_s < self._queues_again_s:
            return None
        shards = self._broker.shards
        if now_s >= self._count_again_s or shards.changes != self._shard_changes:
            self._shard_changes = shards.changes
            await self._count_queues()
            self._count_again_s = now_s + max(COUNT_REST_S, COUNT_REST * (self._now_s() - now_s))
        began_s = self._now_s()
        grown: Counts = {}
        for shard in self._broker.shards:
            notes, shard.notes = shard.notes, {}
            if notes:
                await self._fold_shard(shard, notes, grown)
        self._queues_again_s = began_s + REST * (self._now_s() - began_s) if len(grown) > SLICE else 0.0
        return grown

    async def _fold_shard(self, shard: Shard, notes: Notes, grown: Counts) -> None:
        async for part in _slices(notes.items()):
            ready = delayed = in_flight = 0
            for queue, before in part:
                # Who changes it from now on notes it again, so this is where the next difference begins.
                after = usage_of(queue)
                if shard.notes is not None and queue in shard.notes:
                    shard.notes[queue] = after  # it changed while this was waiting for its turn
                name = queue.name
                if name.startswith(INTERNAL_PREFIX):
                    continue
                changed = list(map(sub, after, before))
                if shard.queues.get(queue.id) is queue:
                    ready += changed[4]
                    delayed += changed[5]
                    in_flight += changed[6]
                else:
                    ready -= before[4]
                    delayed -= before[5]
                    in_flight -= before[6]
                counts = changed[:GROWING]
                if any(counts):
                    grown[name] = counts
            self.ready += ready
            self.delayed += delayed
            self.in_flight += in_flight

    async def _count_queues(self) -> None:
        """All of them. What changes before it is counted is counted so; what changes afterwards is noted."""
        ready = delayed = in_flight = 0
        for shard in self._broker.shards:
            for queue in list(shard.notes or ()):
                if shard.queues.get(queue.id) is not queue:
                    _begin_with(shard, queue, NOTHING)  # it is in no sum any more
            async for part in _slices(list(shard.queues.values())):
                for queue in part:
                    there = shard.queues.get(queue.id) is queue  # it may have been deleted in the meantime
                    usage = usage_of(queue) if there and queue.ledger is not None else NOTHING
                    if not queue.name.startswith(INTERNAL_PREFIX):
                        levels = levels_of(usage)
                        ready += levels[0]
                        delayed += levels[1]
                        in_flight += levels[2]
                    _begin_with(shard, queue, usage)
        self.ready, self.delayed, self.in_flight = ready, delayed, in_flight

    # -- topics -----------------------------------------------------------------------------------------------------

    async def fold_topics(self) -> Counts:
        """What topics have grown by since the last fold: published, published bytes, delivered."""
        grown: Counts = {}
        known: dict[Topic, _Seen] = {}
        own = partitions = messages = size = 0
        troubled = False
        async for part in _slices(list(self._broker.topics)):
            for topic in part:
                seen = known[topic] = self._topics.get(topic) or _Seen()
                counts = seen.look(topic)
                troubled = troubled or seen.troubled
                size += seen.size
                if topic.internal:
                    own += 1
                    continue
                partitions += len(topic.partitions)
                messages += seen.messages
                if any(counts):
                    grown[topic.name] = counts
        self._topics, self.troubled = known, troubled
        self.own_topics, self.partitions, self.topic_messages, self.data_bytes = own, partitions, messages, size
        self.subscriptions = self._broker.subscriptions.total()
        return grown

    def _now_s(self) -> float:
        return self._broker.world.clock.monotonic()


class _Seen:
    """A topic when it was last looked at: sums over its partitions."""

    __slots__ = ("appended", "delivered", "end", "looks", "messages", "size", "troubled")

    def __init__(self, topic: Topic | None = None) -> None:
        self.end = self.appended = self.delivered = self.messages = self.size = self.looks = 0
        self.troubled = False
        if topic is not None:
            self.look(topic)

    def look(self, topic: Topic) -> list[int]:
        """What it has grown by."""
        end = start = appended = 0
        troubled = False
        for partition in topic.partitions:
            end += partition.end_offset
            start += partition.start_offset
            appended += partition.appended_bytes
            if partition.failure is not None or partition.stalled is not None:
                troubled = True
        grown = [max(0, end - self.end), max(0, appended - self.appended), topic.delivered - self.delivered]
        if appended != self.appended or not self.looks % SIZE_LOOKS:
            self.size = sum([partition.size_bytes for partition in topic.partitions])
        self.looks += 1
        self.end, self.appended, self.delivered, self.messages = end, appended, topic.delivered, end - start
        self.troubled = troubled
        return grown


SIZE_LOOKS = 12
"""What is not written to gets smaller only, by retention: its size is looked at once a minute."""


def _begin_with(shard: Shard, queue: Queue, usage: Usage) -> None:
    """What was counted is where the next difference begins; what it has grown by is not known yet."""
    if shard.notes is not None and (before := shard.notes.get(queue)) is not None:
        shard.notes[queue] = with_levels(before, usage)


async def _slices(things: Iterable[T]) -> AsyncIterator[list[T]]:
    rest = iter(things)
    while part := list(islice(rest, SLICE)):
        yield part
        if len(part) == SLICE:
            await asyncio.sleep(0)
