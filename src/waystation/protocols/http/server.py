"""The HTTP listener: a listening socket and the connections behind it.

Everything but the socket is loaded when the first client comes: a broker that nobody speaks HTTP to starts as fast and
stays as small as one without this listener.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from waystation.world.alarm import PatientTimer
from waystation.world.listener import Leave, Listener

if TYPE_CHECKING:
    from waystation.broker.access.node import Node
    from waystation.broker.access.types import Entrance
    from waystation.protocols.budget import Budgets
    from waystation.protocols.http.connection import HttpConnection
    from waystation.protocols.http.mounted import Mounts
    from waystation.protocols.http.request_dispatcher import RequestDispatcher
    from waystation.world.listener import Encryption

TICK_S = 5.0
STOP_S = 5.0
"""How long calls that are under way may take to end when the broker stops."""


class HttpListener:
    """Opens when started; `stop` closes it and every connection. `mounts`: what else is served here (`mounted.py`)."""

    def __init__(
        self,
        broker: Node,
        budgets: Budgets,
        entrance: Entrance,
        host: str,
        port: int,
        mounts: Mounts,
        encryption: Encryption | None = None,
    ) -> None:
        self.broker = broker
        self.entrance = entrance
        self.budgets = budgets
        self._host = host
        self._port = port
        self._mounts = mounts
        self._encryption = encryption
        self._dispatcher: RequestDispatcher | None = None
        self._listener: Listener | None = None
        self._connections: set[HttpConnection] = set()
        self._leaves: dict[HttpConnection, Leave] = {}
        self._timer: PatientTimer | None = None
        self._date = (0, "")

    async def start(self) -> tuple[str, int]:
        """Listens; returns the address, with the port that was taken where 0 was asked for."""
        gate = self.broker.admission.gate("http")
        self._listener = Listener(self._host, self._port, gate.enter, self._connect, self._encryption)
        self._port = await self._listener.start()
        return self._host, self._port

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.shut()
        if self._dispatcher is not None:
            await self._dispatcher.close(STOP_S)
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)

    @property
    def dispatcher(self) -> RequestDispatcher:
        if self._dispatcher is None:
            from waystation.protocols.http.request_dispatcher import RequestDispatcher

            self._dispatcher = RequestDispatcher(
                self.broker, self.entrance, self._host, self.budgets.long_work, self._mounts
            )
        return self._dispatcher

    def _connect(self, leave: Leave) -> HttpConnection:
        from waystation.protocols.http.connection import HttpConnection

        if self._timer is None:
            self._timer = PatientTimer(TICK_S, self._tick)
        connection = HttpConnection(self)
        self._leaves[connection] = leave
        return connection

    def add(self, connection: HttpConnection) -> None:
        self._connections.add(connection)

    def dismiss(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        leave = self._leaves.pop(connection, None)
        if leave is not None:
            leave()

    def now_s(self) -> float:
        return self.broker.world.clock.monotonic()

    def date(self) -> str:
        """The time as HTTP writes it, made once a second."""
        now = self.broker.world.clock.now_ms() // 1000
        if self._date[0] != now:
            from email.utils import formatdate

            self._date = (now, formatdate(now, usegmt=True))
        return self._date[1]

    def _tick(self) -> None:
        self._timer = PatientTimer(TICK_S, self._tick)
        now_s = self.now_s()
        idle_s = self.broker.settings.integer("connections.max.idle.ms") / 1000
        for connection in list(self._connections):
            connection.tick(now_s, idle_s)
        if self._dispatcher is not None:
            self._dispatcher.sweep()
