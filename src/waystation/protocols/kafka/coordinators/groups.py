"""Classic groups through the Kafka protocol: FindCoordinator, Join, Sync, Heartbeat, Leave, Describe, List, Delete.

Translation only: the rules live in `waystation.groups`. All handlers are coroutines, so that requests of a connection
are begun in the order they came, and a join or sync that is held is cancelled when its connection goes away.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import GroupView, JoinRequest, LeavingMember, MemberIdRequired, SyncRequest
from waystation.errors import Invalid, NotAllowed, WaystationError
from waystation.protocols.kafka.requests import nodes
from waystation.protocols.kafka.requests.authorized import authorized
from waystation.protocols.kafka.requests.registry import Call

if TYPE_CHECKING:
    from waystation.broker.access import Access

GROUP, TRANSACTION, SHARE = 0, 1, 2

_MS = timedelta(milliseconds=1)


def milliseconds(duration: timedelta) -> int:
    return duration // _MS


async def find_coordinator(call: Call) -> object:
    """The node that leads the partition with the state of what is asked for."""
    request = call.request
    kind = getattr(request, "key_type", GROUP)
    if call.version < 4:
        return call.make("FindCoordinatorResponse", throttle_time=0, **_coordinator(call, kind, request.key))
    coordinators = tuple(
        call.make("Coordinator", key=key, **_coordinator(call, kind, key)) for key in request.coordinator_keys
    )
    return call.make("FindCoordinatorResponse", throttle_time=0, coordinators=coordinators)


def _coordinator(call: Call, kind: int, key: str) -> dict[str, object]:
    try:
        node_id = _coordinating_node(call.access, kind, key)
    except WaystationError as error:
        return _nowhere(call.code(error), str(error))
    endpoint = nodes.endpoint_with_id(call.access.view, node_id, call.listener)
    if endpoint is None:
        return _nowhere(ErrorCode.coordinator_not_available, f"nobody coordinates {key!r} now; ask again in a moment")
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "node_id": endpoint.node_id,
        "host": endpoint.host,
        "port": endpoint.port,
    }


def _nowhere(code: ErrorCode, message: str) -> dict[str, object]:
    return {"error_code": code, "error_message": message, "node_id": nodes.NO_NODE, "host": "", "port": -1}


def _coordinating_node(access: Access, kind: int, key: str) -> int:
    if kind == GROUP:
        return access.groups.coordinator(key)
    if kind == TRANSACTION:
        return access.transactions.coordinator(key)
    if kind == SHARE:
        # GROUP:TOPIC_ID:PARTITION; here a group has all of its state in one place.
        return access.shares.coordinator(key.rsplit(":", 2)[0])
    raise Invalid("unknown type of coordinator")


async def join_group(call: Call) -> object:
    request = call.request
    session_timeout_ms = milliseconds(request.session_timeout)
    rebalance_timeout_ms = milliseconds(getattr(request, "rebalance_timeout", timedelta(0)))
    try:
        answer = await call.access.groups.join(
            JoinRequest(
                group_id=request.group_id,
                member_id=request.member_id,
                instance_id=getattr(request, "group_instance_id", None),
                client_id=call.client_id or "",
                client_host=call.client_host,
                session_timeout_ms=session_timeout_ms,
                # Version 0 has one timeout for both.
                rebalance_timeout_ms=rebalance_timeout_ms if rebalance_timeout_ms > 0 else session_timeout_ms,
                protocol_type=request.protocol_type,
                protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
                needs_member_id=call.version >= 4,
                can_skip_assignment=call.version >= 9,
            )
        )
    except WaystationError as error:
        member_id = error.member_id if isinstance(error, MemberIdRequired) else request.member_id
        return call.make("JoinGroupResponse", throttle_time=0, error_code=call.code(error), member_id=member_id)
    members = tuple(
        call.make(
            "JoinGroupResponseMember",
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata,
        )
        for member in answer.members
    )
    return call.make(
        "JoinGroupResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        generation_id=answer.generation_id,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=members,
    )


async def sync_group(call: Call) -> object:
    request = call.request
    try:
        answer = await call.access.groups.sync(
            SyncRequest(
                group_id=request.group_id,
                member_id=request.member_id,
                generation_id=request.generation_id,
                instance_id=getattr(request, "group_instance_id", None),
                protocol_type=getattr(request, "protocol_type", None),
                protocol_name=getattr(request, "protocol_name", None),
                assignments=tuple((one.member_id, one.assignment) for one in request.assignments),
            )
        )
    except WaystationError as error:
        return call.make("SyncGroupResponse", throttle_time=0, error_code=call.code(error))
    return call.make(
        "SyncGroupResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


async def heartbeat(call: Call) -> object:
    request = call.request
    error: WaystationError | None = None
    try:
        await call.access.groups.heartbeat(
            request.group_id, request.member_id, request.generation_id, getattr(request, "group_instance_id", None)
        )
    except WaystationError as caught:
        error = caught
    return call.make("HeartbeatResponse", throttle_time=0, error_code=call.code(error))


async def leave_group(call: Call) -> object:
    request = call.request
    leaving = [LeavingMember(request.member_id)] if call.version < 3 else _leaving(request.members)
    try:
        results = await call.access.groups.leave(request.group_id, leaving)
    except WaystationError as error:
        return call.make("LeaveGroupResponse", throttle_time=0, error_code=call.code(error))
    if call.version < 3:
        return call.make("LeaveGroupResponse", throttle_time=0, error_code=call.code(results[0].error))
    members = tuple(
        call.make(
            "MemberResponse",
            member_id=result.member_id,
            group_instance_id=result.instance_id,
            error_code=call.code(result.error),
        )
        for result in results
    )
    return call.make("LeaveGroupResponse", throttle_time=0, error_code=ErrorCode.none, members=members)


def _leaving(members: Sequence[Any]) -> list[LeavingMember]:
    return [LeavingMember(member.member_id, member.group_instance_id) for member in members]


async def describe_groups(call: Call) -> object:
    asked = getattr(call.request, "include_authorized_operations", False)
    views = [_view(call, group_id) for group_id in call.request.groups]
    return call.make(
        "DescribeGroupsResponse",
        throttle_time=0,
        groups=tuple(_described(call, view, authorized(call, "group", view.group_id, asked=asked)) for view in views),
    )


def _view(call: Call, group_id: str) -> GroupView:
    try:
        return call.access.groups.describe(group_id)
    except WaystationError as error:
        return GroupView(group_id=group_id, error=error)


def _described(call: Call, view: GroupView, operations: int) -> object:
    # Before version 6 a group that does not exist is no error: it is described as dead.
    error = view.error if call.version >= 6 or isinstance(view.error, NotAllowed) else None
    members = tuple(
        call.make(
            "DescribedGroupMember",
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=f"/{member.client_host}",  # Java prints addresses so, and tools know it that way
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
        for member in view.members
    )
    return call.make(
        "DescribedGroup",
        error_code=call.code(error),
        error_message=None if error is None else str(error),
        group_id=view.group_id,
        group_state=view.state,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol_name,
        members=members,
        authorized_operations=operations,
    )


async def list_groups(call: Call) -> object:
    request = call.request
    states, kinds = getattr(request, "states_filter", ()), getattr(request, "types_filter", ())
    groups = tuple(
        call.make(
            "ListedGroup",
            group_id=listing.group_id,
            protocol_type=listing.protocol_type,
            group_state=listing.state,
            group_type=listing.kind,
        )
        for listing in call.access.groups.listing(states, kinds)
    )
    return call.make("ListGroupsResponse", throttle_time=0, error_code=ErrorCode.none, groups=groups)


async def delete_groups(call: Call) -> object:
    results = []
    for group_id in call.request.groups_names:
        error: WaystationError | None = None
        try:
            await call.access.groups.delete(group_id)
        except WaystationError as caught:
            error = caught
        results.append(call.make("DeletableGroupResult", group_id=group_id, error_code=call.code(error)))
    return call.make("DeleteGroupsResponse", throttle_time=0, results=tuple(results))
