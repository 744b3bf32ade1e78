"""The client for asyncio: the same verbs as `waystation`, awaited.

async with waystation.aio.connect("waystation://localhost:9092") as mq:
    jobs = await mq.queue("jobs")
    await jobs.put({"resize": "a.png"})
    async with jobs.get(timeout=5) as message:
        work(message.json())
"""

from __future__ import annotations

import os as _os
from collections.abc import Mapping as _Mapping
from collections.abc import Sequence as _Sequence
from typing import TYPE_CHECKING as _TYPE_CHECKING

from waystation.client.aio.bridge import Bridge as _Bridge
from waystation.client.aio.client import Client
from waystation.client.aio.exchange import Exchange
from waystation.client.aio.message import Message
from waystation.client.aio.opening import Opening as _Opening
from waystation.client.aio.queue import Queue
from waystation.client.aio.subscription import Subscription
from waystation.client.aio.transaction import Transaction
from waystation.client.core import Core as _Core
from waystation.client.links.servers import parse_servers as _parse_servers
from waystation.client.links.socket_link import socket_dials as _socket_dials
from waystation.client.options.values import Seconds as _Seconds
from waystation.client.options.values import message_defaults as _message_defaults
from waystation.client.sending.budget import DEFAULT_IN_FLIGHT_BYTES as _IN_FLIGHT
from waystation.client.sending.budget import Budget as _Budget
from waystation.client.sending.producing import Guarantee as _Guarantee
from waystation.errors import Invalid as _Invalid

if _TYPE_CHECKING:
    from waystation.inprocess import AsyncEmbeddedBroker

__all__ = ["Client", "Exchange", "Message", "Queue", "Subscription", "Transaction", "connect", "open"]


def connect(
    url: str | _Sequence[str] | None = None,
    *,
    name: str | None = None,
    connections: int = 1,
    guarantee: _Guarantee = "at-least-once",
    timeout: float = 30.0,
    wait: float = 0.0,
    max_in_flight: int = _IN_FLIGHT,
    default_priority: int | None = None,
    default_ttl: _Seconds | None = None,
) -> _Opening[Client]:
    """Connects to a broker; await it or enter it. The options are those of `waystation.connect`."""
    servers = _parse_servers(url)
    if connections < 1:
        raise _Invalid(f"connections: {connections} is below 1")
    defaults = _message_defaults(default_priority, default_ttl)

    async def work() -> Client:
        core = _Core(
            _socket_dials(servers, timeout),
            credentials=servers[0].credentials,
            budget=_Budget(max_in_flight),
            name=name,
            connections=connections,
            guarantee=guarantee,
            timeout_s=timeout,
            defaults=defaults,
        )
        await core.open(wait)
        return Client(core, _Bridge(core))

    return _Opening(work())


def open(
    path: str | _os.PathLike[str],
    *,
    settings: _Mapping[str, str | int | float] | None = None,
    kafka: str = "127.0.0.1:0",
    http: str = "off",
    amqp: str = "off",
    guarantee: _Guarantee = "at-least-once",
    timeout: float = 30.0,
    max_in_flight: int = _IN_FLIGHT,
    default_priority: int | None = None,
    default_ttl: _Seconds | None = None,
) -> _Opening[AsyncEmbeddedBroker]:
    """Starts a broker in this process, on a thread of its own; await it or enter it.

    What you get is a client of it as well. The options are those of `waystation.open`.
    """
    from waystation.inprocess import open_async

    return _Opening(
        open_async(
            path,
            settings,
            kafka,
            http,
            amqp,
            guarantee=guarantee,
            timeout=timeout,
            max_in_flight=max_in_flight,
            defaults=_message_defaults(default_priority, default_ttl),
        )
    )
