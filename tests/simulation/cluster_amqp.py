"""Clients of AMQP in a simulated cluster: frames to the protocol's own sessions, on the node that leads the queues.

They put and take what `Clients` remembers, so that all that must hold of queues holds for them, too. What is confirmed
is stored. An ack has no answer: it is done when a message that was published behind it, on the same channel, is
confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from pamqp import commands

from tests.protocols.amqp.kit import method, publish
from tests.simulation.amqp_machine import SimConnection
from tests.simulation.cluster_clients import REFUSED, Clients, epoch_at
from tests.simulation.cluster_promises import Letter
from tests.simulation.cluster_world import Lost, Node
from tests.simulation.promises import Broken
from waystation.topics.topics import QUEUES_TOPIC

TIMEOUT_S = 3.0
QUEUE = "jobs"
KNOWN_ERRORS = frozenset({320, 404, 405, 541})
"""Reply codes by which a channel or connection may end: forced, not found, locked, internal. Not 406: these clients
acknowledge what they were delivered, on its channel and once, so that no tag of theirs is unknown."""


class _Connection(SimConnection):
    """To one process: what is sent arrives there in its order, while it lives and is not paused. `epoch`: the queues'
    leader epoch that the process knew of when what was sent last arrived; it answers a Basic.Get at once."""

    def __init__(self, node: Node) -> None:
        broker = node.broker
        if broker is None or not node.reachable:
            raise Lost("connection refused")
        self._node, self._life = node, node.life
        self._context = node.context.copy()
        self._loop = asyncio.get_running_loop()
        self.epoch = -1
        self._context.run(super().__init__, broker, f"client of node {node.id}")

    def send(self, data: bytes) -> None:
        self._there(self.session.receive, data)

    def close(self) -> None:
        self._there(partial(self.session.ended, politely=False))

    def _there(self, work: Callable[..., None], *args: Any) -> None:
        self._loop.call_soon(self._do, work, args, context=self._context)

    def _do(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._node.life == self._life and self._node.broker is not None:
            self.epoch = epoch_at(self._node.broker, QUEUES_TOPIC)
            work(*args)

    async def next(self) -> object:
        if self._node.life != self._life:
            raise Lost("connection closed")
        async with asyncio.timeout(TIMEOUT_S):
            value = await super().next()
        if isinstance(value, commands.Channel.Close | commands.Connection.Close):
            if value.reply_code not in KNOWN_ERRORS:
                raise Broken(f"AMQP answers with {value.reply_code} {value.reply_text}")
            raise Lost(f"{value.reply_code} {value.reply_text}")
        return value


class Amqp:
    """Of one run."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        return [self._again(self._put), self._again(self._take)]

    async def _again(self, work: Callable[[Node, _Connection], Coroutine[Any, Any, None]]) -> None:
        """One connection after another, each to the node that leads the queues then."""
        while True:
            await self._clients._pause(0.1)
            try:
                node = self._clients.leader(QUEUES_TOPIC)
                connection = _Connection(node)
                try:
                    await connection.open()
                    await connection.ask(commands.Confirm.Select())
                    for _ in range(self._clients.rng.choice((3, 10, 30))):
                        await self._clients._pause(0.15)
                        await work(node, connection)
                finally:
                    connection.close()
            except REFUSED:
                continue

    async def _put(self, node: Node, connection: _Connection) -> None:
        await self._publish(connection)
        self._clients._succeeded("amqp_put")

    async def _publish(self, connection: _Connection) -> None:
        clients = self._clients
        number = next(clients._numbers)
        letter = clients.promises.letters[number] = Letter(QUEUE)
        priority = clients.rng.choice((0, 0, 5, 9))
        properties = commands.Basic.Properties(delivery_mode=2, priority=priority)
        connection.send(publish(1, b"%d" % number, QUEUE, properties=properties))
        answer = await connection.next()
        if not isinstance(answer, commands.Basic.Ack):
            raise Lost("not confirmed")
        letter.stored = True

    async def _take(self, node: Node, connection: _Connection) -> None:
        clients = self._clients
        connection.say(commands.Basic.Get(0, QUEUE))
        got = await connection.next()
        if isinstance(got, commands.Basic.GetEmpty):
            return
        if not isinstance(got, commands.Basic.GetOk):
            raise Lost(f"told {got} instead")
        await connection.next()
        body = await connection.next()
        number = int(body.value)  # type: ignore[attr-defined]
        clients.delivered(QUEUE, number, None, connection.epoch)
        if clients.rng.random() < 0.2:
            await clients._pause(1.0)
        letter, tag = clients.promises.letters[number], got.delivery_tag or 0
        what = clients.rng.choices(("ack", "reject", "requeue", "forget"), (60, 15, 10, 15))[0]
        if what == "ack":
            letter.ending = True
            connection.send(method(commands.Basic.Ack(tag), 1))
            await self._publish(connection)
            letter.done, letter.done_in = True, connection.epoch
            clients._succeeded("amqp_take")
        elif what != "forget":
            connection.send(method(commands.Basic.Reject(tag, what == "requeue"), 1))
