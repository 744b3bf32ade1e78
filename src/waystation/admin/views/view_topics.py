"""Topics as every protocol shows them, in pages.

`topics_page(broker, TopicsQuery) -> TopicList`, `topic_view(broker, name) -> TopicOut`,
`topic_offsets(broker, TopicOffsetsQuery) -> TopicOffsets`; and what changes something: `alter_topic` and
`delete_records`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.admin.sight import EVERYTHING, Sight
from waystation.errors import Conflict, NotAllowed, NotFound
from waystation.paging import After, Limit, Next, Pace, Search, Total, page_of
from waystation.routing.matching.patterns import compile_pattern
from waystation.topics.partitions.start_position import offset_of, parse_start

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker
    from waystation.topics.topics import Topic


class PartitionOut(msgspec.Struct):
    partition: int
    start_offset: int
    end_offset: Annotated[int, Meta(description="what the next record gets")]
    bytes: int
    high_watermark: Annotated[int, Meta(description="readers see what is before it")]
    stable_offset: Annotated[int, Meta(description="last stable offset: no transaction before it is open")]
    leader: Annotated[int | None, Meta(description="node id; null: another broker leads it")]
    leader_epoch: int


class TopicOut(msgspec.Struct):
    """A topic as it is now."""

    topic: str
    partitions: list[PartitionOut]
    settings: Annotated[dict[str, str], Meta(description="those that are the topic's own")]
    subscribers: int
    messages: Annotated[
        int,
        Meta(
            description="offsets from the first to the last. Markers of transactions and aborted messages have offsets,"
            " too, and compaction leaves gaps: of such topics there are fewer messages than this"
        ),
    ]
    bytes: Annotated[int, Meta(description="on the disk")]
    rate: Annotated[float, Meta(description="messages published per second, of late; null: not known")] | None
    retention_ms: Annotated[int, Meta(description="-1: forever")]
    retention_bytes: Annotated[int, Meta(description="of a partition; -1: any number")]
    retention_messages: Annotated[int, Meta(description="of a partition, the newest; -1: any number")]
    cleanup_policy: str
    internal: Annotated[bool, Meta(description="the broker's own")]
    id: Annotated[str, Meta(description="its UUID; a topic that is deleted and re-created has another")]
    created_ms: Annotated[int | None, Meta(description="null: not known, an earlier version made it")]
    dropped: Annotated[int, Meta(description="offsets that live subscribers missed since the broker was started")]


class TopicList(msgspec.Struct):
    topics: list[TopicOut]
    next: Next
    total: Total


class TopicsQuery(msgspec.Struct):
    pattern: Annotated[str, Meta(description="`*` is one word, `#` any number of them, words between dots")] = "#"
    search: Search = ""
    after: After = ""
    limit: Limit = 100
    internal: Annotated[bool, Meta(description="the broker's own, too")] = False


class TopicChange(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What shall change. A setting that is null goes back to the broker's default."""

    partitions: Annotated[int, Meta(ge=1, description="the new total; it can only grow")] | None = None
    settings: dict[str, str | None] = {}


class AlterTopic(TopicChange, kw_only=True):
    topic: str


class StartQuery(msgspec.Struct, kw_only=True):
    at: Annotated[
        str,
        Meta(
            description="earliest, latest, an offset, -N (the last N), a time like 2026-03-01T12:00 or @1772366400000,"
            " or an age like 15m"
        ),
    ] = "latest"


class TopicOffsetsQuery(StartQuery, kw_only=True):
    topic: str


class PartitionOffset(msgspec.Struct):
    partition: int
    offset: Annotated[int, Meta(description="the first one there; where nothing is that new: the end")]
    start_offset: int
    end_offset: int
    stable_offset: Annotated[int, Meta(description="where the first open transaction begins; else the end")]


class TopicOffsets(msgspec.Struct):
    topic: str
    offsets: list[PartitionOffset]


class RecordsToDelete(msgspec.Struct):
    """What shall go: everything in a partition that is before an offset."""

    before_offset: Annotated[int, Meta(ge=-1, description="-1: everything")]
    partition: Annotated[int, Meta(ge=0)] = 0


class DeleteRecords(RecordsToDelete, kw_only=True):
    topic: str


class DeletedRecords(msgspec.Struct):
    """Where the partition begins now."""

    topic: str
    partition: int
    start_offset: int


async def topics_page(broker: ManagedBroker, query: TopicsQuery, sight: Sight = EVERYTHING) -> TopicList:
    """The topics that match, in the order of their names."""
    wanted = compile_pattern(query.pattern)
    names = sorted(
        topic.name
        for topic in broker.topics
        if (query.internal or not topic.internal) and (query.pattern == "#" or wanted.matches(topic.name))
    )
    page = await page_of(await sight.names("topic", names, query.search), "", query.after or None, query.limit)
    pace = Pace(broker.world.clock)
    shown: list[TopicOut] = []
    for name in page.names:
        topic = broker.topics.find(name)
        if topic is not None:  # it may have been deleted a moment ago
            shown.append(_shown(broker, topic))
        await pace.breathe()
    return TopicList(shown, page.next, page.total)


def topic_view(broker: ManagedBroker, name: str) -> TopicOut:
    return _shown(broker, found(broker, name))


def found(broker: ManagedBroker, name: str) -> Topic:
    topic = broker.topics.find(name)
    if topic is None:
        raise NotFound(f"there is no topic {name!r}", "topic", name)
    return topic


async def topic_offsets(broker: ManagedBroker, query: TopicOffsetsQuery) -> TopicOffsets:
    """Where a start position is in each partition. By time this may read from the disk, so it goes in steps."""
    topic = found(broker, query.topic)
    start = parse_start(query.at, broker.world.clock.now_ms())
    pace = Pace(broker.world.clock)
    offsets = []
    for partition in topic.partitions:
        offset = offset_of(start, partition)
        first, end, stable = partition.start_offset, partition.visible_offset, partition.stable_offset
        offsets.append(PartitionOffset(partition.index, offset, first, end, stable))
        await pace.breathe()
    return TopicOffsets(topic.name, offsets)


def partitions_to_add(broker: ManagedBroker, asked: AlterTopic) -> int:
    """How many partitions `alter_topic` would create; raises what it would raise about them."""
    there = broker.topics.find(asked.topic)
    if there is None or asked.partitions is None or asked.partitions == len(there.partitions):
        return 0
    broker.topics.check_growth(asked.topic, asked.partitions)
    return asked.partitions - len(there.partitions)


async def alter_topic(broker: ManagedBroker, asked: AlterTopic) -> TopicOut:
    """Settings first, then partitions; the number of partitions that it has is no change."""
    topics = broker.topics
    found(broker, asked.topic)
    if asked.settings:

        def change(present: dict[str, str]) -> dict[str, str]:
            merged: dict[str, str | None] = {**present, **asked.settings}
            return {key: value for key, value in merged.items() if value is not None}

        await topics.alter(asked.topic, change)
    if asked.partitions is not None and asked.partitions != len(topics.get(asked.topic).partitions):
        await topics.add_partitions(asked.topic, asked.partitions)
    return topic_view(broker, asked.topic)


async def delete_records(broker: ManagedBroker, asked: DeleteRecords) -> DeletedRecords:
    """Moves the start of a partition, durably. What was there is deleted for every reader."""
    topic = found(broker, asked.topic)
    if topic.internal:
        raise NotAllowed(f"topic {asked.topic!r} is the broker's own; its records cannot be deleted")
    partition = topic.partition(asked.partition)
    if topic.settings.compacts and not topic.settings.deletes:
        raise Conflict(
            f"topic {asked.topic!r} is compacted and keeps the last message of every key;"
            " delete one by publishing its key with the type 'tombstone' and no payload"
        )
    return DeletedRecords(asked.topic, asked.partition, await partition.delete_records(asked.before_offset))


def _shown(broker: ManagedBroker, topic: Topic) -> TopicOut:
    partitions = []
    messages = size = 0
    for partition in topic.partitions:
        one = PartitionOut(
            partition.index,
            partition.start_offset,
            partition.end_offset,
            partition.size_bytes,
            partition.visible_offset,
            partition.stable_offset,
            broker.node_id if partition.leads else None,
            partition.epoch,
        )
        messages += one.end_offset - one.start_offset
        size += one.bytes
        partitions.append(one)
    settings = topic.settings
    rates = broker.meters.rates.topic(topic.name)
    return TopicOut(
        topic.name,
        partitions,
        dict(topic.overrides),
        broker.subscriptions.count(topic.name),
        messages,
        size,
        None if rates is None else rates.publish,
        settings.retention_ms,
        settings.retention_bytes,
        settings.retention_messages,
        settings.cleanup_policy,
        topic.internal,
        str(topic.id),
        topic.row.created_ms or None,
        topic.dropped,
    )
