"""RabbitMQ's management API: the broker as a whole, and its one node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from waystation.protocols.http.calls import AnyRoute
from waystation.protocols.management.calls import ApiCall, not_found, route
from waystation.protocols.management.health import alarms_of
from waystation.protocols.management.paging import columns_of, only
from waystation.protocols.management.shapes import Shown, node_name
from waystation.routing.table import KINDS
from waystation.version import RABBITMQ_VERSION, __version__

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.protocols.management.api import Management


def _exchange_types() -> list[Shown]:
    return [{"name": kind, "description": f"{kind} exchange", "enabled": True} for kind in KINDS]


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
    reasons = alarms_of(broker)
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
            "/topic-permissions",
            "/user-limits",
            "/feature-flags",
            "/extensions",
        )
    ),
)
