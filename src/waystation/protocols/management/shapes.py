"""Queues, exchanges and bindings as RabbitMQ's management API shows them.

Field names, types and nesting are RabbitMQ's; what the broker does not know is left out. Pure but for the broker that
is looked at. Used by the handlers of this folder.
"""

from __future__ import annotations

import base64
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, unquote_plus

from waystation.broker.access.types import EXCHANGE, QUEUE, Binding, NamespaceNames, QueueFigures, declared
from waystation.vhosts.arguments import arguments_of
from waystation.vhosts.sources import Source, Sources
from waystation.vhosts.streams import STREAM
from waystation.wire.crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from waystation.broker.access import Access
    from waystation.broker.access.node import Node
    from waystation.protocols.management.api import Management

Shown = dict[str, Any]
PAGE = 1_000


def node_name(node: Node) -> str:
    return f"waystation@{node.node_id}"


# -- queues ------------------------------------------------------------------------------------------------------------


def queue_names(access: Access) -> Iterator[str]:
    """Full names of what AMQP clients of a virtual host see as queues, in order: ordinary ones, then those on topics,
    then streams. It may be gone through in slices; what is deleted meanwhile is left out by `show_queue`."""
    of, names = access.namespace_of, access.names
    after = ""
    while page := list(islice(access.queue_figures.names(names.prefix, after), PAGE)):
        yield from (name for name in page if of(name) == names.vhost)
        after = page[-1]
    yield from (name for name in access.topic_queues.names(names.prefix) if of(name) == names.vhost)
    for topic in access.stream_queues.names():
        if access.namespace_of_topic(topic) == names.vhost:
            yield names.full(names.local_topic(topic))


def show_queue(api: Management, access: Access, full: str, *, basic: bool = False) -> Shown | None:
    """None if there is none. `basic`: without what is counted."""
    figures = access.queue_figures.find(full)
    if figures is not None:
        return _ordinary(api, access, full, figures, basic)
    source = Sources(access, api.node.world).find(access.names.local(full))
    return None if source is None or not source.declared else _source(api, access, source, basic)


def _ordinary(api: Management, access: Access, full: str, queue: QueueFigures, basic: bool) -> Shown:
    names, settings = access.names, queue.settings
    shown: Shown = {
        "arguments": plain(arguments_of(declared(settings), names)),
        "auto_delete": settings.auto_delete,
        "durable": settings.durable,
        "exclusive": settings.exclusive,
        "name": names.local(full),
        "node": node_name(api.node),
        "policy": settings.policy,
        "state": "running",
        "type": settings.queue_type or "classic",
        "vhost": names.vhost,
    }
    if basic:
        return shown
    policy = access.policies.find(names.vhost, settings.policy) if settings.policy is not None else None
    shown["effective_policy_definition"] = policy.definition if policy is not None else {}
    shown["operator_policy"] = None
    shown["consumers"] = queue.consumers
    shown["message_bytes"] = queue.bytes
    ready, delayed, in_flight = queue.ready, queue.delayed, queue.in_flight
    if delayed:
        shown["messages_delayed"] = delayed
    counts = {"messages": ready + delayed + in_flight, "messages_ready": ready, "messages_unacknowledged": in_flight}
    shown |= api.rates.details(("queue", full), counts)
    if queue.put or queue.delivered:
        counts = {"publish": queue.put, "deliver_get": queue.delivered, "ack": queue.acked}
        shown["message_stats"] = api.rates.details(("queue-stats", full), counts)
    if settings.exclusive and queue.owner is not None:
        owner = api.node.connections.get(queue.owner)
        if owner is not None:
            info = owner.info()
            shown["owner_pid_details"] = {"name": info.name, "peer_host": info.peer[0], "peer_port": info.peer[1]}
    return shown


def _source(api: Management, access: Access, source: Source, basic: bool) -> Shown:
    names = access.names
    durable, auto_delete = True, False
    on_topic = access.topic_queues.find(names.full(source.name)) if source.kind == "topic" else None
    if on_topic is not None:
        durable, auto_delete = on_topic.settings.durable, on_topic.settings.auto_delete
    policy = access.stream_queues.policy(source.topic) if source.kind == STREAM else None
    shown: Shown = {
        "arguments": plain(source.arguments),
        "auto_delete": auto_delete,
        "durable": durable,
        "exclusive": False,
        "name": source.name,
        "node": node_name(api.node),
        "policy": None if policy is None else policy.name,
        "state": "running",
        "type": STREAM if source.kind == STREAM else "classic",
        "vhost": names.vhost,
    }
    if basic:
        return shown
    ready, consumers = source.counts()
    shown["effective_policy_definition"] = {} if policy is None else policy.definition
    shown |= {"operator_policy": None, "consumers": consumers}
    counts = {"messages": ready, "messages_ready": ready}
    if on_topic is not None:
        in_flight = access.topic_queues.counts(names.full(source.name)).in_flight
        counts = {"messages": ready + in_flight, "messages_ready": ready, "messages_unacknowledged": in_flight}
    return shown | api.rates.details(("queue", names.full(source.name)), counts)


def plain(value: Any) -> Any:
    """What a field table may hold and JSON has no word for, as RabbitMQ writes it."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="replace")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    timestamp = getattr(value, "timestamp", None)
    return int(timestamp()) if timestamp is not None else str(value)


# -- exchanges ---------------------------------------------------------------------------------------------------------


def exchange_names(access: Access) -> list[str]:
    """Full names, in order, the default exchange first."""
    prefix, of = access.names.prefix, access.namespace_of
    found = [
        name for name in access.exchanges.names() if name and name.startswith(prefix) and of(name) == access.namespace
    ]
    return ["", *sorted(found)]


def show_exchange(access: Access, full: str) -> Shown | None:
    """None if there is none."""
    names, exchange = access.names, access.exchanges.find(full)
    if exchange is None:
        return None
    settings = exchange.settings
    arguments = plain(settings.arguments)
    if settings.alternate is not None:
        arguments.setdefault("alternate-exchange", names.local(settings.alternate))
    shown = {
        "arguments": arguments,
        "auto_delete": settings.auto_delete,
        "durable": settings.durable,
        "internal": settings.internal,
        "name": names.local(full) if full else "",
        "type": settings.kind,
        "vhost": names.vhost,
    }
    if exchange.policy is not None:
        shown["policy"] = exchange.policy
    return shown


# -- bindings ----------------------------------------------------------------------------------------------------------


def show_binding(names: NamespaceNames, binding: Binding) -> Shown:
    kind, name = binding.kind, binding.name
    return {
        "source": names.local(binding.exchange),
        "vhost": names.vhost,
        "destination": names.local(name) if kind in (QUEUE, EXCHANGE) else names.local_topic(name),
        "destination_type": EXCHANGE if kind == EXCHANGE else QUEUE,
        "routing_key": binding.key,
        "arguments": plain(binding.arguments),
        "properties_key": properties_key(binding),
    }


def show_default_binding(names: NamespaceNames, queue: str) -> Shown:
    """Every queue is bound to the default exchange by its name."""
    local = names.local(queue)
    return {
        "source": "",
        "vhost": names.vhost,
        "destination": local,
        "destination_type": QUEUE,
        "routing_key": local,
        "arguments": {},
        "properties_key": quote_plus(local),
    }


def properties_key(binding: Binding) -> str:
    """What tells a binding from others between the same two: its key, and a trace of its arguments."""
    if not binding.arguments:
        return quote_plus(binding.key) or "~"
    trace = base64.urlsafe_b64encode(crc32c(binding.canonical).to_bytes(4, "big")).decode().rstrip("=")
    return f"{quote_plus(binding.key)}~{trace}"


def is_properties_key(binding: Binding, said: str) -> bool:
    """In a path it comes decoded once or twice, as clients like it."""
    known = properties_key(binding)
    return said in (known, unquote_plus(known)) or unquote_plus(said) == known
