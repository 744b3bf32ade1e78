"""The API of messages that wait for their time: in queues, and for topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.admin.view_delayed import DelayedList, DelayedQuery, cancel_delayed, delayed_view
from waystation.protocols.http.calls import AnyRoute, Call, Nothing, Outcome, Route

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

TAG = "queues"


async def look(desk: Desk, call: Call[DelayedQuery, Nothing]) -> Outcome:
    return await delayed_view(desk.broker, call.query)


async def cancel(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    await cancel_delayed(desk.broker, call.path["topic"], call.path["id"])
    return None


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/delayed",
        look,
        "Messages that wait for their time, in the order of their times",
        tag=TAG,
        description="With `queue`, those of a queue: delayed ones, and those that back off. With `topic` or"
        " `topics=true`, those that will be published to topics. Else the queues in which some wait.",
        query=DelayedQuery,
        answer=DelayedList,
    ),
    Route(
        "DELETE",
        "/v1/delayed/topics/{topic}/{id}",
        cancel,
        "Cancel a message that was to be published to a topic later",
        tag=TAG,
        status=204,
    ),
)
