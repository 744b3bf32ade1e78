"""KIP-848 groups through the Kafka protocol: ConsumerGroupHeartbeat and ConsumerGroupDescribe.

Translation only: the rules live in `waystation.groups`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import ConsumerBeat, ConsumerGroupView, ConsumerMemberView, TopicPartition
from waystation.errors import WaystationError
from waystation.protocols.kafka.coordinators.groups import milliseconds
from waystation.protocols.kafka.requests.authorized import authorized
from waystation.protocols.kafka.requests.registry import Call

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Member type in descriptions: one that uses the consumer protocol, as all in such a group do here."""


async def consumer_group_heartbeat(call: Call) -> object:
    request = call.request
    try:
        answer = await call.access.groups.consumer_heartbeat(_beat(call, request))
    except WaystationError as error:
        return call.make(
            "ConsumerGroupHeartbeatResponse",
            throttle_time=0,
            error_code=call.code(error),
            error_message=str(error),
            member_epoch=0,
        )
    assignment = None
    if answer.assignment is not None:
        assignment = call.make("Assignment", topic_partitions=_by_topic_id(call, answer.assignment))
    return call.make(
        "ConsumerGroupHeartbeatResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=answer.heartbeat_interval_ms,
        assignment=assignment,
    )


def _beat(call: Call, request: Any) -> ConsumerBeat:
    member_id = request.member_id
    if not member_id and call.version == 0 and request.member_epoch == 0:
        member_id = str(call.broker.world.random.uuid())  # from version 1 on, clients make their own
    names = request.subscribed_topic_names
    return ConsumerBeat(
        group_id=request.group_id,
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=call.client_id or "",
        client_host=call.client_host,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        topics=None if names is None else tuple(names),
        pattern=getattr(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else _owned(request.topic_partitions),
    )


def _owned(topics: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(
        (topic.topic_id, partition) for topic in topics if topic.topic_id is not None for partition in topic.partitions
    )


def _grouped(partitions: Iterable[TopicPartition]) -> dict[UUID, list[int]]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return topics


def _by_topic_id(call: Call, partitions: Iterable[TopicPartition]) -> tuple[object, ...]:
    return tuple(
        call.make("TopicPartitions", topic_id=topic_id, partitions=tuple(indexes))
        for topic_id, indexes in _grouped(partitions).items()
    )


async def consumer_group_describe(call: Call) -> object:
    asked = call.request.include_authorized_operations
    views = [_view(call, group_id) for group_id in call.request.group_ids]
    return call.make(
        "ConsumerGroupDescribeResponse",
        throttle_time=0,
        groups=tuple(_described(call, view, authorized(call, "group", view.group_id, asked=asked)) for view in views),
    )


def _view(call: Call, group_id: str) -> ConsumerGroupView:
    try:
        return call.access.groups.describe_consumer(group_id)
    except WaystationError as error:
        return ConsumerGroupView(group_id=group_id, error=error)


def _described(call: Call, view: ConsumerGroupView, operations: int) -> object:
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


def _member(call: Call, member: ConsumerMemberView) -> object:
    return call.make(
        "Member",
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=f"/{member.client_host}",
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(call, member.assignment),
        target_assignment=_assignment(call, member.target),
        member_type=CLASSIC_MEMBER if member.classic else CONSUMER_MEMBER,
    )


def _assignment(call: Call, partitions: Iterable[TopicPartition]) -> object:
    """With names; what belongs to a topic that was deleted meanwhile is left out."""
    topics = call.access.topics
    return call.make(
        "Assignment",
        topic_partitions=tuple(
            call.make("TopicPartitions", topic_id=topic_id, topic_name=name, partitions=tuple(indexes))
            for topic_id, indexes in _grouped(partitions).items()
            if (name := topics.name_of(topic_id)) is not None
        ),
    )
