"""What there is, as every protocol shows it: topics with their partitions, and the counters of `stats`.

Nothing here changes anything but `commit_offsets`, which is here because two protocols would else write it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from waystation.errors import NotFound
from waystation.groups.machines.calls import OffsetToCommit
from waystation.protocol import TopicInfo
from waystation.routing.matching.patterns import compile_pattern

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker
    from waystation.topics.topics import Topic


def topic_info(broker: ManagedBroker, name: str) -> TopicInfo:
    """A topic as it is now."""
    topic = broker.topics.find(name)
    if topic is None:
        raise NotFound(f"there is no topic {name!r}", "topic", name)
    return _info(broker, topic)


def topic_list(
    broker: ManagedBroker, pattern: str = "#", shows: Callable[[str], bool] | None = None
) -> list[TopicInfo]:
    """The topics whose names match and that `shows` lets through, in the order of names; not the broker's own."""
    wanted = compile_pattern(pattern)
    found = [
        topic
        for topic in broker.topics
        if not topic.internal and wanted.matches(topic.name) and (shows is None or shows(topic.name))
    ]
    return [_info(broker, topic) for topic in sorted(found, key=lambda topic: topic.name)]


def _info(broker: ManagedBroker, topic: Topic) -> TopicInfo:
    return TopicInfo(
        topic.name,
        [(one.start_offset, one.end_offset, one.size_bytes) for one in topic.partitions],
        dict(topic.overrides),
        broker.subscriptions.count(topic.name),
    )


def stats(broker: ManagedBroker) -> dict[str, Any]:
    """Counters and what there is: the names that the plain actions have, and more.

    `messages_published` and `messages_delivered` are counted since the start of the broker, over all protocols, topics
    and queues; redeliveries count. `total_subscriptions` are those that are open, each once.
    """
    topics: dict[str, Any] = {}
    for info in topic_list(broker):
        topics[info.topic] = {
            "partitions": len(info.partitions),
            "total_messages": sum(end - start for start, end, _ in info.partitions),
            "total_bytes": sum(size for _, _, size in info.partitions),
            "subscriptions": info.subscribers,
        }
    queues = broker.queues.stats()
    return {
        "messages_published": sum(meter.published for meter in broker.meters.protocols),
        "messages_delivered": sum(meter.delivered for meter in broker.meters.protocols),
        "total_topics": len(topics),
        "total_subscriptions": broker.subscriptions.total(),
        "topics": topics,
        "active_consumers": queues["consumers"],
        "queues": queues,
        "uptime_ms": broker.world.clock.now_ms() - broker.started_ms,
    }


async def commit_offsets(broker: ManagedBroker, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
    """Offsets of a group, all of them or the first error."""
    results = await broker.groups.commit_offsets(group, [OffsetToCommit(*offset) for offset in offsets])
    for result in results:
        if result.error is not None:
            raise result.error
