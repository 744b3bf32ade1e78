"""RabbitMQ's management API: virtual hosts, which are namespaces, and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.management.calls import ApiCall, bad_request, body_of, number, route, table, text, vhost_of
from waystation.protocols.management.paging import columns_of, only, reply_list
from waystation.protocols.management.shapes import Shown, node_name

if TYPE_CHECKING:
    from waystation.protocols.management.api import Management


async def _show_vhost(api: Management, vhost: str) -> Shown:
    known = api.access.namespaces.describe(vhost)
    total = (await api.totals.by_vhost()).get(vhost)
    shown: Shown = {
        "name": vhost,
        "description": known.description,
        "tags": known.tags,
        "default_queue_type": known.default_queue_type or "undefined",
        "metadata": {"description": known.description, "tags": known.tags},
        "tracing": False,
        "cluster_state": {node_name(api.node): "running"},
    }
    if total is not None:
        shown |= api.rates.details(("vhost", vhost), total.messages)
        if total.put or total.delivered:
            shown["message_stats"] = api.rates.details(("vhost-stats", vhost), total.stats)
    return shown


async def vhosts(api: Management, call: ApiCall) -> Reply:
    found = [await _show_vhost(api, vhost) for vhost in api.access.namespaces.names()]
    return await reply_list(call.query, found, lambda shown: str(shown["name"]), lambda shown: shown)


async def vhost(api: Management, call: ApiCall) -> Shown:
    return only(await _show_vhost(api, vhost_of(api, call).namespace), columns_of(call.query))


def _said_of(said: dict[str, Any]) -> dict[str, Any]:
    """What a call or a definition says of a virtual host."""
    known: dict[str, Any] = {}
    if "description" in said:
        known["description"] = text(said["description"], "description")
    if "tags" in said:
        tags = said["tags"].split(",") if isinstance(said["tags"], str) else said["tags"]
        if not isinstance(tags, list):
            raise bad_request("tags: they have to be a list of texts")
        known["tags"] = [text(tag, "tags") for tag in tags]
    if said.get("default_queue_type") not in (None, "undefined"):
        known["default_queue_type"] = text(said["default_queue_type"], "default_queue_type")
    return known


async def put_vhost(api: Management, call: ApiCall) -> Reply:
    made = await api.access.namespaces.create(call.path["vhost"], **_said_of(body_of(call)))
    return Reply(201 if made else 204)


async def import_vhost(api: Management, said: dict[str, Any]) -> None:
    """One of the definitions. RabbitMQ says what it knows of it beside the name, in `metadata`, or in both."""
    name = text(said.get("name"), "vhosts.name")
    known = _said_of(table(said.get("metadata"), "vhosts.metadata") | said)
    if known or not api.access.namespaces.exists(name):
        await api.access.namespaces.create(name, **known)


def exported_vhost(api: Management, vhost: str) -> Shown:
    """The same, with what is known."""
    known = api.access.namespaces.describe(vhost)
    said: Shown = {"description": known.description, "tags": known.tags, "default_queue_type": known.default_queue_type}
    said = {field: value for field, value in said.items() if value}
    return {"name": vhost, **said, "metadata": said} if said else {"name": vhost}


async def delete_vhost(api: Management, call: ApiCall) -> None:
    await api.access.namespaces.delete(vhost_of(api, call).namespace)


_LIMITS = {
    "max-connections": "max_connections",
    "max-queues": "max_queues",
    "max-bytes": "max_bytes",
    "max-topics": "max_topics",
    "max-partitions": "max_partitions",
}
"""The first two are RabbitMQ's."""


async def set_limits(api: Management, vhost: str, said: dict[str, Any]) -> None:
    """As definitions have them, where RabbitMQ calls them a parameter of the virtual host. What is no limit here is
    passed over."""
    given = {field: number(said[name], name) for name, field in _LIMITS.items() if name in said}
    found = {field: value if value >= 0 else None for field, value in given.items()}
    namespaces = api.access.namespaces
    await namespaces.set_limits(vhost, replace(namespaces.describe(vhost).limits, **found))


def limits_parameter(api: Management, vhost: str) -> Shown | None:
    """The same, as it is exported; None: it has none."""
    shown = limits_of(api, vhost)
    return None if shown is None else {"component": "vhost-limits", "name": "limits", **shown}


def limits_of(api: Management, vhost: str) -> Shown | None:
    limits = api.access.namespaces.describe(vhost).limits
    value = {name: known for name, field in _LIMITS.items() if (known := getattr(limits, field)) is not None}
    return {"vhost": vhost, "value": value} if value else None


async def vhost_limits(api: Management, call: ApiCall) -> list[Shown]:
    return [shown for vhost in api.access.namespaces.names() if (shown := limits_of(api, vhost)) is not None]


async def limits_of_vhost(api: Management, call: ApiCall) -> list[Shown]:
    shown = limits_of(api, vhost_of(api, call).namespace)
    return [] if shown is None else [shown]


async def put_limit(api: Management, call: ApiCall) -> None:
    value = number(body_of(call, "value")["value"], "value")
    await _set_limit(api, call, value if value >= 0 else None)


async def delete_limit(api: Management, call: ApiCall) -> None:
    await _set_limit(api, call, None)


async def _set_limit(api: Management, call: ApiCall, value: int | None) -> None:
    vhost, field = vhost_of(api, call).namespace, _LIMITS.get(call.path["limit"])
    if field is None:
        raise bad_request(f"Unrecognised limit '{call.path['limit'][:60]}'; there are {', '.join(_LIMITS)}")
    namespaces = api.access.namespaces
    await namespaces.set_limits(vhost, replace(namespaces.describe(vhost).limits, **{field: value}))


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/vhosts", vhosts, "List virtual hosts"),
    route("GET", "/vhosts/{vhost}", vhost, "Describe a virtual host"),
    route("PUT", "/vhosts/{vhost}", put_vhost, "Make a virtual host"),
    route("DELETE", "/vhosts/{vhost}", delete_vhost, "Delete a virtual host"),
    route("GET", "/vhost-limits", vhost_limits, "List limits of virtual hosts"),
    route("GET", "/vhost-limits/{vhost}", limits_of_vhost, "List a virtual host's limits"),
    route("PUT", "/vhost-limits/{vhost}/{limit}", put_limit, "Set a virtual host's limit"),
    route("DELETE", "/vhost-limits/{vhost}/{limit}", delete_limit, "Remove a virtual host's limit"),
)
