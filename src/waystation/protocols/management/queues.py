"""RabbitMQ's management API: queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.management import declaring, messages
from waystation.protocols.management.calls import (
    ApiCall,
    Refused,
    body_of,
    not_found,
    route,
    vhost_of,
    vhost_to_change,
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

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.protocols.management.api import Management


async def list_queues(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, api.access.namespaces.names())


async def list_queues_of_vhost(api: Management, call: ApiCall) -> Reply:
    return await _listed(api, call, [vhost_of(api, call).namespace])


async def _listed(api: Management, call: ApiCall, vhosts: list[str]) -> Reply:
    """Texts, not tuples: of a million of those, the collector of garbage would take its time."""
    accesses = {vhost: api.within(vhost) for vhost in vhosts}
    found = (full for access in accesses.values() for full in queue_names(access))
    basic = call.query.values.get("disable_stats") == "true"

    def access_to(full: str) -> Access:
        return accesses.get(api.access.namespace_of(full), api.access)

    return await reply_list(
        call.query,
        found,
        lambda full: access_to(full).names.local(full),
        lambda full: show_queue(api, access_to(full), full, basic=basic),
    )


def _found(api: Management, call: ApiCall) -> tuple[Access, str]:
    """The virtual host and the local name of a queue that is there."""
    access = vhost_of(api, call)
    name = call.path["queue"]
    if not access.holds(name):
        raise not_found()
    if not access.queue_exists(access.names.full(name)):
        source = declaring.sources(api, access).find(name)
        if source is None or not source.declared:
            raise not_found()
    return access, name


async def describe(api: Management, call: ApiCall) -> Shown:
    access, name = _found(api, call)
    full = access.names.full(name)
    shown = show_queue(api, access, full)
    if shown is None:
        raise not_found()
    found = await consumers(api, access.namespace)
    shown["consumer_details"] = [show_consumer(api, one) for one in found if one.info.queue == full]
    shown |= {"deliveries": [], "incoming": []}
    return only(shown, columns_of(call.query))


async def declare(api: Management, call: ApiCall) -> Reply:
    access = vhost_to_change(api, call)
    made = await declaring.declare_queue(api, access, call.path["queue"], body_of(call))
    return Reply(201 if made else 204)


async def delete(api: Management, call: ApiCall) -> None:
    access, name = _found(api, call)
    asked = call.query.values
    await declaring.queues(api, access).delete(
        name, if_unused=asked.get("if-unused") == "true", if_empty=asked.get("if-empty") == "true"
    )


async def purge(api: Management, call: ApiCall) -> None:
    access, name = _found(api, call)
    await declaring.queues(api, access).purge(name)


async def get(api: Management, call: ApiCall) -> list[dict[str, Any]]:
    access = vhost_of(api, call)
    name = call.path["queue"]
    if not declaring.has_queue(api, access, name) or not access.holds(name):
        raise Refused(404, "not_found", f"NOT_FOUND - no queue '{name}' in vhost '{access.namespace}'")
    return await messages.get(api, access, name, call)


async def bindings(api: Management, call: ApiCall) -> Reply:
    access, name = _found(api, call)
    names = access.names
    full = names.full(name)
    source = declaring.sources(api, access).find(name)
    on_topic = access.topic_queues.find(full) is not None
    target = f"queue:{full}" if source is None or on_topic else f"topic:{source.topic}"
    found = [show_default_binding(names, full)]
    found += [show_binding(names, binding) for binding in access.exchanges.bindings_to(target)]
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
