"""The Kafka door: what the connections of Kafka clients share. Their socket is the front's (`doors/front.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from waystation.doors.kafka.connection import Connection
from waystation.doors.kafka.fetch_sessions import Sessions
from waystation.doors.kafka.registry import Listener, load_all

if TYPE_CHECKING:
    from waystation.broker.broker import Broker


class KafkaDoor:
    """Made once per broker; `connection` is called by the front for each client that speaks Kafka."""

    def __init__(self, broker: Broker) -> None:
        load_all()
        self.broker = broker
        self.sessions = Sessions(broker.world.random)
        self._tasks: set[asyncio.Future[None]] = set()

    def connection(self, gone: Callable[[], None]) -> Connection:
        """`gone` is called when the connection is over."""
        return Connection(self, gone)

    def advertised(self, host: str, port: int) -> Listener:
        """The address that clients on a connection to (host, port) are told: the one that they have reached."""
        return Listener(host, port)

    def keep(self, task: asyncio.Future[None]) -> None:
        """Holds a task until it is done: the loop alone would let it be collected."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
