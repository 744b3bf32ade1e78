"""Who is connected, as it is shown, and ending a connection by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.errors import Invalid, NotFound, near_matches
from waystation.observe.connections import PROTOCOLS, Connected, ConnectionInfo
from waystation.paging import After, Limit, NamesPage, Next, Pace, Search, Total, page_of, sort_in_steps

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

ENDED = "closed by an operator"


class ConnectionsQuery(msgspec.Struct):
    search: Search = ""
    after: After = ""
    limit: Limit = 100
    protocol: Annotated[str, Meta(description="only those of amqp, http, kafka or native; empty: all")] = msgspec.field(
        default="", name="door"
    )


class ConnectionsOut(msgspec.Struct):
    connections: list[ConnectionInfo]
    next: Next
    total: Total
    by_protocol: Annotated[
        dict[str, int], Meta(description="how many there are of each protocol, whatever was asked for")
    ] = msgspec.field(name="by_door")


class ConnectionQuery(msgspec.Struct):
    connection: str


async def connections_view(broker: ManagedBroker, query: ConnectionsQuery) -> ConnectionsOut:
    """In the order of names. The search also looks at what clients call themselves, and at what they consume."""
    connections = broker.connections
    if query.protocol and query.protocol not in PROTOCOLS:
        raise Invalid(f"door: {query.protocol[:40]!r} is none; there are {', '.join(sorted(PROTOCOLS))}")
    page = await _page(broker, query)
    pace = Pace(broker.world.clock)
    shown: list[ConnectionInfo] = []
    for name in page.names:
        there = connections.get(name)
        if there is not None:  # it may have been closed a moment ago
            shown.append(there.info())
        await pace.breathe()
    return ConnectionsOut(shown, page.next, page.total, connections.by_protocol())


async def _page(broker: ManagedBroker, query: ConnectionsQuery) -> NamesPage:
    wanted = query.search.casefold()
    pace = Pace(broker.world.clock)
    names: list[str] = []
    for one in broker.connections:
        if (not query.protocol or one.protocol == query.protocol) and (not wanted or _matches(one, wanted)):
            names.append(one.name)
        await pace.breathe()
    return await page_of(await sort_in_steps(names), "", query.after, query.limit)


def _matches(one: Connected, wanted: str) -> bool:
    return any(wanted in text.casefold() for text in one.texts())


def connection_view(broker: ManagedBroker, query: ConnectionQuery) -> ConnectionInfo:
    return _get(broker, query.connection).info()


def end(broker: ManagedBroker, name: str, reason: str = "") -> None:
    """Closes a connection, and tells its client why as far as the protocol can."""
    _get(broker, name).end(reason[:200] or ENDED)


def _get(broker: ManagedBroker, name: str) -> Connected:
    found = broker.connections.get(name)
    if found is None:
        raise NotFound(f"there is no connection {name[:200]!r}{near_matches(name, broker.connections.names())}")
    return found
