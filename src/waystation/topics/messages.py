"""Messages into topics, and single ones found there again: what every protocol but Kafka's own calls.

`publish` makes one record batch per partition (more only where `max.message.bytes` asks for it) and puts it through the
same `Publishing` as a Kafka producer's, so that no protocol has rules of its own. All batches are built and checked
before the first is appended: what can be refused is refused as a whole.

On the loop's thread only; `find` and `ensure` wait, everything else answers at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from waystation.config import BrokerSettings
from waystation.errors import AlreadyExists, Invalid, UnknownTopic
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import HEADER_SIZE, MAGIC, NO_PRODUCER, TRANSACTIONAL, Header
from waystation.log.batches.partitioning import partition_of
from waystation.message import Delivered, Message, check_message
from waystation.protocol import Found
from waystation.topics.expiry import expired
from waystation.topics.message_lookup import Among, MessageLookup, everywhere
from waystation.topics.partitions.partition import Partition, Receipt
from waystation.topics.publishing import Publishing
from waystation.topics.reading import Accept, by_time, newest, newest_away
from waystation.topics.records import crossing
from waystation.topics.records.record_writing import record_parts
from waystation.topics.topics import Topic, Topics, check_name
from waystation.world import World

STICKY_BYTES = 16 * 1024
"""Messages without a key stay with one partition for so much, then the next has its turn: full batches, fair shares."""

MAX_HISTORY = 10_000
"""The most messages that `history` gives: they are all in memory at once."""

DelayToTopic = Callable[[str, Sequence[Message], int | None], Receipt]
"""Keeps messages until they are due and then publishes them to the topic (and partition)."""


class PublishReceipts(NamedTuple):
    """Where messages went, and what to wait for until they are durable."""

    places: list[tuple[str, int, int]]  # (topic, partition, first offset); messages that wait for their time have none
    receipts: list[Receipt]
    bytes: int = 0  # of the batches that were written
    duplicates: Sequence[int] = ()  # positions of messages that the topic had by their ids: they were left out


class Stamp:
    """A producer that counts its batches: in a transaction, or idempotent. `sequences` goes on with each publish."""

    __slots__ = ("producer_epoch", "producer_id", "sequences", "transactional")

    def __init__(self, producer_id: int, producer_epoch: int, *, transactional: bool = True) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.transactional = transactional
        self.sequences: dict[tuple[str, int], int] = {}


class Messages:
    """One per broker. `delay_to_topic` is set by whoever can keep messages until they are due."""

    def __init__(
        self,
        world: World,
        settings: BrokerSettings,
        topics: Topics,
        publishing: Publishing,
        delay_to_topic: DelayToTopic | None = None,
    ) -> None:
        self._world = world
        self._settings = settings
        self._topics = topics
        self._publishing = publishing
        self._lookup = MessageLookup(world, topics)
        self.delay_to_topic = delay_to_topic
        self._sticky: dict[str, tuple[int, int]] = {}  # topic → (partition, bytes until the next one's turn)
        topics.subscribe_deletions(self._forget)

    # -- publishing -------------------------------------------------------------------------------------------------

    async def ensure(self, topic: str, settings: Mapping[str, str] | None = None) -> Topic:
        """The topic, made if it is not there and the broker makes topics by itself; `settings`: of one that is made."""
        found = self._topics.find(topic)
        if found is not None:
            return found
        check_name(topic)
        if not self._settings.flag("auto.create.topics.enable"):
            raise self._unknown(topic)
        try:
            return await self._topics.create(topic, self._settings.integer("num.partitions"), settings)
        except AlreadyExists:
            return self._topics.get(topic)

    def publish(
        self,
        topic: str,
        messages: Sequence[Message],
        partition: int | None = None,
        *,
        stamp: Stamp | None = None,
        promised: bool = True,
        internal: bool = False,
    ) -> PublishReceipts:
        """Appends the messages; they are written when this returns, and durable when the receipts are. `promised`:
        somebody will be told that they are. `internal`: the broker publishes, and the topic may be its own.

        Raises UnknownTopic, Invalid, InvalidRecord, InvalidTimestamp, TooLarge, NotAllowed, NotEnoughReplicas,
        StorageFailed.
        """
        found = self._find(topic)
        everything = messages
        receipts: list[Receipt] = []
        late = [message for message in messages if message.delay_ms or message.deliver_at_ms is not None]
        if late:
            now = self._world.clock.now_ms()
            late = [message for message in late if message.ready_at_ms(now) is not None]
        if late:
            messages = self._without(messages, late, stamp)
        shares = self.spread(found, messages, partition)
        if promised:
            check_in_sync(found, shares)
        duplicates: list[int] = []
        if found.settings.dedup_window_ms:
            shares = self._fresh(shares, everything, duplicates, -1 if stamp is None else stamp.producer_id)
        ready = self._checked(found, shares, stamp, internal)
        if late and self.delay_to_topic is not None:
            receipts.append(self.delay_to_topic(topic, late, partition))
        places: list[tuple[str, int, int]] = []
        size = 0
        for target, made in ready:
            first = -1
            for batch, header in made:
                size += len(batch)
                appended = self._publishing.append(target, batch, header)
                first = appended.base_offset if first < 0 else first
                if stamp is not None:
                    stamp.sequences[topic, target.index] = (header.last_sequence + 1) & 0x7FFFFFFF
            if made:  # else it has all of them already, and they may not be durable yet
                places.append((topic, target.index, first))
            receipts.append(Receipt(target, target.end_offset))
        return PublishReceipts(places, receipts, size, duplicates)

    def _fresh(
        self,
        shares: list[tuple[Partition, Sequence[Message]]],
        messages: Sequence[Message],
        duplicates: list[int],
        producer_id: int,
    ) -> list[tuple[Partition, Sequence[Message]]]:
        """The shares without what the topic has by its ids, whose positions among the messages are noted."""
        kept = [(target, self._publishing.fresh(target, share, producer_id)) for target, share in shares]
        missing = sum(len(share) for _, share in shares) - sum(len(share) for _, share in kept)
        if missing:
            wanted = {id(message) for _, share in shares for message in share}
            left = Counter(id(message) for _, share in kept for message in share)
            for position, message in enumerate(messages):
                if left[id(message)] > 0:
                    left[id(message)] -= 1
                elif id(message) in wanted:
                    duplicates.append(position)
        return kept

    def spread(
        self, topic: Topic, messages: Sequence[Message], partition: int | None = None
    ) -> list[tuple[Partition, Sequence[Message]]]:
        """Which messages go to which partition: the given one, the key's, or one for all that have no key."""
        if not messages:
            return []
        if partition is not None:
            return [(topic.partition(partition), messages)]
        count = len(topic.partitions)
        if count == 1:
            return [(topic.partitions[0], messages)]
        by_id = topic.settings.dedup_window_ms > 0  # a message sent again must meet its first copy
        shares: dict[int, list[Message]] = {}
        keyless: list[Message] = []
        for message in messages:
            key = message.key
            if key is None and by_id and message.id is not None:
                key = message.id.encode(errors="replace")
            if key is None:
                keyless.append(message)
            else:
                shares.setdefault(partition_of(key, count), []).append(message)
        if keyless:
            index = self._stick(topic.name, count, keyless)
            # Keyed messages of that partition keep their order among themselves; nothing is promised beyond that.
            shares.setdefault(index, []).extend(keyless)
        return [(topic.partitions[index], share) for index, share in shares.items()]

    def _stick(self, topic: str, count: int, messages: Iterable[Message]) -> int:
        index, left = self._sticky.get(topic) or (self._world.random.below(count), STICKY_BYTES)
        left -= sum(len(message.payload) for message in messages)
        self._sticky[topic] = (index, left) if left > 0 else ((index + 1) % count, STICKY_BYTES)
        return index if index < count else 0

    def _without(self, messages: Sequence[Message], late: list[Message], stamp: Stamp | None) -> list[Message]:
        """The messages that need not wait."""
        if self.delay_to_topic is None:
            raise Invalid("delay_ms: this broker cannot keep messages for a topic until they are due")
        if stamp is not None:
            raise Invalid("delay_ms: a message to a topic cannot be delayed inside a transaction; delay it in a queue")
        for message in late:
            check_message(message)
        waiting = set(map(id, late))
        return [message for message in messages if id(message) not in waiting]

    def _checked(
        self, topic: Topic, shares: list[tuple[Partition, Sequence[Message]]], stamp: Stamp | None, internal: bool
    ) -> list[tuple[Partition, list[tuple[bytearray, Header]]]]:
        """The batches to append, everything about them in order."""
        now = self._world.clock.now_ms()
        limit = topic.settings.max_message_bytes
        ready = []
        for partition, share in shares:
            made = []
            for batch in build_batches(share, now, limit, stamp, (topic.name, partition.index)):
                made.append((batch, self._publishing.check_header(partition, batch, internal=internal)))
            if topic.settings.compacts:
                _check_keys(topic.name, share)
            ready.append((partition, made))
        return ready

    # -- looking ----------------------------------------------------------------------------------------------------

    def history(self, topic: str, count: int) -> list[Delivered]:
        """The last `count` messages of a topic whose time to live is not over, oldest first."""
        check_history(count)
        found = self._find(topic)
        runs = [newest(partition, count, self._current()) for partition in found.partitions] if count else []
        return by_time([run for run in runs if run])[-count:] if runs else []

    async def history_away(self, topic: str, count: int) -> list[Delivered]:
        """As `history`; what may take long to decode is decoded on a thread."""
        ends = [(partition, partition.stable_offset) for partition in self._find(topic).partitions]
        return await self.latest_away(ends, count, self._current())

    def _current(self) -> Accept:
        """Takes what has not expired by now."""
        now_ms = self._world.clock.now_ms()
        return lambda one: not expired(one, now_ms)

    async def latest_away(
        self, ends: Sequence[tuple[Partition, int]], count: int, accept: Accept | None = None
    ) -> list[Delivered]:
        """The last `count` messages of these partitions together, each before an offset, that `accept` takes."""
        check_history(count)
        if not count:
            return []
        offload = self._world.offload
        runs = [await newest_away(offload, partition, count, accept, end=end) for partition, end in ends]
        return by_time([run for run in runs if run])[-count:] if runs else []

    async def find(self, message_id: str, topic: str | None = None, among: Among = everywhere) -> Found | None:
        """A message of a topic by its place or its own id (`topics/message_lookup.py`). `among`: which topics, if none
        is named."""
        if topic is not None:
            self._find(topic)
        return await self._lookup.find(message_id, topic, among)

    # -- parts ------------------------------------------------------------------------------------------------------

    def _find(self, topic: str) -> Topic:
        found = self._topics.find(topic)
        if found is None:
            raise self._unknown(topic)
        return found

    def _unknown(self, topic: str) -> UnknownTopic:
        return UnknownTopic(f"there is no topic {topic!r}", "topic", topic)

    def _forget(self, names: list[str]) -> None:
        for name in names:
            self._sticky.pop(name, None)


# -- building ----------------------------------------------------------------------------------------------------------


def build_batches(
    messages: Sequence[Message],
    now_ms: int,
    limit_bytes: int,
    stamp: Stamp | None = None,
    place: tuple[str, int] = ("", 0),
) -> list[bytearray]:
    """The messages as record batches of at most `limit_bytes` each (one that is larger alone is a batch alone)."""
    base, highest = _times(messages, now_ms)
    sequence = -1 if stamp is None else stamp.sequences.get(place, 0)
    made: list[bytearray] = []
    parts: list[bytes] = []
    size, count = HEADER_SIZE, 0
    for message in messages:
        delta = now_ms - base
        if message.timestamp_ms is not None:
            delta = message.timestamp_ms - base
            message = crossing.taken_in(message, now_ms)
        mark = len(parts)
        added = record_parts(message, count, delta, parts)
        if size + added > limit_bytes and count:
            del parts[mark:]
            made.append(_assemble(parts, count, base, highest, stamp, sequence))
            sequence = sequence if stamp is None else (sequence + count) & 0x7FFFFFFF
            parts, size, count = [], HEADER_SIZE, 0
            added = record_parts(message, count, delta, parts)
        size += added
        count += 1
    if count:
        made.append(_assemble(parts, count, base, highest, stamp, sequence))
    return made


def _times(messages: Sequence[Message], now_ms: int) -> tuple[int, int]:
    """The earliest and the latest time among the messages: what a topic's limits are held against."""
    said = [message.timestamp_ms for message in messages if message.timestamp_ms is not None]
    if not said:
        return now_ms, now_ms
    lowest, highest = min(said), max(said)
    if lowest < 0 or highest >= crossing.MAX_TIMESTAMP_MS:
        raise Invalid(f"timestamp_ms: {lowest if lowest < 0 else highest} is no time")
    return (lowest, highest) if len(said) == len(messages) else (min(lowest, now_ms), max(highest, now_ms))


def _assemble(
    parts: list[bytes], count: int, base_ms: int, highest_ms: int, stamp: Stamp | None, sequence: int
) -> bytearray:
    producer_id, epoch, attributes = NO_PRODUCER, -1, 0
    if stamp is not None:
        producer_id, epoch = stamp.producer_id, stamp.producer_epoch
        attributes = TRANSACTIONAL if stamp.transactional else 0
    header = Header(0, 0, -1, MAGIC, 0, attributes, count - 1, base_ms, highest_ms, producer_id, epoch, sequence, count)
    return batches.assemble(header, b"".join(parts))


def check_history(count: int) -> None:
    if not 0 <= count <= MAX_HISTORY:
        raise Invalid(f"history: {count} is not between 0 and {MAX_HISTORY}")


def _check_keys(topic: str, messages: Sequence[Message]) -> None:
    if any(message.key is None for message in messages):
        raise Invalid(f"key: topic {topic!r} is compacted; every message needs a key")


def check_in_sync(topic: Topic, shares: Sequence[tuple[Partition, Sequence[Message]]]) -> None:
    """Raises NotEnoughReplicas where what is published cannot be promised: now, though all of it may be for later."""
    for partition, _ in shares:
        partition.check_in_sync()
    if not shares:
        topic.partitions[0].check_in_sync()
