"""Of many who send large requests at once, one reads on in a turn of the loop: by Kafka's protocol, and natively. Who
sends a small one is known to wait for its answer, by those who have much to do."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kafka_wire import kafka_request
from tests.protocols.test_long_work import ByHand
from tests.support.entrances import entrance_of
from waystation.broker.broker import Broker
from waystation.broker.open import open_broker
from waystation.config import BrokerSettings
from waystation.protocol import MAGIC
from waystation.protocols.budget import FEW_BYTES, Budgets
from waystation.protocols.kafka.connection import KafkaConnection as KafkaConnection
from waystation.protocols.kafka.server import KafkaListener
from waystation.protocols.native.binary import BinaryTalk
from waystation.protocols.native.connection import NativeConnection as NativeConnection

LARGE = 8 * 1024 * 1024
FIRST = 2 * 1024 * 1024 + 100


class Wire:
    def __init__(self) -> None:
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, **_limits: int) -> None: ...
    def write(self, _data: bytes) -> None: ...


def kafka_of(broker: Broker, budgets: Budgets) -> tuple[Any, bytes]:
    listener = KafkaListener(broker, budgets, entrance_of(broker))
    return KafkaConnection(listener, lambda: None), kafka_request(0, 9, 1, bytes(LARGE))


def native_of(broker: Broker, budgets: Budgets) -> tuple[Any, bytes]:
    talk = partial(BinaryTalk, broker, "native", budgets.long_work)
    connection = NativeConnection(talk, budgets, broker.world.clock, lambda: None, "native", entrance_of(broker))
    return connection, MAGIC + LARGE.to_bytes(4, "big") + bytes(LARGE)


def send(connection: Any, data: bytes) -> int:
    """As much as the connection reads in this turn."""
    at = 0
    wire = connection._transport
    while at < len(data) and wire.reading:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data) - at)
        buffer[:size] = data[at : at + size]
        connection.buffer_updated(size)
        at += size
    return at


@pytest.mark.parametrize("made", [kafka_of, native_of])
def test_one_who_sends_little_is_waiting_as_others_see_it(tmp_path: Path, made: Any) -> None:
    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            line = ByHand()
            budgets = Budgets(broker.settings, broker.world.clock)
            budgets.long_work = line
            line.now_s = 100.0
            (large, data), (little, _) = made(broker, budgets), made(broker, budgets)
            large.connection_made(Wire())
            little.connection_made(Wire())
            send(large, data[: FEW_BYTES + 1])
            assert not line.others_wait(little)
            send(little, data[:FEW_BYTES])
            assert line.others_wait(large)
            assert not line.others_wait(little)
            large.connection_lost(None)
            little.connection_lost(None)
        finally:
            await broker.stop()

    asyncio.run(story())


@pytest.mark.parametrize("made", [kafka_of, native_of])
def test_large_requests_of_many_are_read_one_after_another(tmp_path: Path, made: Any) -> None:
    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            line = ByHand()
            budgets = Budgets(broker.settings, broker.world.clock)
            budgets.long_work = line
            senders = []
            for _ in range(4):
                connection, data = made(broker, budgets)
                connection.connection_made(Wire())
                assert send(connection, data) <= FIRST, "then it is others' turn"
                senders.append(connection)
            await line.turns()
            for reading in range(1, len(senders) + 1):
                assert sum(connection._transport.reading for connection in senders) == reading
                await line.rested()
            for connection in senders:
                connection.connection_lost(None)
        finally:
            await broker.stop()

    asyncio.run(story())
