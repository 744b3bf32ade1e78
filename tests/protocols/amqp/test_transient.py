"""Transient messages (`delivery_mode` 1) are confirmed when they are enqueued, others when they are on the disk.

The broker is real and its disk is one that a test can hold: while it is held, nothing is flushed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from pamqp import commands

from tests.broker.queue_kit import Machine
from tests.protocols.amqp.kit import publish
from tests.simulation.amqp_machine import SimConnection
from tests.simulation.world import Simulation
from waystation.protocols.amqp.channel import NO_TURNS
from waystation.protocols.amqp.session import MOST_IN_FLIGHT
from waystation.world import Offload, World

T = TypeVar("T")
TRANSIENT, PERSISTENT = commands.Basic.Properties(delivery_mode=1), commands.Basic.Properties(delivery_mode=2)
UNSAID = commands.Basic.Properties()
LONG_S = 3600.0
"""Of virtual time: whoever is not answered by then waits for the disk."""


class HeldDisk:
    """Work for the disk is done unless it is held."""

    def __init__(self, inner: Offload) -> None:
        self._inner = inner
        self._free = asyncio.Event()
        self._free.set()

    async def __call__(self, work: Callable[..., T], /, *args: object) -> T:
        await self._free.wait()
        return await self._inner(work, *args)

    def close(self) -> None:
        self._inner.close()

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()


class Publisher(SimConnection):
    """On a channel with confirms."""

    def publish(self, *messages: commands.Basic.Properties, key: str = "jobs", size: int = 1) -> None:
        """All of them in one read."""
        self.send(b"".join(publish(1, bytes(size), key, properties=said) for said in messages))

    async def confirm(self) -> tuple[int, bool] | None:
        """The next ack, (tag, multiple); None: there is none as long as the disk is held."""
        try:
            found = await asyncio.wait_for(self.next(), LONG_S)
        except TimeoutError:
            return None
        assert isinstance(found, commands.Basic.Ack), found
        return int(found.delivery_tag or 0), bool(found.multiple)


def on_a_held_disk(work: Callable[[Publisher, HeldDisk], Awaitable[None]], **declared: bool) -> None:
    simulation = Simulation(1)

    async def main() -> None:
        world = simulation.world
        disk = HeldDisk(world.offload)
        simulation.world = World(world.clock, world.random, world.disk, disk)
        machine = Machine(simulation)
        broker = await machine.start()
        try:
            publisher = Publisher(broker, "client")
            await publisher.open()
            await publisher.ask(commands.Queue.Declare(0, "jobs", durable=declared.get("durable", True)))
            await publisher.ask(commands.Confirm.Select())
            disk.hold()
            await work(publisher, disk)
        finally:
            disk.release()
            await broker.stop()

    simulation.run(main())


@pytest.mark.parametrize("durable", [True, False], ids=["a durable queue", "a queue that is not"])
def test_a_transient_message_is_confirmed_when_it_is_enqueued(durable: bool) -> None:
    async def work(publisher: Publisher, disk: HeldDisk) -> None:
        publisher.publish(TRANSIENT)
        assert await publisher.confirm() == (1, True)
        publisher.publish(*[TRANSIENT] * 10)
        assert await publisher.confirm() == (11, True), "one confirm for all that came together"

    on_a_held_disk(work, durable=durable)


@pytest.mark.parametrize("said", [PERSISTENT, UNSAID], ids=["persistent", "not said"])
def test_any_other_message_is_confirmed_when_it_is_on_the_disk(said: commands.Basic.Properties) -> None:
    async def work(publisher: Publisher, disk: HeldDisk) -> None:
        publisher.publish(said)
        assert await publisher.confirm() is None
        disk.release()
        assert await publisher.confirm() == (1, True)

    on_a_held_disk(work)


def test_a_transient_message_does_not_wait_for_persistent_ones_before_it() -> None:
    async def work(publisher: Publisher, disk: HeldDisk) -> None:
        publisher.publish(PERSISTENT, PERSISTENT)
        publisher.publish(TRANSIENT, TRANSIENT)
        assert [await publisher.confirm(), await publisher.confirm()] == [(3, False), (4, False)]
        assert await publisher.confirm() is None
        disk.release()
        assert await publisher.confirm() == (2, True)

    on_a_held_disk(work)


def test_what_comes_together_with_a_persistent_message_is_confirmed_with_it() -> None:
    async def work(publisher: Publisher, disk: HeldDisk) -> None:
        publisher.publish(TRANSIENT, PERSISTENT, TRANSIENT)
        assert await publisher.confirm() is None
        disk.release()
        assert await publisher.confirm() == (3, True)

    on_a_held_disk(work)


def test_what_waits_for_the_disk_is_taken_from_the_front_of_a_deque_and_who_waits_for_nothing_has_none() -> None:
    """A flush that hangs leaves tens of thousands of turns: taken from a list, each would move all behind it."""

    async def work(publisher: Publisher, disk: HeldDisk) -> None:
        channel = publisher.session.channels[1]
        assert channel.turns is NO_TURNS
        for size in (3, 2):
            for _ in range(size):
                publisher.publish(PERSISTENT)
            assert type(channel.turns) is deque
            assert len(channel.turns) == size
            disk.release()
            last = 0
            while last < channel.sequence:
                last, _ = await publisher.confirm() or (0, False)
            assert channel.turns is NO_TURNS
            disk.hold()
        assert len(NO_TURNS) == 0

    on_a_held_disk(work)


def test_a_transient_message_to_a_stream_is_confirmed_when_it_is_on_the_disk() -> None:
    async def work(publisher: Publisher, disk: HeldDisk) -> None:
        disk.release()
        stream = commands.Queue.Declare(0, "log", durable=True, arguments={"x-queue-type": "stream"})
        await publisher.ask(stream)
        disk.hold()
        publisher.publish(TRANSIENT, key="log")
        assert await publisher.confirm() is None
        disk.release()
        assert await publisher.confirm() == (1, True)

    on_a_held_disk(work)


def test_transient_messages_that_the_disk_cannot_keep_up_with_hold_their_publisher_back() -> None:
    async def work(publisher: Publisher, disk: HeldDisk) -> None:
        size = 100_000
        for sent in range(1, 2 + MOST_IN_FLIGHT // size):
            assert not publisher.session.busy
            publisher.publish(TRANSIENT, size=size)
            assert await publisher.confirm() == (sent, True)
        assert publisher.session.busy, "it is not read: what it published is in memory only"
        disk.release()
        publisher.publish(PERSISTENT)  # behind them, so that they are on the disk when it is
        assert await publisher.confirm() == (sent + 1, True)
        assert not publisher.session.busy

    on_a_held_disk(work)


def test_a_transient_message_that_a_full_queue_refuses_is_not_confirmed() -> None:
    async def work(publisher: Publisher, disk: HeldDisk) -> None:
        disk.release()
        full: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await publisher.ask(commands.Queue.Declare(0, "small", arguments=full))
        disk.hold()
        publisher.publish(TRANSIENT, TRANSIENT, TRANSIENT, key="small")
        nacks = [await publisher.next(), await publisher.next()]
        assert [(type(nack), getattr(nack, "delivery_tag", 0)) for nack in nacks] == [
            (commands.Basic.Nack, 2),
            (commands.Basic.Nack, 3),
        ]
        assert await publisher.confirm() == (1, True)

    on_a_held_disk(work)
