"""RabbitMQ's management API: queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.protocols.http.calls import AnyRoute
from waystation.protocols.http.replies import Reply
from waystation.protocols.management import declaring, messages
from waystation.protocols.management.calls import (
    ApiCall,
    Refused,
    body_of,
    names_of,
    names_to_change,
    not_found,
    route,
)
from waystation.protocols.management.connections import consumers, show_consumer
from waystation.protocols.management.paging import columns_of, only, reply_list
from waystation.protocols.management.shapes import (
    Shown,
    queue_names,
    show_binding,
    show_default_binding,
    show_queue,
)
from waystation.routing.namespace_names import Names
from waystation.vhosts.sources import Sources

if TYPE_CHECKING:
    from waystation.protocols.management.api import Management


async def list_queues(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, api.broker.namespaces.names())


async def list_queues_of_vhost(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, [names_of(api, call).vhost])


async def _listed(api: Management, call: ApiCall, vhosts: list[str]) -> Reply:
    """Texts, not tuples: of a million of those, the collector of garbage would take its time."""
    namespaces = api.broker.namespaces
    found = (full for vhost in vhosts for full in queue_names(api.broker, Names(vhost)))
    basic = call.query.values.get("disable_stats") == "true"
    return await reply_list(
        call.query,
        found,
        namespaces.local,
        lambda full: show_queue(api, Names(namespaces.of(full)), full, basic=basic),
    )


def _found(api: Management, call: ApiCall) -> tuple[Names, str]:
    """The virtual host and the local name of a queue that is there."""
    names = names_of(api, call)
    name = call.path["queue"]
    if not api.broker.namespaces.holds(names, name):
        raise not_found()
    if names.full(name) not in api.broker.queues:
        source = Sources(api.broker, names).find(name)
        if source is None or not source.declared:
            raise not_found()
    return names, name


async def describe(api: Management, call: ApiCall) -> Shown:
    names, name = _found(api, call)
    full = names.full(name)
    shown = show_queue(api, names, full)
    if shown is None:
        raise not_found()
    found = await consumers(api, names.vhost)
    shown["consumer_details"] = [show_consumer(api, one) for one in found if one.info.queue == full]
    shown |= {"deliveries": [], "incoming": []}
    return only(shown, columns_of(call.query))


async def declare(api: Management, call: ApiCall) -> Reply:
    names = names_to_change(api, call)
    made = await declaring.declare_queue(api, names, call.path["queue"], body_of(call))
    return Reply(201 if made else 204)


async def delete(api: Management, call: ApiCall) -> None:
    names, name = _found(api, call)
    asked = call.query.values
    await declaring.queues(api, names).delete(
        name, if_unused=asked.get("if-unused") == "true", if_empty=asked.get("if-empty") == "true"
    )


async def purge(api: Management, call: ApiCall) -> None:
    names, name = _found(api, call)
    await declaring.queues(api, names).purge(name)


async def get(api: Management, call: ApiCall) -> list[dict[str, Any]]:
    names = names_of(api, call)
    name = call.path["queue"]
    there = names.full(name) in api.broker.queues or Sources(api.broker, names).find(name) is not None
    if not there or not api.broker.namespaces.holds(names, name):
        raise Refused(404, "not_found", f"NOT_FOUND - no queue '{name}' in vhost '{names.vhost}'")
    return await messages.get(api, names, name, call)


async def bindings(api: Management, call: ApiCall) -> Reply:
    names, name = _found(api, call)
    full = names.full(name)
    source = Sources(api.broker, names).find(name)
    target = f"queue:{full}" if source is None or full in api.broker.topic_queues else f"topic:{source.topic}"
    found = [show_default_binding(names, full)]
    found += [show_binding(names, binding) for binding in api.broker.routing.bindings_to(target)]
    return await reply_list(call.query, found, lambda shown: str(shown["source"]), lambda shown: shown)


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/queues", list_queues, "List queues"),
    route("GET", "/queues/{vhost}", list_queues_of_vhost, "List a virtual host's queues"),
    route("GET", "/queues/{vhost}/{queue}", describe, "Describe a queue"),
    route("PUT", "/queues/{vhost}/{queue}", declare, "Declare a queue"),
    route("DELETE", "/queues/{vhost}/{queue}", delete, "Delete a queue"),
    route("DELETE", "/queues/{vhost}/{queue}/contents", purge, "Purge a queue"),
    route("POST", "/queues/{vhost}/{queue}/get", get, "Get messages from a queue"),
    route("GET", "/queues/{vhost}/{queue}/bindings", bindings, "List a queue's bindings"),
)
