"""RabbitMQ's management API: bindings. Between the same two, a binding's key and arguments tell it from others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.management import declaring
from waystation.protocols.management.calls import (
    ApiCall,
    body_of,
    exchange_name,
    not_found,
    route,
    table,
    text,
    vhost_of,
    vhost_to_change,
)
from waystation.protocols.management.exchanges import found_exchange, full_name
from waystation.protocols.management.paging import reply_list
from waystation.protocols.management.shapes import (
    Shown,
    exchange_names,
    is_properties_key,
    properties_key,
    queue_names,
    show_binding,
    show_default_binding,
)

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.types import Binding
    from waystation.protocols.management.api import Management


class Ends(msgspec.Struct, frozen=True):
    """What a binding binds."""

    source: str
    destination: str
    to_exchange: bool


def ends_of(call: ApiCall) -> Ends:
    if call.path["kind"] not in ("q", "e"):
        raise not_found()
    return Ends(exchange_name(call.path["source"]), exchange_name(call.path["destination"]), call.path["kind"] == "e")


def binding_of(call: ApiCall) -> tuple[str, dict[str, Any]]:
    """Key and arguments in the body."""
    said = body_of(call)
    return text(said.get("routing_key", ""), "routing_key"), table(said.get("arguments"), "arguments")


async def bind_ends(api: Management, access: Access, ends: Ends, key: str, arguments: dict[str, Any]) -> None:
    if ends.to_exchange:
        await declaring.exchanges(api, access).bind(ends.source, ends.destination, key, arguments)
    else:
        await declaring.queues(api, access).bind(ends.destination, ends.source, key, arguments)


def _of_source(access: Access, full: str) -> Iterator[Shown]:
    """The bindings of an exchange."""
    if not full:
        yield from (show_default_binding(access.names, queue) for queue in queue_names(access))
        return
    yield from (show_binding(access.names, binding) for binding in access.exchanges.bindings_of(full))


async def _bindings(api: Management, call: ApiCall, vhosts: list[str]) -> Reply:
    found = (
        shown
        for access in map(api.within, vhosts)
        for full in exchange_names(access)
        for shown in _of_source(access, full)
    )
    return await reply_list(call.query, found, lambda shown: str(shown["source"]), lambda shown: shown)


async def list_bindings(api: Management, call: ApiCall) -> Reply:
    return await _bindings(api, call, api.access.namespaces.names())


async def list_bindings_of_vhost(api: Management, call: ApiCall) -> Reply:
    return await _bindings(api, call, [vhost_of(api, call).namespace])


async def list_from_exchange(api: Management, call: ApiCall) -> Reply:
    access, name = found_exchange(api, call)
    found = _of_source(access, full_name(access.names, name))
    return await reply_list(call.query, found, lambda shown: str(shown["destination"]), lambda shown: shown)


async def list_to_exchange(api: Management, call: ApiCall) -> Reply:
    access, name = found_exchange(api, call)
    bindings = access.exchanges.bindings_to(f"exchange:{full_name(access.names, name)}")
    found = [show_binding(access.names, one) for one in bindings]
    return await reply_list(call.query, found, lambda shown: str(shown["source"]), lambda shown: shown)


def _between(access: Access, ends: Ends) -> list[Binding]:
    """The bindings of one exchange to one queue, stream or exchange."""
    names = access.names
    if not access.holds(ends.source) or not access.holds(ends.destination):
        return []
    source, full = names.full(ends.source), names.full(ends.destination)
    access.exchanges.find(source if ends.source else "")
    bindings_to = access.exchanges.bindings_to
    if ends.to_exchange:
        found = bindings_to(f"exchange:{full}")
    else:
        stream = access.stream_queues.find(names.topic(ends.destination))
        found = [] if stream is None else bindings_to(f"topic:{stream.name}")
        if stream is None or access.sees_queue(full):
            found += bindings_to(f"queue:{full}")
    return [binding for binding in found if binding.exchange == source]


async def list_between(api: Management, call: ApiCall) -> list[Shown]:
    access, ends = vhost_of(api, call), ends_of(call)
    names = access.names
    queue = names.full(ends.destination)
    if not ends.source and not ends.to_exchange and access.queue_exists(queue):
        return [show_default_binding(names, queue)] if access.holds(ends.destination) else []
    return [show_binding(names, binding) for binding in _between(access, ends)]


async def bind(api: Management, call: ApiCall) -> Reply:
    access, ends = vhost_to_change(api, call), ends_of(call)
    key, arguments = binding_of(call)
    await bind_ends(api, access, ends, key, arguments)
    made = [one for one in _between(access, ends) if one.key == key and one.arguments == arguments]
    where = quote(properties_key(made[0]), safe="") if made else ""
    path = f"/api/bindings/{quote(access.namespace, safe='')}/e/{quote(ends.source, safe='')}"
    location = f"{path}/{call.path['kind']}/{quote(ends.destination, safe='')}/{where}"
    return Reply(201, headers={"location": location})


def _one(access: Access, call: ApiCall) -> Binding:
    for binding in _between(access, ends_of(call)):
        if is_properties_key(binding, call.path["properties"]):
            return binding
    raise not_found()


async def describe_binding(api: Management, call: ApiCall) -> Shown:
    access = vhost_of(api, call)
    return show_binding(access.names, _one(access, call))


async def unbind(api: Management, call: ApiCall) -> None:
    access = vhost_of(api, call)
    binding = _one(access, call)
    await access.unbind(binding.exchange, binding.target, binding.key, binding.arguments)


_BETWEEN = "/bindings/{vhost}/e/{source}/{kind}/{destination}"

ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/exchanges/{vhost}/{exchange}/bindings/source", list_from_exchange, "Bindings from an exchange"),
    route("GET", "/exchanges/{vhost}/{exchange}/bindings/destination", list_to_exchange, "Bindings to an exchange"),
    route("GET", "/bindings", list_bindings, "List bindings"),
    route("GET", "/bindings/{vhost}", list_bindings_of_vhost, "List a virtual host's bindings"),
    route("GET", _BETWEEN, list_between, "Bindings between two"),
    route("POST", _BETWEEN, bind, "Bind"),
    route("GET", f"{_BETWEEN}/{{properties}}", describe_binding, "Describe a binding"),
    route("DELETE", f"{_BETWEEN}/{{properties}}", unbind, "Unbind"),
)
