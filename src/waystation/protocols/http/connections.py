"""The API of connections, whichever door they came by: list, describe, close."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.admin import view_connections
from waystation.admin.view_connections import ConnectionQuery, ConnectionsOut, ConnectionsQuery
from waystation.observe.connections import ConnectionInfo
from waystation.protocols.http.calls import AnyRoute, Call, Nothing, Outcome, Route

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

TAG = "connections"


class EndQuery(msgspec.Struct):
    reason: Annotated[str, Meta(description="what the client is told, as far as its protocol can")] = ""


async def list_connections(desk: Desk, call: Call[ConnectionsQuery, Nothing]) -> Outcome:
    return await view_connections.connections_view(desk.broker, call.query)


async def describe(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return view_connections.connection_view(desk.broker, ConnectionQuery(call.path["connection"]))


async def end(desk: Desk, call: Call[EndQuery, Nothing]) -> Outcome:
    view_connections.end(desk.broker, call.path["connection"], call.query.reason)
    return None


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/connections",
        list_connections,
        "List who is connected, and what they do",
        tag=TAG,
        query=ConnectionsQuery,
        answer=ConnectionsOut,
    ),
    Route("GET", "/v1/connections/{connection}", describe, "Describe a connection", tag=TAG, answer=ConnectionInfo),
    Route("DELETE", "/v1/connections/{connection}", end, "Close a connection", tag=TAG, query=EndQuery, status=204),
)
