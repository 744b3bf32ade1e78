"""What a client may have the broker keep of its consumers: so many, with arguments of a bounded size."""

from __future__ import annotations

import pytest
from pamqp import commands

from tests.protocols.amqp.test_refused import with_rules
from tests.simulation.amqp_machine import SimConnection
from waystation.broker.broker import Broker
from waystation.protocols.amqp import consuming
from waystation.wire.amqp.errors import NOT_ALLOWED, PRECONDITION_FAILED


def test_a_connection_has_so_many_consumers_on_all_of_its_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker, connection: SimConnection) -> None:
        await connection.open()
        await connection.ask(commands.Queue.Declare(queue="empty"))
        await connection.ask(commands.Channel.Open(), 2)
        await connection.ask(commands.Channel.Open(), 3)
        for channel in (1, 2):
            ok = await connection.ask(commands.Basic.Consume(queue="empty", consumer_tag="a"), channel)
            assert isinstance(ok, commands.Basic.ConsumeOk)
        await connection.ask(commands.Basic.Cancel("a"), 1)
        await connection.ask(commands.Basic.Consume(queue="empty", consumer_tag="b"), 3)
        connection.say(commands.Basic.Consume(queue="empty", consumer_tag="c"), 1)
        closed = await connection.next()
        assert isinstance(closed, commands.Connection.Close)
        assert closed.reply_code == NOT_ALLOWED

    monkeypatch.setattr(consuming, "MAX_CONSUMERS", 2, raising=False)
    with_rules((), work)


def test_arguments_of_a_consumer_have_a_bounded_size() -> None:
    async def work(broker: Broker, connection: SimConnection) -> None:
        await connection.open()
        await connection.ask(commands.Queue.Declare(queue="empty"))
        few = commands.Basic.Consume(queue="empty", arguments={"x-priority": 3, "x-note": "y" * 1000})
        assert isinstance(await connection.ask(few), commands.Basic.ConsumeOk)
        many = commands.Basic.Consume(queue="empty", arguments={"x-note": ["y" * 100] * 1000})
        connection.say(many)
        closed = await connection.next()
        assert isinstance(closed, commands.Channel.Close), closed
        assert closed.reply_code == PRECONDITION_FAILED

    with_rules((), work)
