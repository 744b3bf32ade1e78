"""Share groups through the Kafka protocol (KIP-932): ShareGroupHeartbeat and ShareGroupDescribe.

Translation only: the rules live in `waystation.groups` and `share/share_groups.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import ShareBeat, ShareGroupView, ShareMemberView, TopicPartition
from waystation.errors import WaystationError
from waystation.protocols.kafka.requests.authorized import authorized
from waystation.protocols.kafka.requests.registry import Call


async def share_group_heartbeat(call: Call) -> object:
    request = call.request
    names = request.subscribed_topic_names
    beat = ShareBeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        client_id=call.client_id or "",
        client_host=call.client_host,
        topics=None if names is None else tuple(names),
    )
    try:
        answer = await call.access.shares.heartbeat(beat)
    except WaystationError as error:
        return call.make(
            "ShareGroupHeartbeatResponse",
            throttle_time=0,
            error_code=call.code(error),
            error_message=str(error),
        )
    assignment = None
    if answer.assignment is not None:
        parts = tuple(
            call.make("TopicPartitions", topic_id=topic_id, partitions=tuple(indexes))
            for topic_id, indexes in grouped(answer.assignment).items()
        )
        assignment = call.make("Assignment", topic_partitions=parts)
    return call.make(
        "ShareGroupHeartbeatResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=answer.heartbeat_interval_ms,
        assignment=assignment,
    )


async def share_group_describe(call: Call) -> object:
    asked = call.request.include_authorized_operations
    views = [await _view(call, group_id) for group_id in call.request.group_ids]
    return call.make(
        "ShareGroupDescribeResponse",
        throttle_time=0,
        groups=tuple(_described(call, view, authorized(call, "group", view.group_id, asked=asked)) for view in views),
    )


async def _view(call: Call, group_id: str) -> ShareGroupView:
    try:
        return await call.access.shares.describe(group_id)
    except WaystationError as error:
        return ShareGroupView(group_id=group_id, error=error, state="Dead")


def _described(call: Call, view: ShareGroupView, operations: int) -> object:
    return call.make(
        "DescribedGroup",
        error_code=call.code(view.error),
        error_message=None if view.error is None else str(view.error),
        group_id=view.group_id,
        group_state=view.state,
        group_epoch=view.epoch,
        assignment_epoch=view.assignment_epoch,
        assignor_name=view.assignor,
        members=tuple(_member(call, member) for member in view.members),
        authorized_operations=operations,
    )


def _member(call: Call, member: ShareMemberView) -> object:
    topics = call.access.topics
    parts = tuple(
        call.make("TopicPartitions", topic_id=topic_id, topic_name=name, partitions=tuple(indexes))
        for topic_id, indexes in grouped(member.assignment).items()
        if (name := topics.name_of(topic_id)) is not None
    )
    return call.make(
        "Member",
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=f"/{member.client_host}",
        subscribed_topic_names=member.topics,
        assignment=call.make("Assignment", topic_partitions=parts),
    )


def grouped(partitions: Iterable[TopicPartition]) -> dict[UUID, list[int]]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return topics
