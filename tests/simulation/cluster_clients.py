"""Clients of a simulated cluster: what they ask for, at which node, and what they remember of the answers.

Each kind of work is a coroutine that goes on until it is cancelled. A client asks a node that says of itself that it
leads what is wanted, which may be one that was deposed and has not heard of it. Any answer may be an error and any
answer may be missing; then what was asked for may have been done or not. A leader that was deposed and cannot know it
may deliver what has been acked elsewhere meanwhile: no clock is trusted, so nothing could keep it from that. What it
could know is told by the epoch in which it answered, which is noted there and then: it may learn of its end before its
answer arrives. What must not happen, whatever fails, is said by `Promises`, and for single answers here: an idempotent
producer never hears that its numbers do not follow.

- `publish`: values to a topic, each sent once; `publish_idempotent`: sent until it is acknowledged.
- `process`: reads partition 0, and writes what it makes of it to partition 1, with the offsets that it has consumed in
  the same transaction. There are two of them under one transactional id: each fences the other now and then.
- `consume_group`: reads, and commits how far it has come. Of another group, offsets are committed and looked at.
- `put`, `take`: a queue with delays, priorities, and dead letters. `move`: acks in one queue and puts to another, in a
  transaction.
- `read`, `watch`: look at any replica, all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.simulation.cluster_promises import Attempt, Letter, Place, Promises
from tests.simulation.cluster_world import Lost, Node
from tests.simulation.disk import PowerCut
from tests.simulation.loop import VirtualTime
from tests.simulation.promises import Broken
from waystation.broker.access import Access
from waystation.broker.broker import Broker
from waystation.errors import NotFound, OutOfOrderSequence, UnknownProducer, WaystationError
from waystation.groups.machines.calls import OffsetToCommit
from waystation.log.batches import batch as batches
from waystation.message import Delivered, Message
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.queue_feed import Getter
from waystation.security.principals import LOCAL
from waystation.topics.partitions.partition import Partition, Receipt
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.topics.topics import OFFSETS_TOPIC, QUEUES_TOPIC, SHARE_TOPIC, TRANSACTIONS_TOPIC
from waystation.transactions.machine import Producer

TOPIC = "t"
PARTITIONS = 2
SOURCE: Place = (TOPIC, 0)
TARGET: Place = (TOPIC, 1)
TRANSACTIONAL_ID = "processor"
PROCESSORS = "processor"
READERS = "readers"
WATCHED = "watched"
BARRIER = "barrier"
TIMEOUT_S = 5.0

QUEUES = {
    "jobs": QueueSettings(max_deliveries=3, dead_letter="dead", hold_ms=2_000, retry_base_ms=100),
    "dead": QueueSettings(),
    "before": QueueSettings(hold_ms=2_000),
    "after": QueueSettings(),
}
MOVES = {"jobs": "dead", "before": "after"}
MOVER = "mover"

REFUSED = (WaystationError, Lost, TimeoutError, PowerCut, OSError)
"""What a client may be told while things break."""
OWN = (TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, QUEUES_TOPIC, SHARE_TOPIC)
"""The topics whose leaders are watched."""


def access(broker: Broker) -> Access:
    return broker.access(LOCAL, "/", broker.meters.native)


class Clients:
    """Of one run."""

    def __init__(self, rng: random.Random, time: VirtualTime, nodes: dict[int, Node]) -> None:
        self.rng = rng
        self.time = time
        self.nodes = nodes
        self.promises = Promises()
        self.done: dict[str, int] = {}
        """How often each kind of work has succeeded."""
        self._numbers = itertools.count(1)
        self._attempts = itertools.count(1)

    def _succeeded(self, kind: str) -> None:
        self.done[kind] = self.done.get(kind, 0) + 1

    async def _pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.rng.expovariate(1 / mean_s))

    # -- who is asked -------------------------------------------------------------------------------------------------

    def replicas(self, topic: str = TOPIC) -> Iterator[tuple[Node, ReplicatedPartition]]:
        """Those that a client can reach now."""
        for node in self.nodes.values():
            if not node.reachable or node.broker is None:
                continue
            found = node.broker.topics.find(topic)
            for partition in () if found is None else found.partitions:
                if isinstance(partition, ReplicatedPartition) and partition.here:
                    yield node, partition

    def leader(self, topic: str, index: int = 0) -> Node:
        """One that says that it leads. Lost: nobody does."""
        found = [node for node, one in self.replicas(topic) if one.index == index and one.leads]
        if not found:
            raise Lost("nobody leads")
        return found[0] if len(found) == 1 else self.rng.choice(found)

    # -- topics -------------------------------------------------------------------------------------------------------

    async def publish(self, index: int) -> None:
        while True:
            await self._pause(0.1)
            value = b"p%d" % next(self._numbers)
            try:
                offset = await self.leader(TOPIC, index).ask(lambda broker, value=value: _publish(broker, index, value))  # type: ignore[misc]
            except REFUSED:
                continue
            self.promises.acknowledged((TOPIC, index), offset, value)
            self._succeeded("publish")

    async def publish_idempotent(self, index: int) -> None:
        """One batch after another, each until it is acknowledged."""
        producer: Producer | None = None
        sequence = 0
        while True:
            await self._pause(0.08)
            try:
                if producer is None:
                    node = self.rng.choice(list(self.nodes.values()))
                    producer = await node.ask(lambda broker: access(broker).transactions.init_producer_id(None, 10_000))
                    name = b"i%d" % producer.producer_id
                count = self.rng.choice((1, 1, 3))
            except REFUSED:
                continue
            values = [b"%s:%d" % (name, sequence + one) for one in range(1, count + 1)]
            first = await self._insist(index, producer, sequence, values)
            for at, value in enumerate(values, first):
                self.promises.acknowledged((TOPIC, index), at, value)
            sequence += count
            self._succeeded("publish_idempotent")

    async def _insist(self, index: int, producer: Producer, sequence: int, values: list[bytes]) -> int:
        while True:
            try:
                return await self._produce(index, producer, sequence, values, None)
            except (OutOfOrderSequence, UnknownProducer) as error:
                raise Broken(f"an idempotent producer, all of whose batches were acknowledged: {error}") from error
            except REFUSED:
                await self._pause(0.1)

    async def _produce(
        self, index: int, producer: Producer, sequence: int, values: list[bytes], transactional_id: str | None
    ) -> int:
        """A real client knows the epoch of the leader that answered last, and does not go back to an earlier one. Here
        it may: what such a node says of numbers is old, and counts as no answer."""
        node = self.leader(TOPIC, index)
        answer = await node.ask(lambda broker: _produce(broker, index, producer, sequence, values, transactional_id))
        if not isinstance(answer, _Misnumbered):
            return answer
        self.look_at_leaders()
        if answer.epoch < self.promises.newest.get((TOPIC, index), -1):
            raise Lost("it was deposed, and did not know it") from answer.error
        raise answer.error

    # -- groups -------------------------------------------------------------------------------------------------------

    async def consume_group(self) -> None:
        positions = dict.fromkeys(range(PARTITIONS), 0)
        while True:
            await self._pause(0.2)
            index = self.rng.randrange(PARTITIONS)
            try:
                found = await self._fetch_offset(READERS, index)
                self.promises.offset_fetched(READERS, index, found)
                position = positions[index] = max(positions[index], found)
                records = self._read_somewhere(index, position, 5)
                if not records:
                    continue
                reached = records[-1][0] + 1
                node = self.leader(OFFSETS_TOPIC)
                await node.ask(lambda broker, reached=reached, index=index: commit(broker, READERS, index, reached))  # type: ignore[misc]
            except REFUSED:
                continue
            positions[index] = reached
            self.promises.offset_committed(READERS, index, reached)
            self._succeeded("consume_group")

    async def look_at_offsets(self) -> None:
        """Commits to whoever seems to lead, and looks what it shows, which may be old, and is nothing that the next
        leader does not know: before anything else is committed, somebody asks it. By chances of its own, so that runs
        of a seed are what they were before."""
        rng = random.Random("look at offsets")
        for number in itertools.count(1):
            index = rng.randrange(PARTITIONS)
            await asyncio.sleep(rng.expovariate(1 / 0.5))
            for node in self._coordinators():
                with contextlib.suppress(*REFUSED):
                    await node.ask(functools.partial(commit, group=WATCHED, index=index, offset=number), 0.2)
            asked = False
            while not asked:
                for node in self._coordinators():
                    with contextlib.suppress(*REFUSED):
                        self.promises.offset_shown(
                            WATCHED, index, await node.ask(functools.partial(shown, index=index))
                        )
                await asyncio.sleep(rng.expovariate(1 / 0.1))
                if nodes := self._coordinators():
                    with contextlib.suppress(*REFUSED):
                        found = await self._fetch_offset(WATCHED, index, rng.choice(nodes), timeout_s=1.0)
                        self.promises.offset_stays(WATCHED, index, found)
                        asked = True

    def _coordinators(self) -> list[Node]:
        """Those that say that they are."""
        return [node for node, one in self.replicas(OFFSETS_TOPIC) if one.leads]

    async def _fetch_offset(
        self, group: str, index: int, node: Node | None = None, timeout_s: float = TIMEOUT_S
    ) -> int:
        async def fetch(broker: Broker) -> int:
            # As a member that joins before it asks: a node that was deposed and does not know it cannot take this, and
            # what it remembers may be old.
            await commit(broker, BARRIER, index, 0)
            found = access(broker).groups.fetch_offsets(group, [(TOPIC, index)], require_stable=True)[0]
            if found.error is not None:
                raise found.error
            return max(0, found.offset)

        return await (node or self.leader(OFFSETS_TOPIC)).ask(fetch, timeout_s)

    def _read_somewhere(self, index: int, position: int, most: int) -> list[tuple[int, bytes]]:
        """Committed records from a position on, of any replica."""
        found = [one for _, one in self.replicas() if one.index == index]
        if not found:
            raise Lost("nobody to read from")
        partition = self.rng.choice(found)
        seen = committed(partition, position)
        for offset, value, visible in seen:
            self.promises.show_committed((TOPIC, index), offset, value, visible=visible)
        return [(offset, value) for offset, value, visible in seen if visible][:most]

    # -- transactions -------------------------------------------------------------------------------------------------

    async def process(self) -> None:
        while True:
            await self._pause(0.2)
            try:
                producer = await self._of_coordinator(
                    lambda broker: access(broker).transactions.init_producer_id(TRANSACTIONAL_ID, 10_000)
                )
                sequence = 0
                bumps = self.rng.random() < 0.5
                for _ in range(self.rng.choice((1, 4, 20))):
                    before = producer
                    producer, written = await self._process_some(producer, sequence, bumps=bumps)
                    sequence = 0 if producer != before else sequence + written
            except (OutOfOrderSequence, UnknownProducer) as error:
                raise Broken(f"a transactional producer, whose batches were acknowledged: {error}") from error
            except REFUSED:
                continue

    async def _of_coordinator(self, work: Callable[[Broker], object]) -> Producer:
        return await self.leader(TRANSACTIONS_TOPIC).ask(work)  # type: ignore[arg-type]

    async def _process_some(self, producer: Producer, sequence: int, *, bumps: bool) -> tuple[Producer, int]:
        """One transaction, if there is something to do; who the producer is then, and how many records it wrote."""
        await self._pause(0.1)
        position = await self._fetch_offset(PROCESSORS, SOURCE[1])
        records = self._read_somewhere(SOURCE[1], position, self.rng.choice((1, 3)))
        if not records:
            return producer, 0
        number = next(self._attempts)
        values = [b"o%d:%d" % (offset, number) for offset, _ in records]
        self.promises.attempts[number] = Attempt(len(values))
        first = await self._produce(TARGET[1], producer, sequence, values, TRANSACTIONAL_ID)
        for at, value in enumerate(values, first):
            self.promises.acknowledged(TARGET, at, value)
        offset = OffsetToCommit(TOPIC, SOURCE[1], records[-1][0] + 1)
        if self.rng.random() < 0.2:
            await self._pause(0.5)  # another one may fence it
        await self.leader(OFFSETS_TOPIC).ask(lambda broker: _commit_in(broker, producer, offset))
        commit = self.rng.random() < 0.8
        producer = await self._of_coordinator(
            lambda broker: access(broker).transactions.end(TRANSACTIONAL_ID, producer, commit, bumps_epoch=bumps)
        )
        self.promises.ended(number, commit)
        if commit:
            self._succeeded("process")
        return producer, len(values)

    # -- queues -------------------------------------------------------------------------------------------------------

    async def declare_queues(self) -> None:
        while True:
            try:
                node = self.leader(QUEUES_TOPIC)
                for name, settings in QUEUES.items():
                    await node.ask(lambda broker, name=name, settings=settings: _declare(broker, name, settings))  # type: ignore[misc]
                return
            except REFUSED:
                await asyncio.sleep(0.1)

    async def put(self) -> None:
        while True:
            await self._pause(0.12)
            queue = self.rng.choice(("jobs", "jobs", "before"))
            number = next(self._numbers)
            delay_ms = self.rng.choice((300, 2_000, 8_000)) if self.rng.random() < 0.25 else 0
            letter = self.promises.letters[number] = Letter(queue)
            message = Message(b"%d" % number, delay_ms=delay_ms, priority=self.rng.choice((0, 0, 3, 9)))
            try:
                node = self.leader(QUEUES_TOPIC)
                letter.not_before_s = self.time.seconds + delay_ms / 1000 / node.clock.rate
                letter.not_before_ms = node.clock.now_ms() + delay_ms
                await node.ask(lambda broker, queue=queue, message=message: put(broker, queue, message))  # type: ignore[misc]
            except REFUSED:
                continue
            letter.stored = True
            self._succeeded("put")

    async def take(self, queue: str = "jobs") -> None:
        """Consumers come and go; of what they get they ack most, and reject, give back or forget the rest."""
        while True:
            await self._pause(0.1)
            try:
                node = self.leader(QUEUES_TOPIC)
                broker = node.broker
                consumer = await node.ask(lambda broker: open_consumer(broker, queue))
                for _ in range(self.rng.choice((1, 3, 8))):
                    await self._take_some(node, broker, consumer)
                await node.ask(lambda _, consumer=consumer: _leave(consumer.getter))  # type: ignore[misc]
            except REFUSED:
                continue

    async def _take_some(self, node: Node, broker: Broker | None, consumer: Consumer) -> None:
        taken = await self.get(_same(node, broker), consumer, self.rng.choice((1, 2)))
        self.promises.delivered_together(consumer.queue, [one.message.priority for one in taken])
        if taken and self.rng.random() < 0.3:
            await self._pause(0.5)  # the visibility timeout may run out
        for one in taken:
            verdict = self.rng.choices((Verdict.ACK, Verdict.REJECT, Verdict.RELEASE, None), (60, 15, 10, 15))[0]
            if verdict is not None:
                await self.settle(node, broker, consumer, one, verdict)

    async def get(self, node: Node, consumer: Consumer, count: int) -> list[Delivered]:
        taken = await node.ask(lambda _: consumer.getter.get(count, 300))
        for one in taken:
            self.delivered(consumer.queue, int(one.message.payload), one.tag, consumer.epoch)
        return taken

    def delivered(self, queue: str, number: int, tag: int | None, epoch: int) -> None:
        latest_ms = max(node.clock.highest_ms() for node in self.nodes.values())
        self.promises.delivered(queue, number, tag, epoch, self.time.seconds, latest_ms)

    async def settle(
        self, node: Node, broker: Broker | None, consumer: Consumer, one: Delivered, verdict: Verdict
    ) -> None:
        letter = self.promises.letters[int(one.message.payload)]
        if verdict is Verdict.ACK:
            letter.ending = True

        async def settle(broker: Broker) -> tuple[bool, int]:
            settled = consumer.getter.settle(verdict, [(one.tag, 1)], deliveries=one.deliveries)
            epoch = epoch_at(broker, QUEUES_TOPIC)
            await broker.durable(*(() if settled.receipt is None else (settled.receipt,)))
            return not settled.unknown, epoch

        held, epoch = await _same(node, broker).ask(settle)
        if held and verdict is Verdict.ACK:
            letter.done, letter.done_in = True, epoch
            self._succeeded("take")

    async def move(self) -> None:
        """From one queue to another, in a transaction of the broker's: both or neither."""
        while True:
            await self._pause(0.3)
            try:
                node = self.leader(QUEUES_TOPIC)
                broker = node.broker
                consumer = await node.ask(lambda broker: open_consumer(broker, "before"))
                getter = consumer.getter
                for one in await self.get(_same(node, broker), consumer, 1):
                    await _same(node, broker).ask(
                        lambda broker, one=one, getter=getter: _move(broker, getter, one, self.rng.random() < 0.8)  # type: ignore[misc]
                    )
                    self._succeeded("move")
            except REFUSED:
                continue

    # -- looking ------------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        while True:
            await self._pause(0.04)
            found = list(self.replicas())
            if not found:
                continue
            _, partition = self.rng.choice(found)
            try:
                self._look(partition)
            except REFUSED:
                continue

    def _look(self, partition: ReplicatedPartition) -> None:
        place = (TOPIC, partition.index)
        end = partition.visible_offset
        begin = 0 if self.rng.random() < 0.02 else end - 20
        for offset, value in records(partition, end, begin):
            self.promises.show(place, offset, value)
        if self.rng.random() < 0.3:
            for offset, value, visible in committed(partition, max(0, begin)):
                self.promises.show_committed(place, offset, value, visible=visible)

    async def watch(self) -> None:
        """Who leads, and how far what is shown has come: whatever clients can reach."""
        while True:
            self.look_at_leaders()
            await asyncio.sleep(0.03)

    def look_at_leaders(self) -> None:
        leaders = [
            (node.life, partition)
            for node in self.nodes.values()
            if node.broker is not None and node.life is not None and not node.fenced
            for name in OWN
            for partition in _partitions(node.broker, name)
            if isinstance(partition, ReplicatedPartition) and partition.leads
        ]
        for life, partition in leaders:
            self.promises.leads((partition.topic.name, partition.index), partition.epoch, life)
        for life, partition in leaders:
            place = (partition.topic.name, partition.index)
            self.promises.leader_has(place, partition.epoch, partition.end_offset)
            if partition.topic.name == TOPIC:
                self.promises.leader_has_committed(place, partition.epoch, partition.end_offset)
                self.promises.high_watermark(place, life, partition.visible_offset)


def _partitions(broker: Broker, name: str) -> Sequence[Partition]:
    topic = broker.topics.find(name)
    return () if topic is None else topic.partitions


# -- what a node does for a client, in its own context ----------------------------------------------------------------


def _same(node: Node, broker: Broker | None) -> Node:
    """The process that it was: what a consumer holds is held there."""
    if broker is None or node.broker is not broker:
        raise Lost("connection closed")
    return node


def epoch_at(broker: Broker, topic: str, index: int = 0) -> int:
    """The leader epoch of the partition that this node knows of. What it says now is as old as that."""
    return broker.topics.get(topic).partitions[index].epoch


async def _publish(broker: Broker, index: int, value: bytes) -> int:
    published = access(broker).publish_each(TOPIC, [Message(value)], index, promised=True)
    await broker.durable(*published.receipts)
    return published.places[0][2]


@dataclass(frozen=True)
class _Misnumbered:
    """The answer to a producer whose numbers do not follow, and the epoch of the node that says so."""

    error: OutOfOrderSequence | UnknownProducer
    epoch: int


async def _produce(
    broker: Broker, index: int, producer: Producer, sequence: int, values: list[bytes], transactional_id: str | None
) -> int | _Misnumbered:
    try:
        return await _produced(broker, index, producer, sequence, values, transactional_id)
    except (OutOfOrderSequence, UnknownProducer) as error:
        return _Misnumbered(error, epoch_at(broker, TOPIC, index))


async def _produced(
    broker: Broker, index: int, producer: Producer, sequence: int, values: list[bytes], transactional_id: str | None
) -> int:
    """As a Kafka produce request is handled."""
    face = access(broker)
    batch = batches.build(
        [(None, value, ()) for value in values],
        broker.world.clock.now_ms(),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        attributes=0 if transactional_id is None else batches.TRANSACTIONAL,
    )
    partition: Partition = face.partition(TOPIC, index)
    header = face.check_batch(partition, batch)
    if transactional_id is not None:
        check = face.transactions.producing(transactional_id)
        if not check(transactional_id, *producer, TOPIC, index):
            await face.transactions.add_producing(transactional_id, producer, TOPIC, index)
            if not face.transactions.producing(transactional_id)(transactional_id, *producer, TOPIC, index):
                raise Lost("the transaction ended meanwhile")
    appended = face.append(partition, batch, header, promised=True)
    await broker.durable(Receipt(partition, appended.last_offset + 1))
    return appended.base_offset


async def commit(broker: Broker, group: str, index: int, offset: int) -> None:
    for result in await access(broker).groups.commit_offsets(group, [OffsetToCommit(TOPIC, index, offset)]):
        if result.error is not None:
            raise result.error


async def shown(broker: Broker, index: int) -> int:
    """What somebody is told who only looks."""
    (found,) = access(broker).groups.fetch_offsets(WATCHED, [(TOPIC, index)])
    return found.offset


async def _commit_in(broker: Broker, producer: Producer, offset: OffsetToCommit) -> None:
    done = await access(broker).transactions.commit_offsets(
        TRANSACTIONAL_ID, producer, PROCESSORS, [offset], joins=True
    )
    for result in done:
        if result.error is not None:
            raise result.error


async def _declare(broker: Broker, name: str, settings: QueueSettings) -> None:
    await access(broker).declare_queue(name, settings)


async def put(broker: Broker, queue: str, message: Message) -> None:
    await access(broker).put_durable(queue, [message])


class Consumer:
    """`epoch`: of the node's replica of the shard, when the getter was handed what it got last. Noted right there: a
    node may learn that it was deposed before whoever waits for the messages is told of them."""

    def __init__(self, broker: Broker, queue: str) -> None:
        self.queue = queue
        self.getter = access(broker).getter(queue, "client")
        self.epoch = -1
        self._broker = broker
        self._deliver = self.getter._deliver
        self.getter._deliver = self._note

    def _note(self, messages: list[Delivered]) -> None:
        self.epoch = epoch_at(self._broker, QUEUES_TOPIC)
        self._deliver(messages)


async def open_consumer(broker: Broker, queue: str) -> Consumer:
    return Consumer(broker, queue)


async def _leave(getter: Getter) -> None:
    getter.leave()


async def _move(broker: Broker, getter: Getter, one: Delivered, commit: bool) -> None:
    tx = await access(broker).begin(MOVER, 10_000)
    await tx.put("after", [Message(one.message.payload)])
    await tx.settle(getter, [(one.tag, 1)], one.deliveries)
    await tx.end(commit)


async def take_all(broker: Broker, queue: str) -> list[Delivered]:
    """At once, by a consumer that acknowledges nothing and leaves."""
    getter = access(broker).getter(queue, "audit")
    try:
        return await getter.get(10_000, 0)
    finally:
        getter.leave()


async def left_in(broker: Broker, queue: str) -> list[int]:
    try:
        return [int(one.delivered.message.payload) for one in access(broker).peek(queue, 10_000)]
    except NotFound:
        return []


# -- reading ----------------------------------------------------------------------------------------------------------


def records(partition: ReplicatedPartition, end: int, begin: int = 0) -> list[tuple[int, bytes]]:
    """(offset, value) of all records from `begin` to `end`, whatever became of their transactions."""
    return [(offset, value) for offset, value, _ in _scan(partition, end, begin)]


def committed(partition: ReplicatedPartition, begin: int) -> list[tuple[int, bytes, bool]]:
    """The same up to where no transaction is open, and whether a reader of committed records keeps it."""
    return _scan(partition, partition.stable_offset, begin)


@functools.lru_cache(maxsize=4096)
def _values(batch: bytes) -> list[tuple[int, bytes]]:
    """(offset, value) of what is in a batch. Readers see the same one again and again, on every replica."""
    return [(one.offset, one.value or b"") for one in batches.records_of(batch)]


def _scan(partition: ReplicatedPartition, end: int, begin: int) -> list[tuple[int, bytes, bool]]:
    found: list[tuple[int, bytes, bool]] = []
    offset = max(begin, partition.start_offset)
    begin = offset
    while offset < end:
        data = partition.read(offset, 1_000_000, end)
        if not data:
            break
        aborted = partition.aborted_in(offset, data)
        for position, header in batches.scan(data):
            offset = header.last_offset + 1
            if header.control:
                continue
            visible = not header.transactional or not any(
                one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
                for one in aborted
            )
            found += [(at, value, visible) for at, value in _values(data[position : position + header.size])]
    return [one for one in found if begin <= one[0] < end]
