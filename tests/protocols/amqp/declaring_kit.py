"""The protocol's declaring code on a whole broker, without a socket: two connections that take steps of a case."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pamqp import commands

from tests.broker.queue_kit import Inbox, Machine, put
from tests.protocols.amqp.declaring_steps import Refusal, Step
from tests.simulation.world import Simulation
from waystation.broker.access.types import ANONYMOUS
from waystation.broker.broker import Broker
from waystation.protocols.amqp.declaring import Declaring
from waystation.vhosts.sources import Sources
from waystation.wire.amqp.errors import AmqpError

METHODS: dict[str, type[Any]] = {
    "queue_declare": commands.Queue.Declare,
    "queue_bind": commands.Queue.Bind,
    "queue_unbind": commands.Queue.Unbind,
    "queue_purge": commands.Queue.Purge,
    "queue_delete": commands.Queue.Delete,
    "exchange_declare": commands.Exchange.Declare,
    "exchange_delete": commands.Exchange.Delete,
    "exchange_bind": commands.Exchange.Bind,
    "exchange_unbind": commands.Exchange.Unbind,
}


class Client:
    """A connection with one channel."""

    def __init__(self, broker: Broker, owner: str = "one", vhost: str = "/") -> None:
        access = broker.access(ANONYMOUS, vhost, broker.meters.amqp)
        self.broker = broker
        self.names = access.names
        self.owner = owner
        self.last_queue = ""
        self.declaring = Declaring(access, broker.world, owner, Sources(access, broker.world))

    async def do(self, step: Step) -> Any:
        """As the wire would: fields are set, not checked by the library that writes them."""
        full = self.names.full(step.fields.get("queue", ""))
        if step.method == "publish":
            return await put(self.broker, full, b"x")
        if step.method == "consume":
            return Inbox(self.broker, full, credit=0, owner=self.owner)
        method = METHODS[step.method]()
        for name, value in step.fields.items():
            setattr(method, name, value)
        return await getattr(self.declaring, step.method)(self, method)

    async def refusal(self, step: Step) -> Refusal | None:
        try:
            await self.do(step)
        except AmqpError as error:
            return Refusal(error.code, error.text)
        return None


def with_broker(work: Callable[[Broker], Awaitable[None]]) -> None:
    """Runs it against a broker on a simulated disk."""
    simulation = Simulation(1)

    async def main() -> None:
        machine = Machine(simulation)
        await machine.start()
        try:
            await work(machine.broker)
        finally:
            await machine.broker.stop()

    simulation.run(main())
