"""A publisher that sends without a pause is read in short turns while other clients wait for answers, whatever protocol
they speak; and in long ones, which cost less, while nobody does."""

from __future__ import annotations

from pamqp import commands

from tests.broker.queue_kit import Machine, on_a_machine
from tests.protocols.amqp.kit import method, publish
from tests.simulation.amqp_machine import SimConnection
from waystation.protocols.amqp.engine import SHORT_FRAMES
from waystation.protocols.amqp.frames import PROTOCOL_HEADER
from waystation.protocols.amqp.session import FEW_EVENTS

MANY = 4 * SHORT_FRAMES


class Client(SimConnection):
    """Knows how often it was taken for one that waits for an answer."""

    asks = 0

    def asked(self) -> None:
        self.asks += 1


async def opened(machine: Machine) -> Client:
    client = Client(machine.broker, "a client")
    login = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
    hello = (login, commands.Connection.TuneOk(0, 131_072, 0), commands.Connection.Open("/"))
    client.send(PROTOCOL_HEADER + b"".join(method(value, 0) for value in hello) + method(commands.Channel.Open(), 1))
    while not isinstance(await client.next(), commands.Channel.OpenOk):
        pass
    await machine.broker.queues.declare("jobs")
    return client


def ready(machine: Machine) -> int:
    return len(machine.broker.queues.peek("jobs", 10 * MANY))


@on_a_machine
async def test_while_others_wait_a_turn_takes_few_publishes(machine: Machine) -> None:
    client = await opened(machine)
    client.others_wait = True
    client.send(publish(1, b"x", "jobs") * MANY)
    assert ready(machine) == SHORT_FRAMES
    client.send(b"")
    assert ready(machine) == 2 * SHORT_FRAMES
    client.others_wait = False
    client.send(b"")
    assert ready(machine) == MANY


@on_a_machine
async def test_who_sends_little_waits_for_an_answer_and_who_sends_much_does_not(machine: Machine) -> None:
    client = await opened(machine)
    assert client.asks == 0, "a handshake comes before much too"
    client.send(publish(1, b"x", "jobs"))
    assert client.asks == 1
    client.send(publish(1, b"x", "jobs") * (FEW_EVENTS + 1))
    assert client.asks == 1
    client.others_wait = True
    client.send(publish(1, b"x", "jobs") * (SHORT_FRAMES + 1))
    client.send(b"")
    assert client.asks == 1, "the end of much is not little"
    assert ready(machine) == 1 + FEW_EVENTS + 1 + SHORT_FRAMES + 1
