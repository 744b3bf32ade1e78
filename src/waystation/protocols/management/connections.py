"""RabbitMQ's management API: connections, their channels and their consumers, as they are now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from waystation.broker.access.types import NamespaceNames
from waystation.observe.connections import ChannelInfo, Connected, ConnectionInfo, ConsumerInfo
from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.management.calls import ApiCall, not_found, route, vhost_of
from waystation.protocols.management.paging import columns_of, only, reply_list
from waystation.protocols.management.shapes import Shown, node_name, plain

if TYPE_CHECKING:
    from waystation.protocols.management.api import Management

LOOKED_AT_ONCE = 200
PROTOCOL_NAME = "amqp"
"""What comes by other protocols has no virtual host and no channels, and is no business of RabbitMQ's tools."""
PROTOCOL = "AMQP 0-9-1"
CLOSED = "Closed via management plugin"
"""As RabbitMQ says it: there are clients that look for it."""


class Chan(NamedTuple):
    connection: ConnectionInfo
    info: ChannelInfo

    @property
    def name(self) -> str:
        return f"{self.connection.name} ({self.info.number})"


class Cons(NamedTuple):
    channel: Chan
    info: ConsumerInfo


async def connections(api: Management, vhost: str | None = None) -> list[ConnectionInfo]:
    """Those of AMQP, in the order of their names. Each is asked; in slices, since there may be ten thousand."""
    found = [info async for info in _infos(api) if vhost is None or info.namespace == vhost]
    return sorted(found, key=lambda info: info.name)


def _sees(api: Management, connection: Connected) -> bool:
    """Who may not look at the broker sees its own connections."""
    return api.access.cluster.may_describe() or (bool(connection.login) and connection.login == api.principal.name)


async def _infos(api: Management) -> AsyncIterator[ConnectionInfo]:
    for count, connection in enumerate(api.node.connections, 1):
        closed = api.node.connections.get(connection.name) is not connection
        if connection.protocol == PROTOCOL_NAME and not closed and _sees(api, connection):
            yield connection.info()
        if not count % LOOKED_AT_ONCE:
            await asyncio.sleep(0)


def _found(api: Management, name: str) -> Connected | None:
    connection = api.node.connections.get(name)
    if connection is None or connection.protocol != PROTOCOL_NAME or not _sees(api, connection):
        return None
    return connection


def _channels(infos: list[ConnectionInfo]) -> Iterator[Chan]:
    return (Chan(info, channel) for info in infos for channel in info.channels)


async def consumers(api: Management, vhost: str | None = None) -> list[Cons]:
    infos = await connections(api, vhost)
    return [Cons(channel, consumer) for channel in _channels(infos) for consumer in channel.info.consumers]


# -- how they are shown ------------------------------------------------------------------------------------------------


def show_connection(api: Management, info: ConnectionInfo) -> Shown:
    shown: Shown = {
        "channel_max": info.channel_max,
        "channels": len(info.channels),
        "client_properties": plain(info.client),
        "connected_at": info.since_ms,
        "frame_max": info.frame_max,
        "host": info.host[0],
        "name": info.name,
        "node": node_name(api.node),
        "peer_host": info.peer[0],
        "peer_port": info.peer[1],
        "port": info.host[1],
        "protocol": PROTOCOL,
        "ssl": False,
        "state": info.state,
        "timeout": info.heartbeat_s,
        "type": "network",
        "user": info.user,
        "vhost": info.namespace,
    }
    counts = {"recv_oct": info.received_bytes, "send_oct": info.sent_bytes}
    shown |= api.rates.details(("connection", info.name), counts)
    given = info.client.get("connection_name")
    if isinstance(given, str):
        shown["user_provided_name"] = given
    return shown


def show_channel(api: Management, channel: Chan) -> Shown:
    connection, info = channel
    counts = {"publish": info.published, "deliver_get": info.delivered, "ack": info.acked}
    shown: Shown = {
        "confirm": info.confirms,
        "connection_details": {
            "name": connection.name,
            "peer_host": connection.peer[0],
            "peer_port": connection.peer[1],
        },
        "consumer_count": len(info.consumers),
        "global_prefetch_count": info.global_prefetch,
        "messages_unacknowledged": info.unacked,
        "messages_unconfirmed": info.unconfirmed,
        "name": channel.name,
        "node": node_name(api.node),
        "number": info.number,
        "prefetch_count": info.prefetch,
        "state": "running",
        "transactional": info.transactional,
        "user": connection.user,
        "vhost": connection.namespace,
    }
    if any(counts.values()):
        shown["message_stats"] = api.rates.details(("channel", channel.name), counts)
    return shown


def show_consumer(api: Management, consumer: Cons) -> Shown:
    channel, info = consumer
    connection = channel.connection
    return {
        "ack_required": info.acks,
        "arguments": plain(info.arguments),
        "channel_details": {
            "connection_name": connection.name,
            "name": channel.name,
            "node": node_name(api.node),
            "number": info.channel,
            "peer_host": connection.peer[0],
            "peer_port": connection.peer[1],
            "user": connection.user,
        },
        "consumer_tag": info.tag,
        "exclusive": info.exclusive,
        "prefetch_count": info.prefetch,
        "queue": {"name": NamespaceNames(connection.namespace).local(info.queue), "vhost": connection.namespace},
    }


# -- calls -------------------------------------------------------------------------------------------------------------


async def list_connections(api: Management, call: ApiCall) -> Reply:
    infos = await connections(api)
    return await reply_list(call.query, infos, lambda info: info.name, lambda info: show_connection(api, info))


async def list_connections_of_vhost(api: Management, call: ApiCall) -> Reply:
    infos = await connections(api, vhost_of(api, call).namespace)
    return await reply_list(call.query, infos, lambda info: info.name, lambda info: show_connection(api, info))


def _connection(api: Management, call: ApiCall) -> ConnectionInfo:
    found = _found(api, call.path["connection"])
    if found is None:
        raise not_found()
    return found.info()


async def describe_connection(api: Management, call: ApiCall) -> Shown:
    return only(show_connection(api, _connection(api, call)), columns_of(call.query))


async def close_connection(api: Management, call: ApiCall) -> None:
    found = _found(api, call.path["connection"])
    if found is None:
        raise not_found()
    api.access.views.end_connection(found.name, call.request.headers.get("x-reason") or CLOSED)


async def list_channels_of_connection(api: Management, call: ApiCall) -> Reply:
    return await _list_channels(api, call, [_connection(api, call)])


async def list_channels(api: Management, call: ApiCall) -> Reply:
    return await _list_channels(api, call, await connections(api))


async def list_channels_of_vhost(api: Management, call: ApiCall) -> Reply:
    return await _list_channels(api, call, await connections(api, vhost_of(api, call).namespace))


async def _list_channels(api: Management, call: ApiCall, infos: list[ConnectionInfo]) -> Reply:
    return await reply_list(
        call.query, _channels(infos), lambda channel: channel.name, lambda channel: show_channel(api, channel)
    )


async def describe_channel(api: Management, call: ApiCall) -> Shown:
    name = call.path["channel"]
    connection = _found(api, name.rpartition(" (")[0])
    for channel in _channels([] if connection is None else [connection.info()]):
        if channel.name == name:
            details = [show_consumer(api, Cons(channel, one)) for one in channel.info.consumers]
            shown: dict[str, Any] = {**show_channel(api, channel), "consumer_details": details}
            return only(shown, columns_of(call.query))
    raise not_found()


async def list_consumers(api: Management, call: ApiCall) -> Reply:
    return await _list_consumers(api, call, await consumers(api))


async def list_consumers_of_vhost(api: Management, call: ApiCall) -> Reply:
    return await _list_consumers(api, call, await consumers(api, vhost_of(api, call).namespace))


async def _list_consumers(api: Management, call: ApiCall, found: list[Cons]) -> Reply:
    return await reply_list(call.query, found, lambda one: one.info.tag, lambda one: show_consumer(api, one))


ROUTES: tuple[AnyRoute, ...] = (
    route("GET", "/connections", list_connections, "List connections"),
    route("GET", "/connections/{connection}", describe_connection, "Describe a connection"),
    route("DELETE", "/connections/{connection}", close_connection, "Close a connection"),
    route("GET", "/connections/{connection}/channels", list_channels_of_connection, "List a connection's channels"),
    route("GET", "/vhosts/{vhost}/connections", list_connections_of_vhost, "List a virtual host's connections"),
    route("GET", "/vhosts/{vhost}/channels", list_channels_of_vhost, "List a virtual host's channels"),
    route("GET", "/channels", list_channels, "List channels"),
    route("GET", "/channels/{channel}", describe_channel, "Describe a channel"),
    route("GET", "/consumers", list_consumers, "List consumers"),
    route("GET", "/consumers/{vhost}", list_consumers_of_vhost, "List a virtual host's consumers"),
)
