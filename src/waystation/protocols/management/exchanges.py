"""RabbitMQ's management API: exchanges, and bindings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from waystation.errors import NotFound
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
from waystation.protocols.management.declaring import Ends, binding_of, ends_of
from waystation.protocols.management.paging import columns_of, only, reply_list
from waystation.protocols.management.shapes import (
    Shown,
    exchange_names,
    is_properties_key,
    properties_key,
    queue_names,
    show_binding,
    show_default_binding,
    show_exchange,
)
from waystation.routing.binding import Binding
from waystation.routing.namespace_names import Names

if TYPE_CHECKING:
    from waystation.protocols.management.api import Management


# -- exchanges ---------------------------------------------------------------------------------------------------------


async def list_exchanges(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, api.broker.namespaces.names())


async def list_exchanges_of_vhost(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, [names_of(api, call).vhost])


async def _listed(api: Management, call: ApiCall, vhosts: list[str]) -> Reply:
    places = ((names, full) for names in map(Names, vhosts) for full in exchange_names(api.broker, names))
    return await reply_list(
        call.query, places, lambda place: place[0].local(place[1]), lambda place: show_exchange(api, *place)
    )


def _found(api: Management, call: ApiCall) -> tuple[Names, str]:
    """The virtual host and the local name of an exchange that is there."""
    names = names_of(api, call)
    name = exchange_name(call.path["exchange"])
    if show_exchange(api, names, _full(names, name)) is None:
        raise not_found()
    return names, name


def _full(names: Names, name: str) -> str:
    return names.full(name) if name else ""


async def describe(api: Management, call: ApiCall) -> Shown:
    names, name = _found(api, call)
    shown = show_exchange(api, names, _full(names, name)) or {}
    return only({**shown, "incoming": [], "outgoing": []}, columns_of(call.query))


async def declare(api: Management, call: ApiCall) -> Reply:
    names = names_to_change(api, call)
    made = await declaring.declare_exchange(api, names, exchange_name(call.path["exchange"]), body_of(call))
    return Reply(201 if made else 204)


async def delete(api: Management, call: ApiCall) -> None:
    names, name = _found(api, call)
    if_unused = call.query.values.get("if-unused") == "true"
    await declaring.exchanges(api, names).delete(name, if_unused=if_unused)


async def publish(api: Management, call: ApiCall) -> dict[str, bool]:
    return await messages.publish(api, names_of(api, call), exchange_name(call.path["exchange"]), call)


# -- bindings ----------------------------------------------------------------------------------------------------------


def _of_source(api: Management, names: Names, full: str) -> Iterator[Shown]:
    """The bindings of an exchange."""
    if not full:
        yield from (show_default_binding(names, queue) for queue in queue_names(api.broker, names))
        return
    try:
        bindings = list(api.broker.routing.exchange(full).bindings.values())
    except NotFound:  # it went meanwhile
        return
    yield from (show_binding(names, binding) for binding in bindings)


async def _bindings(api: Management, call: ApiCall, vhosts: list[str]) -> Reply:
    found = (
        shown
        for names in map(Names, vhosts)
        for full in exchange_names(api.broker, names)
        for shown in _of_source(api, names, full)
    )
    return await reply_list(call.query, found, lambda shown: str(shown["source"]), lambda shown: shown)


async def list_bindings(api: Management, call: ApiCall) -> Reply:
    return await _bindings(api, call, api.broker.namespaces.names())


async def list_bindings_of_vhost(api: Management, call: ApiCall) -> Reply:
    return await _bindings(api, call, [names_of(api, call).vhost])


async def list_from_exchange(api: Management, call: ApiCall) -> Reply:
    names, name = _found(api, call)
    found = _of_source(api, names, _full(names, name))
    return await reply_list(call.query, found, lambda shown: str(shown["destination"]), lambda shown: shown)


async def list_to_exchange(api: Management, call: ApiCall) -> Reply:
    names, name = _found(api, call)
    found = [show_binding(names, one) for one in api.broker.routing.bindings_to(f"exchange:{_full(names, name)}")]
    return await reply_list(call.query, found, lambda shown: str(shown["source"]), lambda shown: shown)


def _between(api: Management, names: Names, ends: Ends) -> list[Binding]:
    """The bindings of one exchange to one queue, stream or exchange."""
    source = names.full(ends.source)
    targets = [f"exchange:{names.full(ends.destination)}"]
    if not ends.to_exchange:
        targets = [f"queue:{names.full(ends.destination)}", f"topic:{names.topic(ends.destination)}"]
    bindings_to = api.broker.routing.bindings_to
    return [binding for target in targets for binding in bindings_to(target) if binding.exchange == source]


async def list_between(api: Management, call: ApiCall) -> list[Shown]:
    names, ends = names_of(api, call), ends_of(call)
    if not ends.source and not ends.to_exchange and names.full(ends.destination) in api.broker.queues:
        return [show_default_binding(names, names.full(ends.destination))]
    return [show_binding(names, binding) for binding in _between(api, names, ends)]


async def bind(api: Management, call: ApiCall) -> Reply:
    names, ends = names_to_change(api, call), ends_of(call)
    key, arguments = binding_of(call)
    await declaring.bind(api, names, ends, key, arguments)
    made = [one for one in _between(api, names, ends) if one.key == key and one.arguments == arguments]
    where = quote(properties_key(made[0]), safe="") if made else ""
    path = f"/api/bindings/{quote(names.vhost, safe='')}/e/{quote(ends.source, safe='')}"
    location = f"{path}/{call.path['kind']}/{quote(ends.destination, safe='')}/{where}"
    return Reply(201, headers={"location": location})


def _one(api: Management, names: Names, call: ApiCall) -> Binding:
    for binding in _between(api, names, ends_of(call)):
        if is_properties_key(binding, call.path["properties"]):
            return binding
    raise not_found()


async def describe_binding(api: Management, call: ApiCall) -> Shown:
    names = names_of(api, call)
    return show_binding(names, _one(api, names, call))


async def unbind(api: Management, call: ApiCall) -> None:
    binding = _one(api, names_of(api, call), call)
    await api.broker.routing.unbind(binding.exchange, binding.target, binding.key, binding.arguments)


_BETWEEN = "/bindings/{vhost}/e/{source}/{kind}/{destination}"

ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/exchanges", list_exchanges, "List exchanges"),
    route("GET", "/exchanges/{vhost}", list_exchanges_of_vhost, "List a virtual host's exchanges"),
    route("GET", "/exchanges/{vhost}/{exchange}", describe, "Describe an exchange"),
    route("PUT", "/exchanges/{vhost}/{exchange}", declare, "Declare an exchange"),
    route("DELETE", "/exchanges/{vhost}/{exchange}", delete, "Delete an exchange"),
    route("POST", "/exchanges/{vhost}/{exchange}/publish", publish, "Publish a message"),
    route("GET", "/exchanges/{vhost}/{exchange}/bindings/source", list_from_exchange, "Bindings from an exchange"),
    route("GET", "/exchanges/{vhost}/{exchange}/bindings/destination", list_to_exchange, "Bindings to an exchange"),
    route("GET", "/bindings", list_bindings, "List bindings"),
    route("GET", "/bindings/{vhost}", list_bindings_of_vhost, "List a virtual host's bindings"),
    route("GET", _BETWEEN, list_between, "Bindings between two"),
    route("POST", _BETWEEN, bind, "Bind"),
    route("GET", f"{_BETWEEN}/{{properties}}", describe_binding, "Describe a binding"),
    route("DELETE", f"{_BETWEEN}/{{properties}}", unbind, "Unbind"),
)
