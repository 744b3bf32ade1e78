"""The API of the whole routing in pages, for a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.admin.view_routing import RoutingPage, RoutingQuery, routing_page
from waystation.protocols.http.calls import AnyRoute, Call, Nothing, Outcome, Route

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk


async def look(desk: Desk, call: Call[RoutingQuery, Nothing]) -> Outcome:
    return await routing_page(desk.broker, call.query)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/routing",
        look,
        "Exchanges and their bindings, page by page",
        tag="routing",
        description="A page has `limit` bindings (an exchange without any counts as one). The default exchange has"
        " no bindings of its own: it leads to queues and topics by their names.",
        query=RoutingQuery,
        answer=RoutingPage,
    ),
)
