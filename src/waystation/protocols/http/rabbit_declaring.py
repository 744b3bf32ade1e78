"""RabbitMQ's management API: declaring, binding and deleting, by the code that does it for AMQP clients.

RabbitMQ's own management opens a channel for each of these calls and says what the channel would have said. So do we,
without the channel: what is refused there is refused here, in the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pamqp import commands
from pamqp.base import Frame

from waystation.protocols.amqp.declaring import Declaring
from waystation.protocols.http.rabbit_calls import ApiCall, body_of, exchange_name, flag, not_found, table, text
from waystation.routing.namespace_names import Names
from waystation.vhosts.sources import Sources

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

OWNER = "management"

F = TypeVar("F", bound=Frame)


@dataclass(slots=True)
class Channel:
    """What a declaration remembers for the next one; there is none."""

    last_queue: str = ""


def _method(kind: type[F], **fields: Any) -> F:
    """A method of the protocol. pamqp's own constructors take fewer names than clients use."""
    method = kind()
    for name, value in fields.items():
        setattr(method, name, value)
    return method


def declaring(desk: Desk, names: Names) -> Declaring:
    return Declaring(desk.broker, names, OWNER, Sources(desk.broker, names))


async def declare_queue(desk: Desk, names: Names, name: str, said: dict[str, Any]) -> bool:
    """True if it was made."""
    full = names.full(name)
    there = full in desk.broker.queues or Sources(desk.broker, names).find(name) is not None
    arguments = table(said.get("arguments"), "arguments")
    method = _method(
        commands.Queue.Declare,
        queue=name,
        durable=flag(said.get("durable", False), "durable"),
        auto_delete=flag(said.get("auto_delete", False), "auto_delete"),
        arguments=arguments,
    )
    await declaring(desk, names).queue_declare(Channel(), method)
    return not there


async def delete_queue(desk: Desk, names: Names, name: str, *, if_empty: bool, if_unused: bool) -> None:
    method = _method(commands.Queue.Delete, queue=name, if_empty=if_empty, if_unused=if_unused)
    await declaring(desk, names).queue_delete(Channel(), method)


async def purge_queue(desk: Desk, names: Names, name: str) -> None:
    await declaring(desk, names).queue_purge(Channel(), _method(commands.Queue.Purge, queue=name))


async def declare_exchange(desk: Desk, names: Names, name: str, said: dict[str, Any]) -> bool:
    """True if it was made."""
    there = names.full(name) in desk.broker.routing.exchange_names()
    method = _method(
        commands.Exchange.Declare,
        exchange=name,
        exchange_type=text(said.get("type", "direct"), "type"),
        durable=flag(said.get("durable", False), "durable"),
        auto_delete=flag(said.get("auto_delete", False), "auto_delete"),
        internal=flag(said.get("internal", False), "internal"),
        arguments=table(said.get("arguments"), "arguments"),
    )
    await declaring(desk, names).exchange_declare(Channel(), method)
    return not there


async def delete_exchange(desk: Desk, names: Names, name: str, *, if_unused: bool) -> None:
    await declaring(desk, names).exchange_delete(
        Channel(), _method(commands.Exchange.Delete, exchange=name, if_unused=if_unused)
    )


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
        method = _method(
            commands.Exchange.Bind,
            destination=ends.destination,
            source=ends.source,
            routing_key=key,
            arguments=arguments,
        )
        await declaring(desk, names).exchange_bind(Channel(), method)
    else:
        queue_bind = _method(
            commands.Queue.Bind, queue=ends.destination, exchange=ends.source, routing_key=key, arguments=arguments
        )
        await declaring(desk, names).queue_bind(Channel(), queue_bind)
