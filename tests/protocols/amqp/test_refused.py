"""A client that may not do something is told 403, and its channel ends; nothing has happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from pamqp import commands
from pamqp.base import Frame

from tests.broker.queue_kit import Machine, put
from tests.protocols.amqp.kit import HEADER, publish
from tests.simulation.amqp_machine import SimConnection
from tests.simulation.world import Simulation
from tests.support.permissions import OpenPermissions
from waystation.broker.broker import Broker
from waystation.errors import NotAllowed
from waystation.queues.settings import QueueSettings
from waystation.security.permissions import Operation, Resource
from waystation.security.principals import Principal
from waystation.wire.amqp.errors import ACCESS_REFUSED, NOT_ALLOWED

Rule = tuple[Operation, Resource]


class Refuses(OpenPermissions):
    """These, and nothing else."""

    def __init__(self, *rules: Rule) -> None:
        super().__init__()
        self._rules = rules

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        if (operation, resource) in self._rules:
            raise NotAllowed(f"{principal.name} may not {operation} {resource} {name!r}", resource)


def with_rules(rules: tuple[Rule, ...], work: Callable[[Broker, SimConnection], Awaitable[None]]) -> None:
    """A broker with a queue `jobs` that has a message, and an exchange `events`."""
    simulation = Simulation(1)

    async def main() -> None:
        broker = await Machine(simulation).start()
        try:
            await broker.queues.declare("jobs", QueueSettings())
            await broker.routing.declare_exchange("events", "fanout")
            await put(broker, "jobs", b"one")
            broker.permissions = Refuses(*rules)
            await work(broker, SimConnection(broker, "client"))
        finally:
            await broker.stop()

    simulation.run(main())


METHODS: list[tuple[Frame, Rule]] = [
    (commands.Queue.Declare(queue="new"), ("create", "queue")),
    (commands.Queue.Declare(queue="jobs", passive=True), ("describe", "queue")),
    (commands.Queue.Purge(queue="jobs"), ("read", "queue")),
    (commands.Queue.Delete(queue="jobs"), ("delete", "queue")),
    (commands.Queue.Bind(queue="jobs", exchange="events"), ("read", "exchange")),
    (commands.Queue.Unbind(queue="jobs", exchange="events"), ("write", "queue")),
    (commands.Exchange.Declare(exchange="new", exchange_type="direct"), ("create", "exchange")),
    (commands.Exchange.Delete(exchange="events"), ("delete", "exchange")),
    (commands.Basic.Consume(queue="jobs"), ("read", "queue")),
    (commands.Basic.Get(queue="jobs"), ("read", "queue")),
    (commands.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True), ("create", "inbox")),
    (commands.Queue.Declare(queue="events", durable=True, arguments={"x-queue-type": "stream"}), ("create", "topic")),
    (commands.Queue.Declare(queue="shared", arguments={"x-topic": "orders"}), ("read", "topic")),
]


@pytest.mark.parametrize(("method", "rule"), METHODS, ids=[f"{method.name} {rule[0]}" for method, rule in METHODS])
def test_a_method_that_the_client_may_not_use_ends_its_channel(method: Frame, rule: Rule) -> None:
    async def work(broker: Broker, connection: SimConnection) -> None:
        await connection.open()
        connection.say(method)
        closed = await connection.next()
        assert isinstance(closed, commands.Channel.Close), closed
        assert closed.reply_code == ACCESS_REFUSED, closed.reply_text
        assert f"may not {' '.join(rule)}" in closed.reply_text
        assert [info.queue for info in broker.queues.list()] == ["jobs"]
        assert (broker.queues.describe("jobs").ready, broker.queues.describe("jobs").consumers) == (1, 0)
        assert [name for name in broker.routing.exchange_names() if name in ("new", "events")] == ["events"]
        assert not [topic.name for topic in broker.topics if not topic.internal]
        assert not broker.topic_queues.names()
        assert not len(broker.inboxes)

    with_rules((rule, ("create", "cluster")), work)  # who may create in the cluster may create topics


def test_a_publish_that_the_client_may_not_send_ends_its_channel() -> None:
    async def work(broker: Broker, connection: SimConnection) -> None:
        await connection.open()
        connection.send(publish(1, b"two", "jobs", "events"))
        closed = await connection.next()
        assert isinstance(closed, commands.Channel.Close)
        assert (closed.reply_code, closed.method_id) == (ACCESS_REFUSED, 40)
        assert "may not write exchange" in closed.reply_text

    with_rules((("write", "exchange"),), work)


def test_a_client_that_may_not_use_a_virtual_host_does_not_get_in() -> None:
    async def work(broker: Broker, connection: SimConnection) -> None:
        connection.send(HEADER)
        await connection.next()
        await connection.ask(commands.Connection.StartOk({}, "PLAIN", "\x00guest\x00guest", "en_US"), 0)
        connection.say(commands.Connection.TuneOk(0, 131_072, 0), 0)
        connection.say(commands.Connection.Open("/"), 0)
        closed = await asyncio.wait_for(connection.next(), 5)
        assert isinstance(closed, commands.Connection.Close)
        assert closed.reply_code == NOT_ALLOWED
        assert "access to vhost '/' refused" in closed.reply_text
        assert not len(broker.connections)

    with_rules((("read", "namespace"),), work)
