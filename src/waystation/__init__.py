"""Waystation: a message broker for Python people.

    import waystation as ws

    with ws.connect("waystation://localhost:9092") as mq:      # or ws.open("./data"): the broker in this process
        mq.publish("orders.eu", {"id": 7}, key="u1")
        jobs = mq.queue("jobs", max_deliveries=5)
        jobs.put({"resize": "a.png"}, priority=9)
        with jobs.get(timeout=5) as message:
            work(message.json())

`waystation.aio` has the same for asyncio. Importing this loads nothing but the names below; the rest comes with the
first call.
"""

from __future__ import annotations

import typing

from waystation import errors
from waystation.errors import WaystationError
from waystation.version import __version__

if typing.TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from waystation import aio as aio
    from waystation.client.consuming.message_builder import MessageBuilder as MessageBuilder
    from waystation.client.consuming.resequencing import Resequencer as Resequencer
    from waystation.client.options.payloads import MessageType as MessageType
    from waystation.client.options.queue_options import Retry as Retry
    from waystation.client.options.values import Seconds
    from waystation.client.sending.producing import Guarantee
    from waystation.client.sync.client import Client as Client
    from waystation.client.sync.message import Message as Message
    from waystation.client.sync.queue import Queue as Queue
    from waystation.client.sync.subscription import Subscription as Subscription
    from waystation.client.sync.transaction import Transaction as Transaction
    from waystation.inprocess import EmbeddedBroker
    from waystation.message import Priority as Priority

__all__ = [
    "Client",
    "Message",
    "MessageBuilder",
    "MessageType",
    "Priority",
    "Queue",
    "Resequencer",
    "Retry",
    "Subscription",
    "Transaction",
    "WaystationError",
    "__version__",
    "aio",
    "connect",
    "errors",
    "open",
]

_LATER = {
    "Client": "waystation.client.sync.client",
    "Message": "waystation.client.sync.message",
    "MessageBuilder": "waystation.client.consuming.message_builder",
    "MessageType": "waystation.client.options.payloads",
    "Priority": "waystation.message",
    "Queue": "waystation.client.sync.queue",
    "Resequencer": "waystation.client.consuming.resequencing",
    "Retry": "waystation.client.options.queue_options",
    "Subscription": "waystation.client.sync.subscription",
    "Transaction": "waystation.client.sync.transaction",
}


def __getattr__(name: str) -> typing.Any:
    """The names that bring asyncio with them, when they are first asked for."""
    from importlib import import_module

    if name == "aio":
        return import_module("waystation.aio")
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'waystation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def connect(
    url: str | Sequence[str] | None = None,
    *,
    name: str | None = None,
    connections: int = 1,
    guarantee: Guarantee = "at-least-once",
    timeout: float = 30.0,
    wait: float = 0.0,
    max_in_flight: int = 64 * 1024 * 1024,
    default_priority: int | None = None,
    default_ttl: Seconds | None = None,
) -> Client:
    """Connects to a broker; raises ConnectionLost if it cannot be reached.

    `url` is `waystation://HOST:PORT`, the address of the broker's Kafka port; without one, the environment variable
    `WAYSTATION_SERVER`, or port 9092 of this machine. Several addresses, in a list or separated by commas, are tried in
    turn, now and whenever the connection is lost. `name` is what the broker's lists call this client. `connections`
    above one spreads what is sent over several. `guarantee` is the default of everything that is sent and, but for
    exactly once, received: `"at-most-once"`, `"at-least-once"`, `"exactly-once"`. `timeout`: how many seconds a request
    may take, reconnecting included. `wait`: how long to keep trying if nobody listens there yet. `max_in_flight`: the
    maximum of bytes that are sent and not yet acknowledged; above it, sending blocks. `default_priority` and
    `default_ttl` (seconds) are those of every message that is sent without a `priority` or `ttl` of its own; requests
    expire when nobody waits for the reply any more.

    A lost connection is re-established automatically, with backoff; subscriptions and handlers continue.
    """
    from waystation.client.sync.connecting import connect

    return connect(
        url,
        name=name,
        connections=connections,
        guarantee=guarantee,
        timeout=timeout,
        wait=wait,
        max_in_flight=max_in_flight,
        default_priority=default_priority,
        default_ttl=default_ttl,
    )


def open(
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, str | int | float] | None = None,
    kafka: str = "127.0.0.1:0",
    http: str = "off",
    amqp: str = "off",
    guarantee: Guarantee = "at-least-once",
    timeout: float = 30.0,
    max_in_flight: int = 64 * 1024 * 1024,
    default_priority: int | None = None,
    default_ttl: Seconds | None = None,
) -> EmbeddedBroker:
    """Starts a broker in this process, in the background, and returns it, as a client, when it takes connections.

    `path` is the data folder, created if it does not exist; only one broker at a time can use it (`DataInUse`).
    `":memory:"` means no folder: nothing is on disk, and all data is lost on close. `settings` are the broker's,
    by their dotted names. `kafka` is the address of its Kafka listener (native clients use the same port), on this
    machine: port 0 picks a free one, `"off"` turns it off; `http` and `amqp` the same for HTTP and AMQP. The other
    options are those of `connect`. Errors of the start are raised here.

        with waystation.open("./data", settings={"num.partitions": 4}) as mq:
            mq.publish("orders", {"id": 7})
            producer = confluent_kafka.Producer({"bootstrap.servers": mq.kafka})
    """
    from waystation.inprocess import EmbeddedBroker

    return EmbeddedBroker(
        path,
        settings,
        kafka,
        http,
        amqp,
        guarantee=guarantee,
        timeout=timeout,
        max_in_flight=max_in_flight,
        default_priority=default_priority,
        default_ttl=default_ttl,
    )
