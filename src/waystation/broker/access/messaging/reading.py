"""`ReadingAccess`: what topics there are, and reading them by offsets, by time, or the latest.

Every verb asks before it reads. What was given to a reader of record batches is metered and traced here; a message is
traced by the protocol that shows it. On the loop's thread only; what may take long to decode is decoded on a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from waystation.admin.views import overview
from waystation.broker.access.messaging.family import Family
from waystation.errors import NotFound, OffsetOutOfRange
from waystation.message import Delivered, size_of
from waystation.observe.meters import ProtocolMeter
from waystation.observe.spans import TracedPlace
from waystation.protocol import PartitionBatches, Position, TopicInfo
from waystation.security.principals import Principal
from waystation.topics import batch_reading
from waystation.topics.expiry import expired
from waystation.topics.reading import read_away
from waystation.topics.records.record_tracing import traced_from

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.topics.partitions.partition import Partition
    from waystation.topics.topics import Topic


class TopicSlice(NamedTuple):
    """Some messages of a partition, where to read on, and where it ends for now."""

    messages: list[Delivered]
    next_offset: int
    end_offset: int


class ReadingAccess(Family):
    """Made by `Access`."""

    __slots__ = ("_count", "_count_shown", "_meter")

    def __init__(
        self,
        broker: Broker,
        principal: Principal,
        meter: ProtocolMeter,
        count: Callable[[int, int], None],
        count_shown: Callable[[int, int], None],
    ) -> None:
        """`count`: is told how many records, of how many bytes, somebody gets; `count_shown`: how many messages are
        shown one by one."""
        super().__init__(broker, principal)
        self._meter = meter
        self._count = count
        self._count_shown = count_shown

    # -- which there are ----------------------------------------------------------------------------------------------

    def find(self, topic: str) -> Topic | None:
        self._ask("describe", "topic", topic)
        return self._broker.topics.find(topic)

    def get(self, topic: str) -> Topic:
        found = self.find(topic)
        if found is None:
            raise NotFound(f"there is no topic {topic!r}", "topic", topic)
        return found

    def describe(self, topic: str) -> TopicInfo:
        """Its partitions, its own settings, its subscribers."""
        self._ask("describe", "topic", topic)
        return overview.topic_info(self._broker, topic)

    def matching(self, pattern: str = "#") -> list[TopicInfo]:
        """The topics whose names match and that the principal may see, in the order of names; not the broker's own."""
        return overview.topic_list(self._broker, pattern, lambda name: self._sees("topic", name))

    # -- messages -----------------------------------------------------------------------------------------------------

    async def read(
        self,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        time_ms: int | None = None,
        count: int,
        max_bytes: int,
        wait_ms: int = 0,
    ) -> TopicSlice:
        """Committed messages whose time to live is not over, from an offset on, or from the first that is not older
        than a time; else from the beginning. `wait_ms`: how long to wait for the first. Those that have expired count
        towards `max_bytes`: there may be none, and more to read."""
        self._ask("read", "topic", topic)
        source = self.get(topic).partition(partition)
        if time_ms is not None:
            found = source.find_time(time_ms)
            offset = source.stable_offset if found is None else found[0]
        elif offset is None:
            offset = source.start_offset
        messages, following = await self._read(source, offset, count, max_bytes)
        if not messages and wait_ms:
            await batch_reading.grown([(source, following)], wait_ms)
            messages, following = await self._read(source, following, count, max_bytes)
        self._shown(messages)
        return TopicSlice(messages, following, source.stable_offset)

    async def _read(self, partition: Partition, offset: int, count: int, max_bytes: int) -> tuple[list[Delivered], int]:
        messages: list[Delivered] = []
        size = 0
        now_ms = self._broker.world.clock.now_ms()
        while len(messages) < count and size < max_bytes:
            try:
                chunk = await read_away(self._broker.world.offload, partition, offset, most=count - len(messages))
            except OffsetOutOfRange:
                partition.check_leads()  # a follower may lack what its leader has
                raise
            if chunk.next == offset:
                break
            offset = chunk.next
            for delivered in chunk.messages:
                size += size_of(delivered.message)
                if not expired(delivered, now_ms):
                    messages.append(delivered)
                if len(messages) == count or size >= max_bytes:
                    return messages, delivered.offset + 1
        return messages, offset

    async def history(self, topic: str, count: int) -> list[Delivered]:
        """The last `count` messages of a topic whose time to live is not over, oldest first."""
        self._ask("read", "topic", topic)
        messages = await self._broker.messages.history_away(topic, count)
        self._shown(messages)
        return messages

    def _shown(self, messages: Sequence[Delivered]) -> None:
        self._count_shown(len(messages), sum(len(one.message.payload) for one in messages))

    # -- record batches -----------------------------------------------------------------------------------------------

    def read_batches(self, positions: Sequence[Position], max_bytes: int, *, committed: bool) -> list[PartitionBatches]:
        """One answer for each position. All of them together have `max_bytes` at most, or one batch."""
        places = self._places(positions)
        answers = batch_reading.read_batches(places, max_bytes, committed=committed)
        for (partition, offset), answer in zip(places, answers, strict=True):
            if answer.batches:
                count = answer.next_offset - offset  # as offsets say it, as for a Kafka fetch
                self._count(count, len(answer.batches))
                partition.topic.delivered += count
                self._trace(answer, offset)
        return answers

    async def await_records(self, positions: Sequence[Position], wait_ms: int, *, committed: bool) -> bool:
        """Whether there is something to read at one of these, or one of them is deleted."""
        return await batch_reading.grown(self._places(positions), wait_ms, committed=committed)

    def _places(self, positions: Sequence[Position]) -> Sequence[batch_reading.Position]:
        for topic in {topic for topic, _, _ in positions}:
            self._ask("read", "topic", topic)
        topics = self._broker.topics
        return [(topics.get(topic).partition(index), offset) for topic, index, offset in positions]

    def _trace(self, answer: PartitionBatches, offset: int) -> None:
        tracing = self._broker.tracing
        if tracing is not None:
            found = traced_from(answer.batches, offset)
            if found:
                tracing.fetched(TracedPlace("topic", answer.topic, self._meter.name), answer.partition, found)
