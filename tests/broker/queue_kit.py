"""A whole broker on a simulated disk under virtual time, and a consumer that keeps what it gets: for tests of queues.

`again()` stops the broker and starts it anew on the same disk, so that most promises are also seen to survive.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.simulation.disk import SimDisk
from tests.simulation.faults import Fault
from tests.simulation.world import Simulation
from waystation.broker.broker import Broker
from waystation.catalog.memory import MemoryCatalog
from waystation.config import BrokerSettings
from waystation.errors import WaystationError
from waystation.message import Delivered, Message
from waystation.queues.feed import Verdict
from waystation.queues.shard.queue_feed import QueueFeed
from waystation.topics.topics import QUEUES_TOPIC

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
ROOT = "/data"


class Machine:
    """A broker that can be stopped and started again on one disk."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.catalog = MemoryCatalog()
        self.settings: dict[str, str] = {}
        self.broker: Broker

    @property
    def disk(self) -> SimDisk:
        return self.simulation.disk

    def refuse(self, times: int = 1_000_000, kind: str = "write", path_part: str = QUEUES_TOPIC) -> Fault:
        """From now on the disk has no room for what happens to queues; `allow` ends it."""
        return self.disk.inject(Fault(kind, f"/{path_part}.", errno.ENOSPC, times=times))

    @staticmethod
    def allow(*faults: Fault) -> None:
        for fault in faults:
            fault.times = 0

    async def start(self) -> Broker:
        self.simulation.disk.make_folder(ROOT)
        self.broker = Broker(self.simulation.world, ROOT, BrokerSettings(self.settings), self.catalog)
        await self.broker.start()
        return self.broker

    async def anew(self, **settings: str) -> Broker:
        """A broker with other settings, on an empty disk."""
        await self.broker.stop()
        self.settings = {f"waystation.queue.{name.replace('_', '.')}": text for name, text in settings.items()}
        self.catalog = MemoryCatalog()
        self.disk.remove_tree(ROOT)
        return await self.start()

    async def again(self, given: Mapping[str, str] | None = None) -> Broker:
        """Stops the broker and starts it on the same disk, with these broker settings besides."""
        await self.broker.stop()
        self.settings |= given or {}
        return await self.start()

    @property
    def now_ms(self) -> int:
        return self.simulation.world.clock.now_ms()


def on_a_machine(work: Callable[[Machine], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        simulation = Simulation(1)

        async def main() -> None:
            machine = Machine(simulation)
            await machine.start()
            await work(machine)
            await machine.broker.stop()

        simulation.run(main())

    test.__name__ = work.__name__
    test.__doc__ = work.__doc__
    return test


class Inbox:
    """A consumer that keeps what it gets."""

    def __init__(self, broker: Broker, queue: str, *, credit: int = 1000, **options: Any) -> None:
        self.got: list[Delivered] = []
        self.ended: list[WaystationError] = []
        self.broker = broker
        self.feed: QueueFeed = broker.queues.open_feed(
            queue, "test", self.got.extend, on_end=self.ended.append, **options
        )
        self.feed.credit(credit)

    @property
    def payloads(self) -> list[bytes]:
        return [delivered.message.payload for delivered in self.got]

    async def settle(self, verdict: Verdict, *delivered: Delivered, **words: Any) -> None:
        settled = self.feed.settle(verdict, [(one.tag, 1) for one in delivered], **words)
        assert settled.unknown == []
        await self.broker.durable(settled.receipt)

    async def ack(self, *delivered: Delivered) -> None:
        await self.settle(Verdict.ACK, *delivered)


@asynccontextmanager
async def consumer(broker: Broker, queue: str, **options: Any) -> AsyncIterator[Inbox]:
    inbox = Inbox(broker, queue, **options)
    await asyncio.sleep(0.001)
    yield inbox
    inbox.feed.close()


async def put(broker: Broker, queue: str, *payloads: bytes, **fields: Any) -> None:
    await broker.queues.put_durable(queue, [Message(payload, **fields) for payload in payloads])


def turns() -> int:
    """How often the simulated loop has turned, counted downwards."""
    return asyncio.get_running_loop()._turns_left  # type: ignore[attr-defined,no-any-return]
