"""What operators ask of a broker as a machine: its disk, its epochs, its features.

Called through the registry only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from waystation.errors import WaystationError
from waystation.protocols.kafka.requests import nodes
from waystation.protocols.kafka.requests.api_versions import FEATURES
from waystation.protocols.kafka.requests.registry import Call

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.types import Partition

UNKNOWN = -1
METADATA_TOPIC = "__cluster_metadata"
"""What Kafka calls the log of its quorum."""


def _refused(call: Call, ask: Callable[[], object]) -> tuple[ErrorCode, str] | None:
    """The refusal of one who may not; None: it may."""
    try:
        ask()
    except WaystationError as error:
        return call.code(error), str(error)
    return None


# -- DescribeLogDirs -------------------------------------------------------------------------------------------------


async def describe_log_dirs(call: Call) -> object:
    """One folder with everything that this broker has, and the room on its disk."""
    make = call.make
    try:
        total, usable = await call.access.cluster.disk_room()
    except WaystationError as error:
        return make("DescribeLogDirsResponse", throttle_time=0, error_code=call.code(error), results=())
    topics = tuple(
        make(
            "DescribeLogDirsTopic",
            name=name,
            partitions=tuple(
                make(
                    "DescribeLogDirsPartition",
                    partition_index=partition.index,
                    partition_size=partition.size_bytes,
                    offset_lag=0,
                    is_future_key=False,
                )
                for partition in partitions
            ),
        )
        for name, partitions in _described(call.access, call.request.topics)
    )
    folder = make(
        "DescribeLogDirsResult",
        error_code=ErrorCode.none,
        log_dir=call.broker.root,
        topics=topics,
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=False,
    )
    return make("DescribeLogDirsResponse", throttle_time=0, error_code=ErrorCode.none, results=(folder,))


def _described(access: Access, asked: Iterable[Any] | None) -> Iterator[tuple[str, list[Partition]]]:
    """Null means all. What does not exist, or not here, is left out, as Kafka does."""
    if asked is None:
        for topic in access.topics.listing():
            here = [partition for partition in topic.partitions if partition.here]
            if here:
                yield topic.name, here
        return
    for entry in asked:
        found = access.topics.find(entry.topic)
        if found is not None:
            indexes = set(entry.partitions)
            yield found.name, [one for one in found.partitions if one.index in indexes and one.here]


# -- AlterReplicaLogDirs ---------------------------------------------------------------------------------------------


def alter_replica_log_dirs(call: Call) -> object:
    """There is one folder: what is to be moved there is there, and there is no other."""
    topics: dict[str, dict[int, ErrorCode]] = {}
    for folder in call.request.dirs:
        for asked in folder.topics:
            topic = topics.setdefault(asked.name, {})
            topic.update((index, _moved(call, folder.path, asked.name, index)) for index in asked.partitions)
    make = call.make
    results = tuple(
        make(
            "AlterReplicaLogDirTopicResult",
            topic_name=name,
            partitions=tuple(
                make("AlterReplicaLogDirPartitionResult", partition_index=index, error_code=code)
                for index, code in partitions.items()
            ),
        )
        for name, partitions in topics.items()
    )
    return make("AlterReplicaLogDirsResponse", throttle_time=0, results=results)


def _moved(call: Call, path: str, topic: str, index: int) -> ErrorCode:
    try:
        call.access.cluster.check_alter()
        here = call.access.topics.get(topic).partition(index).here
    except WaystationError as error:
        return call.code(error)
    if not here:
        return ErrorCode.replica_not_available
    return ErrorCode.none if path.rstrip("/") == call.broker.root.rstrip("/") else ErrorCode.log_dir_not_found


# -- DescribeQuorum --------------------------------------------------------------------------------------------------


def describe_quorum(call: Call) -> object:
    """The catalog has the place of Kafka's metadata log, its revision that of the offsets. There is no quorum of
    brokers: the one that answers is told as the leader, since it knows how far it is, and of the others only that they
    live."""
    make = call.make
    try:
        revision = call.access.cluster.catalog_revision()
    except WaystationError as error:
        return make("DescribeQuorumResponse", error_code=call.code(error), error_message=str(error))
    topics = tuple(
        make(
            "TopicData",
            topic_name=asked.topic_name,
            partitions=tuple(
                _quorum(call, asked.topic_name, one.partition_index, revision) for one in asked.partitions
            ),
        )
        for asked in call.request.topics
    )
    name = call.listener.kafka_name
    told = tuple(
        make("Node", node_id=one.node_id, listeners=(make("Listener", name=name, host=one.host, port=one.port),))
        for one in nodes.endpoints(call.access.view, call.listener)
    )
    return make("DescribeQuorumResponse", error_code=ErrorCode.none, error_message=None, topics=topics, nodes=told)


def _quorum(call: Call, topic: str, index: int, revision: int) -> object:
    make, node = call.make, call.broker.node_id
    if (topic, index) != (METADATA_TOPIC, 0):
        error, message = ErrorCode.unknown_topic_or_partition, f"only {METADATA_TOPIC}-0 has a quorum"
        return make("PartitionData", partition_index=index, error_code=error, error_message=message, leader_id=UNKNOWN)
    now_ms = call.broker.world.clock.now_ms()
    voters = [make("ReplicaState", replica_id=node, log_end_offset=revision, last_caught_up_timestamp=now_ms)]
    voters += [
        make("ReplicaState", replica_id=one.id, log_end_offset=UNKNOWN, last_caught_up_timestamp=UNKNOWN)
        for one in call.access.view.nodes()
        if one.id != node
    ]
    return make(
        "PartitionData",
        partition_index=index,
        error_code=ErrorCode.none,
        error_message=None,
        leader_id=node,
        leader_epoch=1,
        high_watermark=revision,
        current_voters=tuple(voters),
        observers=(),
    )


# -- OffsetForLeaderEpoch --------------------------------------------------------------------------------------------


def offset_for_leader_epoch(call: Call) -> object:
    """Where an epoch ended: a consumer that read beyond that has read what was lost, and learns it here (KIP-320)."""
    make = call.make
    topics = tuple(
        make(
            "OffsetForLeaderTopicResult",
            topic=asked.topic,
            partitions=tuple(_epoch_end(call, asked.topic, entry) for entry in asked.partitions),
        )
        for asked in call.request.topics
    )
    return make("OffsetForLeaderEpochResponse", throttle_time=0, topics=topics)


def _epoch_end(call: Call, topic: str, asked: Any) -> object:
    error: WaystationError | None = None
    epoch = end = UNKNOWN
    try:
        partition = call.access.topics.get(topic).partition(asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
        partition.check_leads()
        if asked.leader_epoch == partition.epoch:
            epoch, end = partition.epoch, partition.end_offset  # also when nothing was written in it yet
        else:
            epoch, end = partition.epochs.end_offset_for(asked.leader_epoch, partition.end_offset)
    except WaystationError as caught:
        error = caught
    return call.make(
        "EpochEndOffset", error_code=call.code(error), partition=asked.partition, leader_epoch=epoch, end_offset=end
    )


# -- UpdateFeatures --------------------------------------------------------------------------------------------------


def update_features(call: Call) -> object:
    """Features are what this release is: asking for the level that holds is fine, for another one is refused."""
    request, make = call.request, call.make
    refused = _refused(call, call.access.cluster.check_alter)
    if refused is not None:
        code, message = refused
        return make("UpdateFeaturesResponse", throttle_time=0, error_code=code, error_message=message, results=())
    refusals = {update.feature: _refusal(update) for update in request.feature_updates}
    results = tuple(
        make(
            "UpdatableFeatureResult",
            feature=feature,
            error_code=ErrorCode.none if refusal is None else refusal[0],
            error_message=None if refusal is None else refusal[1],
        )
        for feature, refusal in refusals.items()
    )
    first = next((refusal for refusal in refusals.values() if refusal is not None), None)
    if call.version < 2:  # from v2 on there is one error for the whole request, before it one for each feature
        first = None
    return make(
        "UpdateFeaturesResponse",
        throttle_time=0,
        error_code=ErrorCode.none if first is None else first[0],
        error_message=None if first is None else first[1],
        results=results,
    )


def _refusal(update: Any) -> tuple[ErrorCode, str] | None:
    if update.feature not in FEATURES:
        return ErrorCode.invalid_request, f"there is no feature {update.feature!r}; there are {', '.join(FEATURES)}"
    level = FEATURES[update.feature][2]
    if update.max_version_level == level:
        return None
    return (
        ErrorCode.invalid_update_version,
        f"feature {update.feature!r} has level {level} in this release, and no other",
    )
