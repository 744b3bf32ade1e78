"""ShareAcknowledge (KIP-932): what became of records in flight to a share consumer, answered when it is durable."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    InvalidShareRequest,
    InvalidShareSessionEpoch,
    OtherShareGroup,
    SharedGroup,
    ShareSession,
    TopicPartition,
)
from waystation.errors import WaystationError
from waystation.protocols.kafka.requests import nodes
from waystation.protocols.kafka.requests.nodes import Leader
from waystation.protocols.kafka.requests.registry import Call
from waystation.protocols.kafka.share import share_acks

Results = dict[TopicPartition, WaystationError | None]


async def share_acknowledge(call: Call) -> object:
    try:
        group = call.access.shares.open(call.request.group_id or "")
        results = await _acknowledge(call, group)
        lock_ms = share_acks.lock_ms(call, group)
    except WaystationError as error:
        return call.make(
            "ShareAcknowledgeResponse", throttle_time=0, error_code=call.code(error), error_message=str(error)
        )
    topics: dict[object, list[object]] = {}
    leaders: list[Leader] = []
    for (topic_id, index), failure in results.items():
        leader = nodes.leader_asked(call, topic_id, index, failure)
        leaders.append(leader)
        topics.setdefault(topic_id, []).append(
            call.make(
                "PartitionData",
                partition_index=index,
                error_code=call.code(failure),
                error_message=None if failure is None else str(failure),
                current_leader=call.make("LeaderIdAndEpoch", leader_id=leader.node_id, leader_epoch=leader.epoch),
            )
        )
    return call.make(
        "ShareAcknowledgeResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        acquisition_lock_timeout=lock_ms,
        node_endpoints=nodes.endpoint_entities(call, leaders),
        responses=tuple(
            call.make("ShareAcknowledgeTopicResponse", topic_id=topic_id, partitions=tuple(found))
            for topic_id, found in topics.items()
        ),
    )


async def _acknowledge(call: Call, group: SharedGroup | OtherShareGroup) -> Results:
    request = call.request
    session = enter(call)
    acks = share_acks.acks_of(request.topics)
    if session.poke is not None:
        session.poke()  # the answer to this stands behind that of the fetch which waits
    results, receipts = await share_acks.apply(call, group, acks)
    if request.share_session_epoch == FINAL_EPOCH:
        close(call, session)
    await call.access.durable(*receipts)
    return results


def enter(call: Call) -> ShareSession:
    """The session that a request which is not its first belongs to."""
    request = call.request
    if not request.group_id or not request.member_id:
        raise InvalidShareRequest("the request names no group, or no member")
    if request.share_session_epoch == INITIAL_EPOCH:
        raise InvalidShareSessionEpoch("a session begins with a fetch: there is nothing to acknowledge yet")
    return call.access.shares.enter_session(request.group_id, request.member_id, request.share_session_epoch)


def close(call: Call, session: ShareSession) -> None:
    call.access.shares.end_session(session)
