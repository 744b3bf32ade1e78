"""Transactions over topics, queues and offsets: what is in one happens all together, or not at all.

Queues take part as topics do: what a transaction does to a queue is written to its shard's log under the producer's id,
and the marker that the coordinator writes there at the end says whether it counts. So there is one coordinator, one
way to end, and one recovery, whatever takes part.

In a cluster, a partition that takes part may get another leader, which lacks what was written and not copied yet, and
ends the transaction all the same. So what was written is on all replicas in sync before it is decided to commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from waystation.errors import Conflict, NotFound, NotLeader
from waystation.groups.machines.calls import OffsetToCommit
from waystation.message import Message, Run
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.queue_feed import QueueFeed
from waystation.queues.shard.shard import PutResult, Shard
from waystation.topics.batch_publishing import Placed, append_batches, check_batches
from waystation.topics.messages import PublishReceipts, Stamp, check_in_sync
from waystation.topics.partitions.partition import Partition
from waystation.topics.topics import OFFSETS_TOPIC, QUEUES_TOPIC
from waystation.transactions.decision_records import Staged
from waystation.transactions.errors import InvalidTransactionState, ReservedTransactionalId
from waystation.transactions.listing import TransactionFilter
from waystation.transactions.machine import Producer, TransactionState

if TYPE_CHECKING:
    from waystation.core import Core

OWN_PREFIX = "__waystation."
"""Of the transactional ids that the broker uses itself."""


def check_not_own(transactional_id: str | None) -> None:
    """Protocols call it before a client begins."""
    if transactional_id is not None and transactional_id.startswith(OWN_PREFIX):
        raise ReservedTransactionalId(f"transactional_id: those that begin with {OWN_PREFIX!r} are the broker's own")


@runtime_checkable
class OffsetFeed(Protocol):
    """A consumer whose acknowledgements are offsets of its group."""

    group: str

    async def claim(self, runs: Sequence[Run]) -> Sequence[tuple[str, int, int]]: ...


class Gate(Protocol):
    """Who is asked whether something may be published; raises if not."""

    def admit_queue(self, queue: str) -> None: ...

    def admit_topic(self, topic: str) -> None: ...


class Transacting:
    """Hands out transactions; constructed by the broker."""

    def __init__(self, broker: Core) -> None:
        self._broker = broker

    async def begin(self, transactional_id: str, timeout_ms: int = 60_000, *, gate: Gate | None = None) -> Tx:
        """A new transaction; an older one of the same id is undone, and its holder fenced. `gate` is asked before
        anything is published in it; None: it is the broker's own."""
        producer = await self._broker.transactions.init_producer_id(transactional_id, timeout_ms)
        return Tx(self._broker, transactional_id, producer, gate)

    async def begin_own(self, name: str) -> Tx:
        """The same for the broker itself. In a cluster the transaction has an id that this node coordinates, since only
        that node can end it. NotCoordinator: it coordinates none now."""
        return await self.begin(self._broker.transactions.own_id(name))

    async def undo_left_over(self, state_log: int | None = None) -> None:
        """Ends what the broker itself had begun before a crash, so that nobody waits for its timeout: at the start, or
        when it coordinates another state log from now on, whose own transactions were of the node that did before."""
        transactions = self._broker.transactions
        for left in transactions.listing(
            TransactionFilter(states=frozenset({TransactionState.ONGOING.label}))
        ).transactions:
            own = left.transactional_id.startswith(OWN_PREFIX)
            if own and state_log in (None, transactions.partition_of(left.transactional_id)):
                await self.begin(left.transactional_id)


class Tx:
    """One transaction after another of one producer; `end` ends the present one, and the next call begins the next."""

    def __init__(self, broker: Core, transactional_id: str, producer: Producer, gate: Gate | None) -> None:
        self._broker = broker
        self._gate = gate
        self.transactional_id = transactional_id
        self.producer = producer
        self._stamp = Stamp(*producer)
        self._joined: set[tuple[str, int]] = set()
        self._written: dict[tuple[str, int], int] = {}  # with the leader epoch of the first write
        self._begun = False  # something was asked for
        self._inside = False  # and something is part of the transaction

    async def enter(self, shard: Shard, queues: Iterable[str]) -> None:
        """Lets a shard and the shards of these queues take part: one wait for the disk, where each of the calls that
        follow would have one of its own."""
        shards = {self._place(shard), *(self._place(self._broker.queues.of_users(queue)[0]) for queue in queues)}
        await self._join(sorted(shards))

    async def publish(
        self, topic: str, messages: Sequence[Message], partition: int | None = None, *, internal: bool = False
    ) -> PublishReceipts:
        """Messages to a topic, seen by read_committed readers when the transaction commits. `internal`: the broker
        publishes, and the topic may be its own."""
        if self._gate is not None:
            self._gate.admit_topic(topic)
        known = self._broker.topics.get(topic)
        shares = self._broker.messages.spread(known, messages, partition)
        check_in_sync(known, shares)
        await self._join([(topic, target.index) for target, _ in shares])
        positions: dict[int, deque[int]] = {}  # the same message may be given several times
        for position, message in enumerate(messages):
            positions.setdefault(id(message), deque()).append(position)
        all_of_it = PublishReceipts([], [])
        for target, share in shares:
            self._check_joined((topic, target.index))
            part = self._broker.messages.publish(topic, share, target.index, stamp=self._stamp, internal=internal)
            given = [positions[id(message)].popleft() for message in share]
            all_of_it = PublishReceipts(
                all_of_it.places + part.places,
                all_of_it.receipts + part.receipts,
                all_of_it.bytes + part.bytes,
                sorted([*all_of_it.duplicates, *(given[one] for one in part.duplicates)]),
            )
        return all_of_it

    async def publish_batches(self, topic: str, placed: Sequence[Placed]) -> list[tuple[str, int, int]]:
        """Record batches that the client built, each for its partition."""
        if self._gate is not None:
            self._gate.admit_topic(topic)
        known = self._broker.topics.get(topic)
        places = sorted({(topic, known.partition(index).index) for index, _ in placed})
        checked = await check_batches(self._broker.publishing, known, placed)
        await self._join(places)
        for place in places:
            self._check_joined(place)
        return append_batches(self._broker.publishing, checked, self._stamp).places

    async def put(self, queue: str, messages: Sequence[Message], *, moved: bool = False) -> PutResult:
        """Messages to a queue, there when the transaction commits. `moved`: by the broker, from where they were."""
        if self._gate is not None:
            self._gate.admit_queue(queue)
        shard, known = self._broker.queues.of_users(queue)
        await self._join([self._place(shard)])
        self._check_alive(shard, known)
        self._check_joined(self._place(shard))
        return shard.put(known, messages, self.producer, moved=moved)

    async def put_same(self, queues: Sequence[str], messages: Sequence[Message]) -> set[str]:
        """The same messages to several queues; returns which have taken them. The others have not: put to each of
        those by itself, and it says why."""
        if self._gate is not None:
            for queue in queues:
                self._gate.admit_queue(queue)
        taken: set[str] = set()
        for step in self._broker.queues.together(queues):
            shard = self._broker.queues.of_users(step[0])[0]
            await self._join([self._place(shard)])
            self._check_joined(self._place(shard))
            found = list(self._broker.queues.those(step))  # some may have been deleted meanwhile
            if len(found) > 1:
                left = {queue.id for queue in shard.put_same(found, messages, self.producer).left}
                taken.update(queue.name for queue in found if queue.id not in left)
        return taken

    async def settle(self, feed: QueueFeed | OffsetFeed, runs: Sequence[Run], deliveries: int = 0) -> None:
        """Acknowledges what is in flight to a consumer, when the transaction commits. Undone, they are as they were.
        `deliveries`: which delivery of a queue's messages is meant (`QueueFeed.settle`)."""
        if isinstance(feed, OffsetFeed):
            await self._join_offsets(feed.group)
            offsets = await feed.claim(runs)  # which may have taken a while
            self._check_joined((OFFSETS_TOPIC, self._broker.groups.partition_for(feed.group)))
            await self._commit_offsets(feed.group, offsets)
            return
        if not isinstance(feed, QueueFeed):
            raise Conflict(
                "only what is in flight at a queue's or a stream's consumer can be acknowledged in a transaction"
            )
        await self.take(feed.shard, feed.queue, feed.consumer, runs, deliveries)

    async def take(
        self, shard: Shard, queue: Queue, consumer: str | None, runs: Sequence[Run], deliveries: int = 0
    ) -> None:
        await self._join([self._place(shard)])
        self._check_alive(shard, queue)
        self._check_joined(self._place(shard))
        unknown = shard.take(queue, consumer, runs, self.producer, deliveries)
        if unknown:
            raise Conflict(
                f"messages {unknown} of queue {queue.name!r} are not in flight at this consumer; nothing was done"
            )

    async def commit_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        """Offsets of a group, committed with the transaction."""
        await self._join_offsets(group)
        await self._commit_offsets(group, offsets)

    async def _commit_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        results = await self._broker.groups.commit_transactional_offsets(
            group, *self.producer, [OffsetToCommit(*offset) for offset in offsets]
        )
        for result in results:
            if result.error is not None:
                raise result.error

    async def end(self, commit: bool) -> None:
        """Commits or undoes; durable when this returns. Where nothing was done there is nothing to end. NotLeader: what
        was written may be lost, so that it was not committed."""
        if not self._begun:
            return
        if commit:
            await self._until_replicated()
        try:
            await self._broker.transactions.end(self.transactional_id, self.producer, commit, bumps_epoch=False)
        except InvalidTransactionState:
            if commit or self._inside:
                raise  # else nothing could be begun, so there is nothing to undo
        self._begun = self._inside = False  # only now: whoever was told that it failed may ask again
        self._forget()

    async def stage(self) -> Staged | None:
        """Leaves it open, complete and durable, for whoever decides on it; None if nothing is in it.

        Data must be durable before anybody can decide that it is committed: the transaction outlives a crash, and so
        must all of it. Nothing can be added afterwards by this object.
        """
        if not self._inside:
            await self.end(False)
            return None
        for place in sorted(self._joined):
            self._check_joined(place)
            target = self._partition(place)
            await target.until_durable(target.end_offset)
        self._begun = self._inside = False
        self._forget()
        return Staged(self.transactional_id, *self.producer)

    def _place(self, shard: Shard) -> tuple[str, int]:
        return QUEUES_TOPIC, shard.index

    async def _join(self, places: list[tuple[str, int]]) -> None:
        missing = [place for place in places if place not in self._joined]
        if missing:
            self._begun = True
            await self._broker.transactions.add_partitions(self.transactional_id, self.producer, missing)
            self._inside = True
            self._joined.update(missing)

    async def _join_offsets(self, group: str) -> None:
        self._begun = True
        await self._broker.transactions.add_offsets(self.transactional_id, self.producer, group)
        self._inside = True
        self._joined.add((OFFSETS_TOPIC, self._broker.groups.partition_for(group)))

    def _check_joined(self, place: tuple[str, int]) -> None:
        """Before something is written there: the transaction may have been ended by its timeout, or by a newer holder
        of its id; or what it has written there may be lost."""
        if not self._broker.transactions.check_produce(self.transactional_id, *self.producer, *place):
            self._forget()
            raise Conflict(f"the transaction of {self.transactional_id!r} is over: its time ran out")
        target = self._partition(place)
        self._check_epoch(target, self._written.setdefault(place, target.epoch))

    async def _until_replicated(self) -> None:
        """A broker alone need not wait: its logs reach the disk in their order."""
        for place, epoch in list(self._written.items()):
            if self._broker.topics.find(place[0]) is None:
                continue  # deleted, and with it what was written
            target = self._partition(place)
            if target.replicated:
                self._check_epoch(target, epoch)
                await target.until_durable(target.end_offset)
        self._written.clear()  # whoever asks again may do so because it is decided, and was not told

    def _partition(self, place: tuple[str, int]) -> Partition:
        return self._broker.topics.partition(*place)

    def _check_epoch(self, target: Partition, epoch: int) -> None:
        """As long as a partition is led in one epoch, nothing of it is lost."""
        if target.epoch != epoch:
            raise NotLeader(
                f"{target.topic.name}-{target.index} has had another leader since the transaction of"
                f" {self.transactional_id!r} wrote to it, and may lack what was written; undo it, and begin again"
            )

    def _forget(self) -> None:
        self._joined.clear()
        self._written.clear()

    @staticmethod
    def _check_alive(shard: Shard, queue: Queue) -> None:
        shard.log.check_led()
        if shard.queues.get(queue.id) is not queue:
            raise NotFound(f"queue {queue.name!r} was deleted")
