"""RabbitMQ's management API: the broker itself, its virtual hosts, its one user, its health."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from waystation.errors import StorageFailed
from waystation.message import Message
from waystation.protocols.http.calls import AnyRoute
from waystation.protocols.http.replies import Reply, json_reply
from waystation.protocols.management import declaring
from waystation.protocols.management.calls import (
    USER,
    ApiCall,
    Refused,
    bad_request,
    body_of,
    names_of,
    not_found,
    number,
    route,
    text,
)
from waystation.protocols.management.paging import columns_of, only, reply_list
from waystation.protocols.management.shapes import Shown, node_name
from waystation.queues.feed import Verdict
from waystation.routing.namespace_names import Names
from waystation.routing.table import KINDS
from waystation.version import RABBITMQ_VERSION, __version__

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.protocols.management.api import Management

ALIVENESS_QUEUE = "aliveness-test"
HOLD_MS = 60_000


def _exchange_types() -> list[Shown]:
    return [{"name": kind, "description": f"{kind} exchange", "enabled": True} for kind in KINDS]


# -- the broker --------------------------------------------------------------------------------------------------------


async def overview(api: Management, call: ApiCall) -> Shown:
    broker = api.broker
    total = await api.totals.all()
    channels = sum(len(one.info().channels) for one in broker.connections if one.door == "amqp")
    shown: Shown = {
        "management_version": RABBITMQ_VERSION,
        "rates_mode": "basic",
        "exchange_types": _exchange_types(),
        "product_version": __version__,
        "product_name": "Waystation",
        "rabbitmq_version": RABBITMQ_VERSION,
        "cluster_name": broker.cluster_id,
        "disable_stats": False,
        "enable_queue_totals": False,
        "message_stats": api.rates.details("overview-stats", total.stats),
        "queue_totals": api.rates.details("overview", total.messages),
        "object_totals": {
            "channels": channels,
            "connections": broker.connections.at("amqp"),
            "consumers": total.consumers,
            "exchanges": len(broker.routing.exchange_names()) + len(broker.namespaces.names()) - 1,
            "queues": total.queues + len(broker.topic_queues.names()),
        },
        "node": node_name(broker),
    }
    return only(shown, columns_of(call.query))


def _node(broker: Broker) -> Shown:
    settings, world = broker.settings, broker.world
    reasons = _alarms(broker)
    shown: Shown = {
        "name": node_name(broker),
        "type": "disc",
        "running": True,
        "partitions": [],
        "os_pid": str(os.getpid()),
        "uptime": world.clock.now_ms() - broker.started_ms,
        "processors": os.cpu_count() or 1,
        "rates_mode": "basic",
        "exchange_types": _exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name}", "enabled": True} for name in ("PLAIN", "AMQPLAIN", "EXTERNAL")
        ],
        "applications": [{"name": "waystation", "description": "Waystation", "version": __version__}],
        "db_dir": broker.root,
        "disk_free_limit": settings.integer("waystation.disk.free.min.bytes"),
        "disk_free_alarm": any("disk" in reason for reason in reasons.values()),
        "mem_alarm": any("memory" in reason for reason in reasons.values()),
        "sockets_used": len(broker.connections),
    }
    try:
        shown["disk_free"] = world.disk.free_bytes(broker.root)
    except OSError:
        pass  # it is left out, like everything that is not known
    if (used := world.memory.used_bytes()) > 0:
        shown["mem_used"] = used
    if (limit := settings.integer("waystation.memory.max.bytes")) > 0:
        shown["mem_limit"] = limit
    return shown


async def nodes(api: Management, call: ApiCall) -> list[Shown]:
    return [only(_node(api.broker), columns_of(call.query))]


async def node(api: Management, call: ApiCall) -> Shown:
    if call.path["node"] != node_name(api.broker):
        raise not_found()
    return only(_node(api.broker), columns_of(call.query))


async def cluster_name(api: Management, call: ApiCall) -> Shown:
    return {"name": api.broker.cluster_id}


async def nothing(api: Management, call: ApiCall) -> list[Shown]:
    """There are none of these, ever."""
    return []


# -- users -------------------------------------------------------------------------------------------------------------


async def whoami(api: Management, call: ApiCall) -> Shown:
    return {"name": USER, "tags": ["administrator"]}


def _user() -> Shown:
    return {"name": USER, "tags": ["administrator"], "limits": {}}


async def users(api: Management, call: ApiCall) -> list[Shown]:
    return [_user()]


async def user(api: Management, call: ApiCall) -> Shown:
    if call.path["user"] != USER:
        raise not_found()
    return _user()


def _permission(vhost: str) -> Shown:
    return {"user": USER, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}


async def permissions(api: Management, call: ApiCall) -> list[Shown]:
    return [_permission(vhost) for vhost in api.broker.namespaces.names()]


async def permissions_of_user(api: Management, call: ApiCall) -> list[Shown]:
    await user(api, call)
    return await permissions(api, call)


async def permissions_of_vhost(api: Management, call: ApiCall) -> list[Shown]:
    return [_permission(names_of(api, call).vhost)]


async def permission(api: Management, call: ApiCall) -> Shown:
    await user(api, call)
    return _permission(names_of(api, call).vhost)


# -- virtual hosts -----------------------------------------------------------------------------------------------------


async def _show_vhost(api: Management, vhost: str) -> Shown:
    known = api.broker.namespaces.get(vhost)
    total = (await api.totals.by_vhost()).get(vhost)
    shown: Shown = {
        "name": vhost,
        "description": known.description,
        "tags": known.tags,
        "default_queue_type": known.default_queue_type or "undefined",
        "metadata": {"description": known.description, "tags": known.tags},
        "tracing": False,
        "cluster_state": {node_name(api.broker): "running"},
    }
    if total is not None:
        shown |= api.rates.details(("vhost", vhost), total.messages)
        if total.put or total.delivered:
            shown["message_stats"] = api.rates.details(("vhost-stats", vhost), total.stats)
    return shown


async def vhosts(api: Management, call: ApiCall) -> Reply:
    found = [await _show_vhost(api, vhost) for vhost in api.broker.namespaces.names()]
    return await reply_list(call.query, found, lambda shown: str(shown["name"]), lambda shown: shown)


async def vhost(api: Management, call: ApiCall) -> Shown:
    return only(await _show_vhost(api, names_of(api, call).vhost), columns_of(call.query))


async def put_vhost(api: Management, call: ApiCall) -> Reply:
    said = body_of(call)
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
    made = await api.broker.namespaces.create(call.path["vhost"], **known)
    return Reply(201 if made else 204)


async def delete_vhost(api: Management, call: ApiCall) -> None:
    await api.broker.namespaces.delete(names_of(api, call).vhost)


_LIMITS = {"max-connections": "max_connections", "max-queues": "max_queues"}


def _limits(api: Management, vhost: str) -> Shown | None:
    limits = api.broker.namespaces.limits(vhost)
    value = {name: known for name, field in _LIMITS.items() if (known := getattr(limits, field)) is not None}
    return {"vhost": vhost, "value": value} if value else None


async def vhost_limits(api: Management, call: ApiCall) -> list[Shown]:
    return [shown for vhost in api.broker.namespaces.names() if (shown := _limits(api, vhost)) is not None]


async def limits_of_vhost(api: Management, call: ApiCall) -> list[Shown]:
    shown = _limits(api, names_of(api, call).vhost)
    return [] if shown is None else [shown]


async def put_limit(api: Management, call: ApiCall) -> None:
    value = number(body_of(call, "value")["value"], "value")
    await _set_limit(api, call, value if value >= 0 else None)


async def delete_limit(api: Management, call: ApiCall) -> None:
    await _set_limit(api, call, None)


async def _set_limit(api: Management, call: ApiCall, value: int | None) -> None:
    from msgspec.structs import replace

    vhost, field = names_of(api, call).vhost, _LIMITS.get(call.path["limit"])
    if field is None:
        raise bad_request(f"Unrecognised limit '{call.path['limit'][:60]}'; there are {', '.join(_LIMITS)}")
    await api.broker.namespaces.set_limits(vhost, replace(api.broker.namespaces.limits(vhost), **{field: value}))


# -- health ------------------------------------------------------------------------------------------------------------


def _alarms(broker: Broker) -> dict[str, str]:
    """Namespaces whose publishers have to wait, and why."""
    return {
        name: reason
        for name in broker.namespaces.names()
        if (reason := broker.resource_alarms.reason(name)) is not None
    }


def _failed(reason: str, **more: Any) -> Reply:
    return json_reply({"status": "failed", "reason": reason, **more}, 503)


async def node_health(api: Management, call: ApiCall) -> Reply | Shown:
    for _, log in api.broker.topics.logs():
        if log.failure is not None:
            return _failed("a log of this broker takes no more writes; its own log file says why")
    return await alarms(api, call)


async def alarms(api: Management, call: ApiCall) -> Reply | Shown:
    found = _alarms(api.broker)
    if found:
        listed = [{"node": node_name(api.broker), "vhost": name, "resource": why} for name, why in found.items()]
        return _failed("resource alarm(s) in effect", alarms=listed)
    return {"status": "ok"}


async def healthy(api: Management, call: ApiCall) -> Shown:
    return {"status": "ok"}


async def aliveness(api: Management, call: ApiCall) -> Shown:
    """Declares a queue, puts a message into it and takes it out again."""
    names = names_of(api, call)
    try:
        await _put_and_take(api, names)
    except StorageFailed as error:
        raise Refused(503, "failed", str(error)) from error
    return {"status": "ok"}


async def _put_and_take(api: Management, names: Names) -> None:
    full = names.full(ALIVENESS_QUEUE)
    await declaring.declare_queue(api, names, ALIVENESS_QUEUE, {})
    message = Message(b"test_message", exchange="", routing_key=ALIVENESS_QUEUE)
    await api.broker.durable(api.broker.queues.put_each(full, [message]).receipt)
    getter = api.broker.queues.getter(full, declaring.OWNER, HOLD_MS, silent=True)
    try:
        if taken := getter.take(1):
            await api.broker.durable(getter.settle(Verdict.ACK, [(taken[0].tag, 1)]).receipt)
    finally:
        getter.close()


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/overview", overview, "What there is, in figures"),
    route("GET", "/cluster-name", cluster_name, "The cluster's name"),
    route("GET", "/nodes", nodes, "List nodes"),
    route("GET", "/nodes/{node}", node, "Describe a node"),
    route("GET", "/whoami", whoami, "Who asks"),
    route("GET", "/users", users, "List users"),
    route("GET", "/users/{user}", user, "Describe a user"),
    route("GET", "/users/{user}/permissions", permissions_of_user, "List a user's permissions"),
    route("GET", "/permissions", permissions, "List permissions"),
    route("GET", "/permissions/{vhost}/{user}", permission, "Describe a permission"),
    route("GET", "/vhosts", vhosts, "List virtual hosts"),
    route("GET", "/vhosts/{vhost}", vhost, "Describe a virtual host"),
    route("PUT", "/vhosts/{vhost}", put_vhost, "Make a virtual host"),
    route("DELETE", "/vhosts/{vhost}", delete_vhost, "Delete a virtual host"),
    route("GET", "/vhosts/{vhost}/permissions", permissions_of_vhost, "List a virtual host's permissions"),
    route("GET", "/vhost-limits", vhost_limits, "List limits of virtual hosts"),
    route("GET", "/vhost-limits/{vhost}", limits_of_vhost, "List a virtual host's limits"),
    route("PUT", "/vhost-limits/{vhost}/{limit}", put_limit, "Set a virtual host's limit"),
    route("DELETE", "/vhost-limits/{vhost}/{limit}", delete_limit, "Remove a virtual host's limit"),
    *(
        route("GET", path, nothing, "There are none")
        for path in (
            "/parameters",
            "/global-parameters",
            "/operator-policies",
            "/topic-permissions",
            "/user-limits",
            "/feature-flags",
            "/extensions",
        )
    ),
    route("GET", "/healthchecks/node", node_health, "Whether the node works"),
    route(
        "GET",
        "/aliveness-test/{vhost}",
        aliveness,
        "Put a message into a queue and take it out",
        changes=True,
    ),
    route("GET", "/health/checks/alarms", alarms, "Whether publishers are held back"),
    route("GET", "/health/checks/local-alarms", alarms, "Whether publishers are held back"),
    route("GET", "/health/checks/virtual-hosts", healthy, "Whether all virtual hosts run"),
    route("GET", "/health/checks/node-is-quorum-critical", healthy, "Whether the node may go: it is the only one"),
    route("GET", "/health/checks/node-is-mirror-sync-critical", healthy, "The same"),
)
