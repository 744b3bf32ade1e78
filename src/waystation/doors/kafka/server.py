"""The Kafka door: a listening socket and the connections behind it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from waystation.doors.kafka.connection import Connection
from waystation.doors.kafka.fetch_sessions import Sessions
from waystation.doors.kafka.registry import Listener, load_all

if TYPE_CHECKING:
    from waystation.broker.broker import Broker

IDLE_CHECK_S = 10.0


class KafkaDoor:
    """Opens when started; `stop` closes it and every connection."""

    def __init__(self, broker: Broker, host: str, port: int) -> None:
        self.broker = broker
        self.sessions = Sessions(broker.world.random)
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Future[None]] = set()
        self._idle_timer: asyncio.TimerHandle | None = None

    async def start(self) -> tuple[str, int]:
        """Listens; returns the address, with the port that was taken where 0 was asked for."""
        load_all()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), self._host, self._port, backlog=1024)
        self._idle_timer = loop.call_later(IDLE_CHECK_S, self._close_idle)
        address = self._server.sockets[0].getsockname()
        self._port = int(address[1])
        return self._host, self._port

    async def stop(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)

    def advertised(self, host: str, port: int) -> Listener:
        """The address that clients on a connection to (host, port) are told: the one that they have reached."""
        return Listener(host, port)

    def admit(self, connection: Connection) -> bool:
        if len(self._connections) >= self.broker.settings.integer("max.connections"):
            return False
        self._connections.add(connection)
        return True

    def dismiss(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def keep(self, task: asyncio.Future[None]) -> None:
        """Holds a task until it is done: the loop alone would let it be collected."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close_idle(self) -> None:
        limit = self.broker.settings.integer("connections.max.idle.ms") / 1000
        now = self.broker.world.clock.monotonic()
        for connection in list(self._connections):
            if now - connection.last_active > limit:
                connection.close()
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_CHECK_S, self._close_idle)
