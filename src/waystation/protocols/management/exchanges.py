"""RabbitMQ's management API: exchanges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.management import declaring, messages
from waystation.protocols.management.calls import (
    ApiCall,
    body_of,
    exchange_name,
    not_found,
    route,
    vhost_of,
    vhost_to_change,
)
from waystation.protocols.management.paging import columns_of, only, reply_list
from waystation.protocols.management.shapes import Shown, exchange_names, show_exchange

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.types import NamespaceNames
    from waystation.protocols.management.api import Management


async def list_exchanges(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, api.access.namespaces.names())


async def list_exchanges_of_vhost(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, [vhost_of(api, call).namespace])


async def _listed(api: Management, call: ApiCall, vhosts: list[str]) -> Reply:
    places = ((access, full) for access in map(api.within, vhosts) for full in exchange_names(access))
    return await reply_list(
        call.query, places, lambda place: place[0].names.local(place[1]), lambda place: show_exchange(*place)
    )


def found_exchange(api: Management, call: ApiCall) -> tuple[Access, str]:
    """The virtual host and the local name of an exchange that is there."""
    access = vhost_of(api, call)
    name = exchange_name(call.path["exchange"])
    if not access.holds(name) or access.exchanges.find(full_name(access.names, name)) is None:
        raise not_found()
    return access, name


def full_name(names: NamespaceNames, name: str) -> str:
    """The default exchange has no name, in any virtual host."""
    return names.full(name) if name else ""


async def describe(api: Management, call: ApiCall) -> Shown:
    access, name = found_exchange(api, call)
    shown = show_exchange(access, full_name(access.names, name)) or {}
    return only({**shown, "incoming": [], "outgoing": []}, columns_of(call.query))


async def declare(api: Management, call: ApiCall) -> Reply:
    access = vhost_to_change(api, call)
    made = await declaring.declare_exchange(api, access, exchange_name(call.path["exchange"]), body_of(call))
    return Reply(201 if made else 204)


async def delete(api: Management, call: ApiCall) -> None:
    access, name = found_exchange(api, call)
    if_unused = call.query.values.get("if-unused") == "true"
    await declaring.exchanges(api, access).delete(name, if_unused=if_unused)


async def publish(api: Management, call: ApiCall) -> dict[str, bool]:
    return await messages.publish(api, vhost_of(api, call), exchange_name(call.path["exchange"]), call)


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/exchanges", list_exchanges, "List exchanges"),
    route("GET", "/exchanges/{vhost}", list_exchanges_of_vhost, "List a virtual host's exchanges"),
    route("GET", "/exchanges/{vhost}/{exchange}", describe, "Describe an exchange"),
    route("PUT", "/exchanges/{vhost}/{exchange}", declare, "Declare an exchange"),
    route("DELETE", "/exchanges/{vhost}/{exchange}", delete, "Delete an exchange"),
    route("POST", "/exchanges/{vhost}/{exchange}/publish", publish, "Publish a message"),
)
