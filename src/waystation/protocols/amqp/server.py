"""The AMQP listener: a listening socket and the connections behind it.

Everything but the socket is loaded when the first client comes: a broker that nobody speaks AMQP to starts as fast and
stays as small as one without this listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from waystation.world.alarm import PatientTimer
from waystation.world.listener import Leave, Listener

if TYPE_CHECKING:
    from waystation.broker.access.node import Node
    from waystation.broker.access.types import Entrance
    from waystation.protocols.amqp.connection import AmqpConnection
    from waystation.protocols.amqp.room import Room
    from waystation.protocols.budget import Budgets
    from waystation.world.listener import Encryption

TICK_S = 1.0
READ_BYTES = 256 * 1024
FAREWELL_TURNS = 50


class AmqpListener:
    """Opens when started; `stop` closes it and every connection."""

    def __init__(
        self,
        node: Node,
        budgets: Budgets,
        entrance: Entrance,
        host: str,
        port: int,
        encryption: Encryption | None = None,
    ) -> None:
        self.node = node
        self.entrance = entrance
        self.budgets = budgets
        self.now_s = node.world.clock.monotonic
        self.tx_ids: list[str] = []  # transactional ids that no channel uses now
        self._host = host
        self._port = port
        self._encryption = encryption
        self._listener: Listener | None = None
        self._connections: dict[AmqpConnection, None] = {}
        self._leaves: dict[AmqpConnection, Leave] = {}
        self._timer: PatientTimer | None = None
        self._buffer: memoryview | None = None
        self._room: Room | None = None
        self._unsubscribe: Callable[[], None] | None = None

    async def start(self) -> tuple[str, int]:
        """Listens; returns the address, with the port that was taken where 0 was asked for."""
        gate = self.node.admission.gate("amqp")
        self._listener = Listener(self._host, self._port, gate.enter, self._connect, self._encryption)
        self._port = await self._listener.start()
        return self._host, self._port

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            if connection.session is not None:
                connection.session.end("broker forced connection closure with reason 'shutdown'")
            connection.close()
        for _ in range(FAREWELL_TURNS):
            await asyncio.sleep(0)
            if not self._connections:
                return
        for connection in list(self._connections):
            connection.abort()  # a client that does not read would keep its connection for ever
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def buffer(self) -> memoryview:
        """Where bytes arrive, of whichever connection is read."""
        if self._buffer is None:
            self._buffer = memoryview(bytearray(READ_BYTES))
        return self._buffer

    @property
    def room(self) -> Room:
        """Memory for what clients have sent and what cannot be stored yet."""
        if self._room is None:
            from waystation.protocols.amqp.room import LARGEST_SETTING, SETTING, Room

            integer = self.node.settings.integer
            self._room = Room(partial(integer, SETTING), partial(integer, LARGEST_SETTING))
        return self._room

    def _connect(self, leave: Leave) -> AmqpConnection:
        from waystation.protocols.amqp.connection import AmqpConnection

        if self._timer is None:
            self._timer = PatientTimer(TICK_S, self._tick)
            self._unsubscribe = self._subscribe()
        connection = AmqpConnection(self)
        self._leaves[connection] = leave
        return connection

    def _subscribe(self) -> Callable[[], None]:
        from waystation.broker.access.types import ANONYMOUS, DEFAULT

        return self.node.access(ANONYMOUS, DEFAULT, self.node.meters.amqp).subscribe_alarms(self._alarm)

    def add(self, connection: AmqpConnection) -> None:
        self._connections[connection] = None

    def dismiss(self, connection: AmqpConnection) -> None:
        self._connections.pop(connection, None)
        leave = self._leaves.pop(connection, None)
        if leave is not None:
            leave()

    def _alarm(self, namespace: str, reason: str | None) -> None:
        for connection in list(self._connections):
            session = connection.session
            if session is not None and session.names.vhost == namespace:
                session.alarm(reason)

    def _tick(self) -> None:
        self._timer = PatientTimer(TICK_S, self._tick)
        now_s = self.now_s()
        for connection in list(self._connections):
            connection.tick(now_s)
