"""RabbitMQ's management API: the broker as a whole, and its one node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from waystation.broker.access.types import EXCHANGE_KINDS
from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.management.calls import ApiCall, not_found, route
from waystation.protocols.management.paging import columns_of, only
from waystation.protocols.management.shapes import Shown, node_name
from waystation.version import RABBITMQ_VERSION, __version__

if TYPE_CHECKING:
    from waystation.protocols.management.api import Management


def _exchange_types() -> list[Shown]:
    return [{"name": kind, "description": f"{kind} exchange", "enabled": True} for kind in EXCHANGE_KINDS]


async def overview(api: Management, call: ApiCall) -> Shown:
    node, access = api.node, api.access
    access.cluster.check_describe()
    total = await api.totals.all()
    channels = sum(len(one.info().channels) for one in node.connections if one.protocol == "amqp")
    shown: Shown = {
        "management_version": RABBITMQ_VERSION,
        "rates_mode": "basic",
        "exchange_types": _exchange_types(),
        "product_version": __version__,
        "product_name": "Waystation",
        "rabbitmq_version": RABBITMQ_VERSION,
        "cluster_name": node.cluster_id,
        "disable_stats": False,
        "enable_queue_totals": False,
        "message_stats": api.rates.details("overview-stats", total.stats),
        "queue_totals": api.rates.details("overview", total.messages),
        "object_totals": {
            "channels": channels,
            "connections": node.connections.at("amqp"),
            "consumers": total.consumers,
            "exchanges": len(access.exchanges.names()) + len(access.namespaces.names()) - 1,
            "queues": total.queues + len(access.topic_queues.names()),
        },
        "node": node_name(node),
    }
    return only(shown, columns_of(call.query))


def _node(api: Management) -> Shown:
    broker = api.node
    settings, world = broker.settings, broker.world
    reasons = api.access.namespaces.alarms()
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
    return [only(_node(api), columns_of(call.query))]


async def node(api: Management, call: ApiCall) -> Shown:
    if call.path["node"] != node_name(api.node):
        raise not_found()
    return only(_node(api), columns_of(call.query))


async def cluster_name(api: Management, call: ApiCall) -> Shown:
    return {"name": api.node.cluster_id}


async def nothing(api: Management, call: ApiCall) -> list[Shown]:
    """There are none of these, ever."""
    return []


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/overview", overview, "What there is, in figures"),
    route("GET", "/cluster-name", cluster_name, "The cluster's name"),
    route("GET", "/nodes", nodes, "List nodes"),
    route("GET", "/nodes/{node}", node, "Describe a node"),
    *(
        route("GET", path, nothing, "There are none")
        for path in (
            "/parameters",
            "/global-parameters",
            "/operator-policies",
            "/feature-flags",
            "/extensions",
        )
    ),
)
