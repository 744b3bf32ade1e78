"""ListOffsets: the offset at the start, at the end, at a time, or of the latest timestamp."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import Partition
from waystation.errors import OffsetNotAvailable, WaystationError
from waystation.protocols.kafka.requests.registry import Call

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

READ_COMMITTED = 1

KNOWS_NOT_AVAILABLE = 5
"""From this version on a client knows OFFSET_NOT_AVAILABLE."""


def list_offsets(call: Call) -> object:
    request = call.request
    committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
    topics = []
    for topic in request.topics:
        partitions = [_answer(call, topic.name, wanted, committed) for wanted in topic.partitions]
        topics.append(call.make("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(partitions)))
    return call.make("ListOffsetsResponse", throttle_time=0, topics=tuple(topics))


def _answer(call: Call, topic: str, wanted: object, committed: bool) -> object:
    index = wanted.partition_index  # type: ignore[attr-defined]
    timestamp = wanted.timestamp  # type: ignore[attr-defined]
    leader_epoch = getattr(wanted, "current_leader_epoch", -1)
    error = ErrorCode.none
    offset, at = -1, -1
    epoch = -1
    try:
        partition = call.access.topics.get(topic).partition(index)
        partition.check_epoch(leader_epoch)
        partition.check_leads()
        offset, at = _find(partition, timestamp, committed)
        epoch = partition.epoch if offset >= 0 else -1
    except OffsetNotAvailable as failure:
        # Older clients do not know the code; this one makes them ask again as well.
        error = call.code(failure) if call.version >= KNOWS_NOT_AVAILABLE else ErrorCode.leader_not_available
    except WaystationError as failure:
        error = call.code(failure)
    return call.make(
        "ListOffsetsPartitionResponse",
        partition_index=index,
        error_code=error,
        timestamp=at,
        offset=offset,
        leader_epoch=epoch,
    )


def _find(partition: Partition, timestamp: int, committed: bool) -> tuple[int, int]:
    """(offset, timestamp); -1 where there is no such record."""
    if timestamp == LATEST:
        partition.check_end_known()
        return (partition.stable_offset if committed else partition.visible_offset), -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return partition.start_offset, -1
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1
    found = partition.find_max_timestamp() if timestamp == MAX_TIMESTAMP else partition.find_time(timestamp)
    if found is None:
        return -1, -1
    if found[0] >= (partition.stable_offset if committed else partition.visible_offset):
        partition.check_end_known()
        return -1, -1
    return found
