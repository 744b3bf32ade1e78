"""Reading a topic from a chosen place on, without a group and without state: what AMQP calls a stream's consumer.

A reader says where it begins (`TailStart`), gets what all partitions of the topic have from there, and then what is
appended, as far as its credit goes; each partition's messages come in order. Nothing is remembered of it: a verdict
frees nothing but the reader's own credit, and whoever wants to go on where it stopped says so the next time.

Partitions that are added later are read from their beginning. When retention is faster than the reader, it goes on
where the log now begins. When the topic is deleted, the reader is told and ended.

On the loop's thread only. Protocols come here by `TailReaders.open`, and know the reader as a `Feed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import msgspec

from waystation.errors import Invalid, NotAllowed, UnknownTopic, WaystationError
from waystation.log.batches import batch as batches
from waystation.message import Delivered
from waystation.observe.events import event_logger
from waystation.observe.tracing import Tracing
from waystation.queues.feed import Deliver
from waystation.routing.filtering.filters import Filter
from waystation.subscriptions.log_feed import StatelessLogFeed
from waystation.topics.partitions.partition import Partition
from waystation.topics.reading import PartitionReader, Readers, ReadPosition, newest
from waystation.topics.topics import Topic, Topics
from waystation.world.clock import Clock

logger = event_logger("waystation.tailing")

OnEnd = Callable[[WaystationError], None]


class TailStart(msgspec.Struct, frozen=True):
    """Where to begin in every partition. `value`: the offset, or the time in milliseconds since 1970."""

    kind: Literal["first", "last", "next", "offset", "time"]
    value: int = 0


FIRST = TailStart("first")
LAST = TailStart("last")  # the last batch that there is
NEXT = TailStart("next")  # nothing of what there is


def first_offset(partition: Partition, start: TailStart) -> int:
    """The offset that `start` means; always between the log's beginning and what readers may see of it, or between that
    and the log's end where a reader names an offset: elsewhere in the cluster it may have read so far."""
    begin, end = partition.start_offset, max(partition.start_offset, partition.stable_offset)
    if start.kind == "first":
        return begin
    if start.kind == "next":
        return end
    if start.kind == "last":
        return _last_batch(partition, end)
    if start.kind == "offset":
        return min(max(start.value, begin), max(end, partition.end_offset))
    found = partition.find_time(max(0, start.value))
    return end if found is None else min(max(found[0], begin), end)


def _last_batch(partition: Partition, end: int) -> int:
    """Where the batch begins that has the newest visible message; `end` where there is none."""
    found = newest(partition, 1)
    if not found:
        return end
    for _, header in batches.scan(partition.read(found[0].offset, 0, end)):
        return max(partition.start_offset, header.base_offset)
    return found[0].offset


class TailFeed(StatelessLogFeed["_TailPlace"]):
    """One reader (`queues.feed.Feed`). Made by `TailReaders.open`."""

    def __init__(
        self, hub: TailReaders, topics: Topics, topic: Topic, filter: Filter | None, deliver: Deliver, on_end: OnEnd
    ) -> None:
        super().__init__(topics, hub.now_ms, filter)
        self.topic = topic
        self.missed = 0
        """Offsets that retention removed before it came to read them."""
        self._hub = hub
        self._deliver = deliver
        self._on_end = on_end
        self._next_tag = 1
        self._places: list[_TailPlace] = []

    # -- the feed ---------------------------------------------------------------------------------------------------

    def credit(self, count: int) -> None:
        self._credit += count
        if self._credit > 0:
            self._soon()

    def retire(self) -> None:
        """No more deliveries. What was delivered can be settled still, which means nothing."""
        self.close()

    def close(self) -> None:
        """The reader leaves; fine if it has left already."""
        if self._closed:
            return
        self._closed = True
        self._ready.clear()
        for place in self._places:
            place.reader.unlisten(place.woken)
        self._places.clear()
        self._hub.closed(self)

    # -- the topic (called by the hub) ------------------------------------------------------------------------------

    def follow(self, readers: Readers, start: TailStart) -> None:
        """Reads the topic's partitions that it does not read yet."""
        for partition in self.topic.partitions[len(self._places) :]:
            place = _TailPlace(readers.of(partition), first_offset(partition, start), self)
            place.reader.listen(place.woken)
            self._places.append(place)
            if place.behind:
                self._ready[place] = None
        if self._ready:
            self._soon()

    # -- delivering -------------------------------------------------------------------------------------------------

    def woken(self, place: _TailPlace) -> None:
        """A partition grew."""
        self._ready[place] = None
        self._pump()

    def _before_new(self) -> bool:
        return False

    def _took(self, place: _TailPlace, messages: list[Delivered]) -> None:
        first = self._next_tag
        self._next_tag += len(messages)
        self._credit -= len(messages)
        self._deliver(
            [
                Delivered(tag, 1, one.taken_ms, one.message, one.source, one.partition, one.offset)
                for tag, one in enumerate(messages, first)
            ]
        )

    def _missed(self, place: _TailPlace, offsets: int) -> None:
        self.missed += offsets
        topic = place.partition.topic.name
        logger.warning(
            "retention.overtook",
            "retention overtook a reader: it missed {missed} of {topic}-{partition}",
            missed=offsets,
            topic=topic,
            partition=place.partition.index,
        )

    def failed(self, error: WaystationError) -> None:
        if not self._closed:
            self.close()
            self._on_end(error)


class _TailPlace(ReadPosition):
    """A place that wakes its feed."""

    __slots__ = ("_feed",)

    def __init__(self, reader: PartitionReader, position: int, feed: TailFeed) -> None:
        super().__init__(reader, position)
        self._feed = feed

    def woken(self) -> None:
        if self.behind:
            self._feed.woken(self)


class TailReaders:
    """All such readers of a broker, told of topics that grow and go. One per broker."""

    def __init__(self, topics: Topics, readers: Readers, clock: Clock, tracing: Tracing | None = None) -> None:
        self.now_ms = clock.now_ms
        self._topics = topics
        self._readers = readers
        self._tracing = tracing
        self._feeds: dict[str, dict[TailFeed, None]] = {}
        self._due = False
        topics.subscribe_changes(self._changed)

    def open(
        self, topic: str, start: TailStart, deliver: Deliver, on_end: OnEnd, *, filter: Filter | None = None
    ) -> TailFeed:
        """A reader of the topic from `start` on; it delivers when it is given credit. UnknownTopic, NotAllowed."""
        found = self._topics.find(topic)
        if found is None:
            raise UnknownTopic(f"there is no topic {topic!r}", "topic", topic)
        if found.internal:
            raise NotAllowed(f"topic {topic!r} is the broker's own")
        if start.value < 0:
            raise Invalid(f"start: {start.value} is below zero")
        if self._tracing is not None:
            deliver = self._tracing.watching(deliver, "topic", topic)
        feed = TailFeed(self, self._topics, found, filter, deliver, on_end)
        self._feeds.setdefault(topic, {})[feed] = None
        try:
            feed.follow(self._readers, start)
        except BaseException:
            feed.close()
            raise
        return feed

    def count(self, topic: str) -> int:
        """How many read this topic."""
        return len(self._feeds.get(topic, ()))

    def closed(self, feed: TailFeed) -> None:
        feeds = self._feeds.get(feed.topic.name, {})
        feeds.pop(feed, None)
        if not feeds:
            self._feeds.pop(feed.topic.name, None)

    def _changed(self) -> None:
        """Many topics may change at once; looking is left to when that is over."""
        if self._feeds and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._due = False
        for name, feeds in list(self._feeds.items()):
            for feed in list(feeds):
                if self._topics.find(name) is not feed.topic:
                    feed.failed(UnknownTopic(f"topic {name!r} was deleted"))
                else:
                    feed.follow(self._readers, FIRST)
