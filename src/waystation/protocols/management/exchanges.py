"""RabbitMQ's management API: exchanges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.protocols.http.calls import AnyRoute
from waystation.protocols.http.replies import Reply
from waystation.protocols.management import declaring, messages
from waystation.protocols.management.calls import (
    ApiCall,
    body_of,
    exchange_name,
    names_of,
    names_to_change,
    not_found,
    route,
)
from waystation.protocols.management.paging import columns_of, only, reply_list
from waystation.protocols.management.shapes import Shown, exchange_names, show_exchange
from waystation.routing.namespace_names import Names

if TYPE_CHECKING:
    from waystation.protocols.management.api import Management


async def list_exchanges(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, api.broker.namespaces.names())


async def list_exchanges_of_vhost(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, [names_of(api, call).vhost])


async def _listed(api: Management, call: ApiCall, vhosts: list[str]) -> Reply:
    places = ((names, full) for names in map(Names, vhosts) for full in exchange_names(api.broker, names))
    return await reply_list(
        call.query, places, lambda place: place[0].local(place[1]), lambda place: show_exchange(api, *place)
    )


def found_exchange(api: Management, call: ApiCall) -> tuple[Names, str]:
    """The virtual host and the local name of an exchange that is there."""
    names = names_of(api, call)
    name = exchange_name(call.path["exchange"])
    if not api.broker.namespaces.holds(names, name) or show_exchange(api, names, full_name(names, name)) is None:
        raise not_found()
    return names, name


def full_name(names: Names, name: str) -> str:
    """The default exchange has no name, in any virtual host."""
    return names.full(name) if name else ""


async def describe(api: Management, call: ApiCall) -> Shown:
    names, name = found_exchange(api, call)
    shown = show_exchange(api, names, full_name(names, name)) or {}
    return only({**shown, "incoming": [], "outgoing": []}, columns_of(call.query))


async def declare(api: Management, call: ApiCall) -> Reply:
    names = names_to_change(api, call)
    made = await declaring.declare_exchange(api, names, exchange_name(call.path["exchange"]), body_of(call))
    return Reply(201 if made else 204)


async def delete(api: Management, call: ApiCall) -> None:
    names, name = found_exchange(api, call)
    if_unused = call.query.values.get("if-unused") == "true"
    await declaring.exchanges(api, names).delete(name, if_unused=if_unused)


async def publish(api: Management, call: ApiCall) -> dict[str, bool]:
    return await messages.publish(api, names_of(api, call), exchange_name(call.path["exchange"]), call)


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/exchanges", list_exchanges, "List exchanges"),
    route("GET", "/exchanges/{vhost}", list_exchanges_of_vhost, "List a virtual host's exchanges"),
    route("GET", "/exchanges/{vhost}/{exchange}", describe, "Describe an exchange"),
    route("PUT", "/exchanges/{vhost}/{exchange}", declare, "Declare an exchange"),
    route("DELETE", "/exchanges/{vhost}/{exchange}", delete, "Delete an exchange"),
    route("POST", "/exchanges/{vhost}/{exchange}/publish", publish, "Publish a message"),
)
