"""RabbitMQ's management API: declaring, binding and deleting, as an AMQP client would.

RabbitMQ's own management opens a channel for each of these calls and says what the channel would have said. So do we,
without the channel: what is refused there is refused here, in the same words, since both ask `vhosts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waystation.protocols.http.rabbit_calls import ApiCall, body_of, exchange_name, flag, not_found, table, text
from waystation.routing.namespace_names import Names
from waystation.vhosts.exchanges import VhostExchanges
from waystation.vhosts.queues import VhostQueues
from waystation.vhosts.sources import Sources
from waystation.vhosts.vhost import Vhost

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

OWNER = "management"


def _vhost(desk: Desk, names: Names) -> Vhost:
    return Vhost(desk.broker, names, OWNER, Sources(desk.broker, names))


def queues(desk: Desk, names: Names) -> VhostQueues:
    return VhostQueues(_vhost(desk, names))


def exchanges(desk: Desk, names: Names) -> VhostExchanges:
    return VhostExchanges(_vhost(desk, names))


async def declare_queue(desk: Desk, names: Names, name: str, said: dict[str, Any]) -> bool:
    """True if it was made."""
    full = names.full(name)
    there = full in desk.broker.queues or Sources(desk.broker, names).find(name) is not None
    await queues(desk, names).declare(
        name,
        table(said.get("arguments"), "arguments"),
        durable=flag(said.get("durable", False), "durable"),
        auto_delete=flag(said.get("auto_delete", False), "auto_delete"),
    )
    return not there


async def declare_exchange(desk: Desk, names: Names, name: str, said: dict[str, Any]) -> bool:
    """True if it was made."""
    there = names.full(name) in desk.broker.routing.exchange_names()
    await exchanges(desk, names).declare(
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


async def bind(desk: Desk, names: Names, ends: Ends, key: str, arguments: dict[str, Any]) -> None:
    if ends.to_exchange:
        await exchanges(desk, names).bind(ends.source, ends.destination, key, arguments)
    else:
        await queues(desk, names).bind(ends.destination, ends.source, key, arguments)
