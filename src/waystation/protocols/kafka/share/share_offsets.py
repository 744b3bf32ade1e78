"""How far share groups have come, through the Kafka protocol: Describe, Alter and DeleteShareGroupOffsets.

Translation only: the rules live in `share/admin.py`.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import ShareOffset
from waystation.errors import WaystationError
from waystation.protocols.kafka.requests.registry import Call


async def describe_share_group_offsets(call: Call) -> object:
    return call.make(
        "DescribeShareGroupOffsetsResponse",
        throttle_time=0,
        groups=tuple([await _group(call, group) for group in call.request.groups]),
    )


async def _group(call: Call, group: Any) -> object:
    wanted = None if group.topics is None else [(topic.topic_name, topic.partitions) for topic in group.topics]
    try:
        offsets = await call.access.shares.offsets(group.group_id, wanted)
    except WaystationError as error:
        return call.make(
            "DescribeShareGroupOffsetsResponseGroup",
            group_id=group.group_id,
            error_code=call.code(error),
            error_message=str(error),
        )
    topics: dict[str, list[ShareOffset]] = {}
    for offset in offsets:
        topics.setdefault(offset.topic, []).append(offset)
    return call.make(
        "DescribeShareGroupOffsetsResponseGroup",
        group_id=group.group_id,
        topics=tuple(
            call.make(
                "DescribeShareGroupOffsetsResponseTopic",
                topic_name=name,
                topic_id=call.access.topics.id_of(name),
                partitions=tuple(_offset(call, one) for one in found),
            )
            for name, found in topics.items()
        ),
    )


def _offset(call: Call, one: ShareOffset) -> object:
    return call.make(
        "DescribeShareGroupOffsetsResponsePartition",
        partition_index=one.partition,
        start_offset=one.start,
        leader_epoch=one.leader_epoch,
        lag=one.lag,
        error_code=call.code(one.error),
        error_message=None if one.error is None else str(one.error),
    )


async def alter_share_group_offsets(call: Call) -> object:
    wanted = [
        (topic.topic_name, partition.partition_index, partition.start_offset)
        for topic in call.request.topics
        for partition in topic.partitions
    ]
    try:
        results = await call.access.shares.alter_offsets(call.request.group_id, wanted)
    except WaystationError as error:
        return call.make(
            "AlterShareGroupOffsetsResponse", throttle_time=0, error_code=call.code(error), error_message=str(error)
        )
    topics: dict[str, list[object]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(
            call.make(
                "AlterShareGroupOffsetsResponsePartition",
                partition_index=result.partition,
                error_code=call.code(result.error),
                error_message=None if result.error is None else str(result.error),
            )
        )
    return call.make(
        "AlterShareGroupOffsetsResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        responses=tuple(
            call.make(
                "AlterShareGroupOffsetsResponseTopic",
                topic_name=name,
                topic_id=call.access.topics.id_of(name),
                partitions=tuple(found),
            )
            for name, found in topics.items()
        ),
    )


async def delete_share_group_offsets(call: Call) -> object:
    names = [topic.topic_name for topic in call.request.topics]
    try:
        results = await call.access.shares.delete_offsets(call.request.group_id, names)
    except WaystationError as error:
        return call.make(
            "DeleteShareGroupOffsetsResponse", throttle_time=0, error_code=call.code(error), error_message=str(error)
        )
    return call.make(
        "DeleteShareGroupOffsetsResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        responses=tuple(
            call.make(
                "DeleteShareGroupOffsetsResponseTopic",
                topic_name=result.topic,
                topic_id=call.access.topics.id_of(result.topic),
                error_code=call.code(result.error),
                error_message=None if result.error is None else str(result.error),
            )
            for result in results
        ),
    )
