"""Live subscriptions: from now on, no state, no acknowledgements; push as far as the subscriber's credit goes.

Since a topic is a log, a slow subscriber needs no memory: with the policy `block` it simply stands further behind and
reads on when it has credit, with `drop` it goes on with what is new then. Either way `dropped` counts the offsets that
it missed: skipped by `drop`, or removed by retention before a blocked one came to read them. They are counted for the
topic and for the broker, too.

Topics that match and come later, or come again under an old name, are read from their beginning; so are partitions
that are added. A message whose time to live is over is passed over. A batch is decoded once for all who are at the
same place.

On the loop's thread only. Protocols come here by way of `Subscriptions`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal
from uuid import UUID

from waystation.errors import WaystationError
from waystation.message import Delivered
from waystation.observe.meters import Meters
from waystation.queues.feed import Deliver
from waystation.routing.filtering.filters import Filter
from waystation.subscriptions.log_feed import StatelessLogFeed
from waystation.subscriptions.selection import Selection
from waystation.topics.expiry import expired, unexpired
from waystation.topics.messages import Messages, check_history
from waystation.topics.reading import PartitionReader, Readers, ReadPosition
from waystation.topics.topics import Topic, Topics
from waystation.world.clock import Clock

Slow = Literal["drop", "block"]
OnEnd = Callable[[WaystationError], None]


class LiveFeed(StatelessLogFeed["_LivePlace"]):
    """One live subscriber (`queues.feed.Feed`). Made by `LiveFeeds.open`."""

    def __init__(
        self,
        hub: LiveFeeds,
        topics: Topics,
        selection: Selection,
        filter: Filter | None,
        slow: Slow,
        deliver: Deliver,
        on_end: OnEnd,
    ) -> None:
        super().__init__(topics, hub.now_ms, filter)
        self.selection = selection
        self.dropped = 0
        self._hub = hub
        self._slow = slow
        self._deliver = deliver
        self._on_end = on_end
        self._history: deque[Delivered] = deque()
        self._places: dict[UUID, list[_LivePlace]] = {}

    # -- the feed ---------------------------------------------------------------------------------------------------

    def credit(self, count: int) -> None:
        """The subscriber can take this many more messages."""
        if self._closed or count <= 0:
            return
        if self._credit == 0 and self._slow == "drop" and not self._history:
            self._skip()
        self._credit += count
        self._soon()

    def close(self) -> None:
        """The subscriber leaves; fine if it has left already."""
        if self._closed:
            return
        self._closed = True
        for topic_id in list(self._places):
            self.unfollow(topic_id)
        self._history.clear()
        self._hub.closed(self)

    # -- topics (called by the hub) ---------------------------------------------------------------------------------

    def follow(self, topic: Topic, readers: Readers, *, from_start: bool) -> None:
        """Reads the topic's partitions that it does not read yet."""
        places = self._places.setdefault(topic.id, [])
        for partition in topic.partitions[len(places) :]:
            place = _LivePlace(
                readers.of(partition), partition.start_offset if from_start else partition.stable_offset, self
            )
            place.reader.listen(place.woken)
            places.append(place)
            if place.behind:
                self._ready[place] = None
        if self._ready:
            self._soon()

    def unfollow(self, topic_id: UUID) -> None:
        for place in self._places.pop(topic_id, ()):
            place.reader.unlisten(place.woken)
            self._ready.pop(place, None)

    def begin_with(self, history: list[Delivered]) -> None:
        """Messages of before, to come first."""
        self._history.extend(history)

    # -- delivering -------------------------------------------------------------------------------------------------

    def woken(self, place: _LivePlace) -> None:
        """A partition grew."""
        self._ready[place] = None
        self._pump()

    def _skip(self) -> None:
        """What came while it could take nothing is not for it."""
        for places in self._places.values():
            for place in places:
                end = place.partition.stable_offset
                if place.position < end:
                    self._missed(place, end - place.position)
                    place.move(end)
        self._ready.clear()

    def _before_new(self) -> bool:
        while self._history and self._credit > 0:
            taken = [self._history.popleft() for _ in range(min(self._credit, len(self._history)))]
            self._hand_over(unexpired(taken, self._now_ms()))
        return bool(self._history)

    def _took(self, place: _LivePlace, messages: list[Delivered]) -> None:
        self._hand_over(messages)

    def _hand_over(self, messages: list[Delivered]) -> None:
        if messages:
            self._credit -= len(messages)
            self._deliver(messages)

    def _missed(self, place: _LivePlace, offsets: int) -> None:
        self.dropped += offsets
        place.partition.topic.dropped += offsets
        self._hub.meters.dropped += offsets

    def failed(self, error: WaystationError) -> None:
        if not self._closed:
            self.close()
            self._on_end(error)


class _LivePlace(ReadPosition):
    """A place that wakes its feed."""

    __slots__ = ("_feed",)

    def __init__(self, reader: PartitionReader, position: int, feed: LiveFeed) -> None:
        super().__init__(reader, position)
        self._feed = feed

    def woken(self) -> None:
        if self.behind:
            self._feed.woken(self)


class LiveFeeds:
    """All live subscribers of a broker, told of topics that come, grow and go. One per broker."""

    def __init__(self, topics: Topics, messages: Messages, readers: Readers, clock: Clock, meters: Meters) -> None:
        self.now_ms = clock.now_ms
        self.meters = meters
        self._topics = topics
        self._messages = messages
        self._readers = readers
        self._by_name: dict[str, dict[LiveFeed, None]] = {}
        self._by_pattern: dict[LiveFeed, None] = {}
        self._open: set[LiveFeed] = set()
        self._known: dict[UUID, tuple[Topic, int]] = {}
        self._due = False
        self.version = 0  # counts who came and went
        topics.subscribe_changes(self._changed)

    async def open(
        self,
        selection: Selection,
        deliver: Deliver,
        on_end: OnEnd,
        *,
        filter: Filter | None = None,
        history: int = 0,
        slow: Slow = "block",
    ) -> LiveFeed:
        """A subscriber that gets the last `history` messages that concern it, and then everything from now on."""
        check_history(history)
        self._look()
        feed = LiveFeed(self, self._topics, selection, filter, slow, deliver, on_end)
        chosen = selection.matching(self._topics)
        now_ms = self.now_ms()

        def accept(one: Delivered) -> bool:
            return not expired(one, now_ms) and (filter is None or filter.matches(one.message, topic=one.source))

        # It follows before its history is read: what is appended meanwhile comes behind that, and once.
        ends = [(partition, partition.stable_offset) for topic in chosen for partition in topic.partitions]
        for topic in chosen:
            feed.follow(topic, self._readers, from_start=False)
        for name in selection.names:
            self._by_name.setdefault(name, {})[feed] = None
        if selection.patterns:
            self._by_pattern[feed] = None
        self._open.add(feed)
        self.version += 1
        try:
            feed.begin_with(await self._messages.latest_away(ends, history, accept))
        except BaseException:
            feed.close()
            raise
        return feed

    def closed(self, feed: LiveFeed) -> None:
        self.version += 1
        self._open.discard(feed)
        self._by_pattern.pop(feed, None)
        for name in feed.selection.names:
            feeds = self._by_name.get(name, {})
            feeds.pop(feed, None)
            if not feeds:
                self._by_name.pop(name, None)

    @property
    def open_feeds(self) -> int:
        """The subscribers there are."""
        return len(self._open)

    def count(self, topic: str) -> int:
        """How many follow this topic."""
        found = self._topics.find(topic)
        return 0 if found is None or found.internal else len(self._interested(found))

    def _interested(self, topic: Topic) -> dict[LiveFeed, None]:
        feeds = dict(self._by_name.get(topic.name, {}))
        feeds.update((feed, None) for feed in self._by_pattern if feed.selection.wants(topic))
        return feeds

    def _changed(self) -> None:
        """Many topics may change at once; looking is left to when that is over."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._due = False
        before, self._known = self._known, {topic.id: (topic, len(topic.partitions)) for topic in self._topics}
        if not (self._by_name or self._by_pattern):
            return
        for topic_id, (topic, _) in before.items():
            if topic_id not in self._known:
                for feed in self._interested(topic):
                    feed.unfollow(topic_id)
        for topic_id, (topic, partitions) in self._known.items():
            if (topic_id not in before or before[topic_id][1] < partitions) and not topic.internal:
                for feed in self._interested(topic):
                    feed.follow(topic, self._readers, from_start=True)
