"""RabbitMQ's management API: declaring, binding and deleting, as an AMQP client would.

RabbitMQ's own management opens a channel for each of these calls and says what the channel would have said. So do we,
without the channel: what is refused there is refused here, in the same words, since both ask `vhosts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waystation.protocols.management.calls import ApiCall, body_of, exchange_name, flag, not_found, table, text
from waystation.routing.namespace_names import Names
from waystation.vhosts.exchanges import VhostExchanges
from waystation.vhosts.queues import VhostQueues
from waystation.vhosts.sources import Sources
from waystation.vhosts.vhost import Vhost

if TYPE_CHECKING:
    from waystation.protocols.management.api import Management

OWNER = "management"


def _vhost(api: Management, names: Names) -> Vhost:
    return Vhost(api.broker, names, OWNER, Sources(api.broker, names))


def queues(api: Management, names: Names) -> VhostQueues:
    return VhostQueues(_vhost(api, names))


def exchanges(api: Management, names: Names) -> VhostExchanges:
    return VhostExchanges(_vhost(api, names))


async def declare_queue(api: Management, names: Names, name: str, said: dict[str, Any]) -> bool:
    """True if it was made."""
    full = names.full(name)
    there = full in api.broker.queues or Sources(api.broker, names).find(name) is not None
    await queues(api, names).declare(
        name,
        table(said.get("arguments"), "arguments"),
        durable=flag(said.get("durable", False), "durable"),
        auto_delete=flag(said.get("auto_delete", False), "auto_delete"),
    )
    return not there


async def declare_exchange(api: Management, names: Names, name: str, said: dict[str, Any]) -> bool:
    """True if it was made."""
    there = names.full(name) in api.broker.routing.exchange_names()
    await exchanges(api, names).declare(
        name,
        text(said.get("type", "direct"), "type"),
        table(said.get("arguments"), "arguments"),
        durable=flag(said.get("durable", False), "durable"),
        auto_delete=flag(said.get("auto_delete", False), "auto_delete"),
        internal=flag(said.get("internal", False), "internal"),
    )
    return not there


@dataclass(frozen=True, slots=True)
class Ends:
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


async def bind(api: Management, names: Names, ends: Ends, key: str, arguments: dict[str, Any]) -> None:
    if ends.to_exchange:
        await exchanges(api, names).bind(ends.source, ends.destination, key, arguments)
    else:
        await queues(api, names).bind(ends.destination, ends.source, key, arguments)
