"""The API of groups, whatever their kind: list, describe, move, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waystation.admin import group_resetting, view_groups
from waystation.admin.group_resetting import DeleteGroup, OfTopic, Reset, ResetGroup, ResetOut
from waystation.admin.view_groups import GroupDetail, GroupQuery, GroupsOut, GroupsQuery
from waystation.protocols.http.calls import AnyRoute, Call, Nothing, Outcome, Route

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

TAG = "groups"


async def list_groups(desk: Desk, call: Call[GroupsQuery, Nothing]) -> Outcome:
    return await view_groups.groups_view(desk.broker, call.query)


async def describe(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return view_groups.group_view(desk.broker, GroupQuery(call.path["group"]))


async def reset(desk: Desk, call: Call[Nothing, Reset]) -> Outcome:
    wanted = ResetGroup(group=call.path["group"], **msgspec.structs.asdict(call.body))
    return await group_resetting.reset_group(desk.broker, wanted)


async def delete(desk: Desk, call: Call[OfTopic, Nothing]) -> Outcome:
    await group_resetting.delete_group(desk.broker, DeleteGroup(group=call.path["group"], topic=call.query.topic))
    return None


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/groups",
        list_groups,
        "List consumer groups, share groups and shared subscriptions",
        tag=TAG,
        query=GroupsQuery,
        answer=GroupsOut,
    ),
    Route(
        "GET",
        "/v1/groups/{group}",
        describe,
        "Describe a group: members, lag of each partition, what happened to it",
        tag=TAG,
        answer=GroupDetail,
    ),
    Route(
        "POST",
        "/v1/groups/{group}/reset",
        reset,
        "Reset the offsets of a group",
        tag=TAG,
        description="Refused (409) while it has members. `dry_run` says what would change and changes nothing.",
        body=Reset,
        answer=ResetOut,
    ),
    Route(
        "DELETE",
        "/v1/groups/{group}",
        delete,
        "Delete a group that has no members, or its offsets of one topic",
        tag=TAG,
        query=OfTopic,
        status=204,
    ),
)
