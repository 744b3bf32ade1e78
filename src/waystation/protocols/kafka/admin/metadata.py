"""Metadata, DescribeTopicPartitions and DescribeCluster: what exists and where to find it.

Invariant: an answer tells what exists at the moment it is made. A topic that a Metadata request creates is durable and
ready in that same answer, so a client never has to ask twice. Called through the registry only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import NOBODY, PartitionReplicas
from waystation.errors import Invalid, UnknownTopicId, WaystationError
from waystation.protocols.kafka.requests import nodes
from waystation.protocols.kafka.requests.authorized import authorized
from waystation.protocols.kafka.requests.errors_map import code_of
from waystation.protocols.kafka.requests.registry import Call

if TYPE_CHECKING:
    from waystation.broker.access.types import Partition, Topic

UNKNOWN = PartitionReplicas(NOBODY, -1, (), ())
"""A partition of which nothing was told yet, or whose topic is being deleted."""
LISTENER_ERRORS = 6
"""From this version of Metadata on, a client can be told that a leader is there, but has no listener for it."""

MAX_PAGE_PARTITIONS = 2000
"""Partitions in one DescribeTopicPartitions answer, whatever the client asks (Kafka's own limit)."""


BROKERS, CONTROLLERS = 1, 2
"""Endpoint types of DescribeCluster."""


# -- Metadata ------------------------------------------------------------------------------------------------------


async def metadata(call: Call) -> object:
    request, broker, view = call.request, call.broker, call.access.view
    asked = request.topics
    if asked is None or (call.version == 0 and not asked):  # v0 had no null arrays: empty meant all
        topics = [_topic(call, topic) for topic in call.access.topics.listing()]
    else:
        topics = [await _asked_topic(call, entry) for entry in _distinct(asked)]
    wanted = getattr(request, "include_cluster_authorized_operations", False)
    operations = authorized(call, "cluster", "*", asked=wanted)
    make = call.make
    return make(
        "MetadataResponse",
        throttle_time=0,
        brokers=tuple(
            make("MetadataResponseBroker", node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in nodes.endpoints(view, call.listener)
        ),
        cluster_id=broker.cluster_id,
        controller_id=view.controller(),
        topics=tuple(topics),
        cluster_authorized_operations=operations,
        error_code=ErrorCode.none,
    )


def _distinct(entries: Iterable[Any]) -> Iterator[Any]:
    """The first of each: a topic that is asked for twice is told once."""
    seen: set[tuple[object, object]] = set()
    for entry in entries:
        key = (entry.name, getattr(entry, "topic_id", None))
        if key not in seen:
            seen.add(key)
            yield entry


async def _asked_topic(call: Call, entry: Any) -> object:
    name, topic_id = entry.name, getattr(entry, "topic_id", None)
    topics = call.access.topics
    try:
        if call.version < 12 and (topic_id is not None or name is None):
            raise Invalid(f"Metadata v{call.version} asks for topics by name only")
        if topic_id is not None:
            return _topic(call, topics.get(topic_id))
        if name is None:
            raise UnknownTopicId("neither a topic's name nor its id was given")
        if getattr(call.request, "allow_auto_topic_creation", True):
            return _topic(call, await topics.ensure(name))
        return _topic(call, topics.describe(name))
    except WaystationError as error:
        return _no_topic(call, name, topic_id, call.code(error))


def _placed(call: Call, partition: Partition) -> dict[str, object]:
    """Where a partition is."""
    view = call.access.view
    placed = view.placed(partition.topic.id, partition.index) or UNKNOWN
    leader = nodes.endpoint_with_id(view, placed.leader, call.listener)
    return {
        "error_code": _leader_error(call, placed.has_leader, leader is not None),
        "partition_index": partition.index,
        "leader_id": nodes.NO_NODE if leader is None else leader.node_id,
        "leader_epoch": placed.epoch,
        "replica_nodes": placed.replicas,
        "isr_nodes": placed.in_sync,
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": placed.offline,
    }


def _leader_error(call: Call, lives: bool, reachable: bool) -> ErrorCode:
    if reachable:
        return ErrorCode.none
    told = call.name != "metadata" or call.version >= LISTENER_ERRORS
    return ErrorCode.listener_not_found if lives and told else ErrorCode.leader_not_available


def _topic(call: Call, topic: Topic) -> object:
    make = call.make
    asked = getattr(call.request, "include_topic_authorized_operations", False)
    return make(
        "MetadataResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=tuple(
            make("MetadataResponsePartition", **_placed(call, partition)) for partition in topic.partitions
        ),
        topic_authorized_operations=authorized(call, "topic", topic.name, asked=asked),
    )


def _no_topic(call: Call, name: str | None, topic_id: object, error: ErrorCode) -> object:
    if name is None and call.version < 12:
        name = ""  # the name can be null only from v12 on
    return call.make("MetadataResponseTopic", error_code=error, name=name, topic_id=topic_id, partitions=())


# -- DescribeTopicPartitions -----------------------------------------------------------------------------------------


def describe_topic_partitions(call: Call) -> object:
    """Topics in the order of their names, a page of partitions at a time; the cursor is where the next page starts."""
    request, topics = call.request, call.access.topics
    cursor = request.cursor
    names = sorted({entry.name for entry in request.topics})
    if cursor is not None and cursor.partition_index < 0:
        return _page(call, [_undescribed(call, name, ErrorCode.invalid_request) for name in names], None)
    everything = not names
    if everything:
        names = sorted(topic.name for topic in topics.listing())
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    left = max(1, min(request.response_partition_limit, MAX_PAGE_PARTITIONS))
    told: list[object] = []
    for name in names:
        if left == 0:
            return _page(call, told, (name, 0))
        try:
            topic = topics.describe(name)
        except WaystationError as error:
            told.append(_undescribed(call, name, code_of(error)))
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        told.append(_described(call, topic, first, first + left))
        if first + left < len(topic.partitions):
            return _page(call, told, (name, first + left))
        left -= max(0, len(topic.partitions) - first)
    return _page(call, told, None)


def _page(call: Call, topics: list[object], after: tuple[str, int] | None) -> object:
    make = call.make
    cursor = None if after is None else make("Cursor", topic_name=after[0], partition_index=after[1])
    return make("DescribeTopicPartitionsResponse", throttle_time=0, topics=tuple(topics), next_cursor=cursor)


def _described(call: Call, topic: Topic, first: int, end: int) -> object:
    make = call.make
    return make(
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=tuple(
            make("DescribeTopicPartitionsResponsePartition", **_placed(call, partition))
            for partition in topic.partitions[first:end]
        ),
        topic_authorized_operations=authorized(call, "topic", topic.name),
    )


def _undescribed(call: Call, name: str, error: ErrorCode) -> object:
    return call.make("DescribeTopicPartitionsResponseTopic", error_code=error, name=name, topic_id=None, partitions=())


# -- DescribeCluster -------------------------------------------------------------------------------------------------


def describe_cluster(call: Call) -> object:
    request, broker, make = call.request, call.broker, call.make
    kind = getattr(request, "endpoint_type", BROKERS)
    if kind != BROKERS:
        wrong = ErrorCode.mismatched_endpoint_type if kind == CONTROLLERS else ErrorCode.unsupported_endpoint_type
        message = f"this is a broker's endpoint (type {BROKERS}); it cannot tell of endpoints of type {kind}"
        return make("DescribeClusterResponse", throttle_time=0, error_code=wrong, error_message=message)
    asked = request.include_cluster_authorized_operations
    view = call.access.view
    return make(
        "DescribeClusterResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=view.controller(),
        brokers=tuple(
            make("DescribeClusterBroker", broker_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in nodes.endpoints(view, call.listener)
        ),
        cluster_authorized_operations=authorized(call, "cluster", "*", asked=asked),
    )
