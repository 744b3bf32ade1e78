"""Clients that get long messages, or send much at once: a bounded part of it in each turn, and others in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from struct import Struct
from typing import Any

from benchmarks.amqp_wire import AmqpWire, frame, method, short
from tests.protocols.test_long_work import ByHand
from tests.support.entrances import entrance_of
from waystation.broker.broker import Broker
from waystation.broker.open import open_broker
from waystation.config import BrokerSettings
from waystation.message import Message
from waystation.protocols.amqp.connection import AmqpConnection
from waystation.protocols.amqp.engine import SHORT_FRAMES
from waystation.protocols.amqp.server import AmqpListener
from waystation.protocols.budget import Budgets
from waystation.world.long_work import GIVE_WAY_S

LONG = 900_000
GET = method(60, 70, b"\x00\x00" + short("long") + b"\x00")
GET_SHORT = method(60, 70, b"\x00\x00" + short("short") + b"\x00")


class Wire:
    """A transport whose client reads everything."""

    def __init__(self) -> None:
        self.sent = 0
        self.reading = True

    def write(self, data: bytes) -> None:
        self.sent += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, *_limits: int) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None: ...
    def abort(self) -> None: ...


class Client:
    def __init__(self, listener: AmqpListener) -> None:
        self.connection = AmqpConnection(listener)
        self.wire = Wire()
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.send(AmqpWire().hello())

    def send(self, data: bytes) -> None:
        buffer = self.connection.get_buffer(-1)
        buffer[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def got(self) -> int:
        """Bytes since the last call."""
        sent, self.wire.sent = self.wire.sent, 0
        return sent


def with_listener(tmp_path: Path, story: Callable[[AmqpListener, ByHand], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        broker: Broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            line = ByHand()
            budgets = Budgets(broker.settings, broker.world.clock)
            budgets.long_work = line
            listener = AmqpListener(broker, budgets, entrance_of(broker), "127.0.0.1", 0)
            for queue, size in (("long", LONG), ("short", 10)):
                await broker.queues.declare(queue)
                for _ in range(20):
                    await broker.queues.put_durable(queue, [Message(bytes(size))])
            await story(listener, line)
        finally:
            await broker.stop()

    asyncio.run(run())


def test_long_messages_are_got_one_in_a_turn_and_short_ones_in_between(tmp_path: Path) -> None:
    async def story(listener: AmqpListener, line: ByHand) -> None:
        greedy, another, ordinary = Client(listener), Client(listener), Client(listener)
        await line.turns()
        for client in (greedy, another, ordinary):
            client.got()
        greedy.send(GET * 5)
        another.send(GET * 5)
        await line.turns()  # of each connection the first one, whose length nobody knew, and one more in its turn
        assert greedy.got() + another.got() <= 3 * (LONG + 1_000)
        for left in range(7, 0, -1):
            ordinary.send(GET_SHORT)
            await line.turns()
            assert 0 < ordinary.got() < 1_000
            line.now_s += 2 * GIVE_WAY_S  # the line does not give way to it any more
            await line.rested()
            assert LONG <= greedy.got() + another.got() <= LONG + 1_000, f"{left} were left"
        await line.rested()
        assert greedy.got() + another.got() == 0

    with_listener(tmp_path, story)


def test_what_fills_the_buffer_is_not_followed_by_more_in_the_same_turn(tmp_path: Path) -> None:
    async def story(listener: AmqpListener, line: ByHand) -> None:
        client = Client(listener)
        await line.turns()
        publish = AmqpWire().put(1, "short", [b"x" * 100])
        much = publish * (len(listener.buffer) // len(publish) + 1)
        client.send(publish)
        assert client.wire.reading
        client.send(much[: len(listener.buffer)])
        assert not client.wire.reading
        async with asyncio.timeout(30):
            while not client.wire.reading:
                await line.rested()

    with_listener(tmp_path, story)


def test_a_publish_makes_turns_of_others_short_until_nobody_waits(tmp_path: Path) -> None:
    async def story(listener: AmqpListener, line: ByHand) -> None:
        ordinary, busy = Client(listener), Client(listener)
        publish = AmqpWire().put(1, "short", [b"x"])
        line.now_s = 100.0
        assert not busy.connection.others_wait
        ordinary.send(publish)
        assert busy.connection.others_wait
        assert not ordinary.connection.others_wait
        busy.send(publish * 2 * SHORT_FRAMES)
        assert not busy.wire.reading, "the rest is for another turn"
        line.now_s = 200.0
        await line.turns()
        assert busy.wire.reading, "nobody waits: it is read in one"

    with_listener(tmp_path, story)


def test_large_messages_of_many_are_read_one_after_another(tmp_path: Path) -> None:
    async def story(listener: AmqpListener, line: ByHand) -> None:
        head = method(60, 40, b"\x00\x00" + short("") + short("short") + b"\x00")
        head += frame(2, 1, Struct(">HHQH").pack(60, 0, 8 * 1024 * 1024, 0))
        much = (head + frame(3, 1, bytes(100_000)) * 3)[: len(listener.buffer)]
        clients = [Client(listener) for _ in range(4)]
        await line.turns()
        for client in clients:
            client.send(much)
        await line.turns()
        for reading in range(1, len(clients) + 1):
            assert sum(client.wire.reading for client in clients) == reading
            await line.rested()

    with_listener(tmp_path, story)
