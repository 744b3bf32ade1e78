"""A consumer behind no protocol: it keeps what a feed delivers, and tests wait for what they expect of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.waiting import DEADLINE_S, NotInTime
from waystation.broker.broker import Broker
from waystation.errors import WaystationError
from waystation.message import Delivered
from waystation.protocol import Subscribe, SubscribeAnswer
from waystation.queues.feed import Feed


async def until(condition: Callable[[], object], what: str) -> None:
    """Returns when the condition is true."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise NotInTime(what)
        await asyncio.sleep(0.005)


class Consumer:
    """What one subscriber got."""

    def __init__(self) -> None:
        self.got: list[Delivered] = []
        self.batches: list[list[Delivered]] = []
        self.ended: list[WaystationError] = []
        self.feed: Feed
        self.answer: SubscribeAnswer

    def deliver(self, messages: list[Delivered]) -> None:
        self.batches.append(messages)
        self.got += messages

    @property
    def texts(self) -> list[str]:
        return [one.message.payload.decode() for one in self.got]

    async def gets(self, *texts: str) -> None:
        await until(lambda: len(self.got) >= len(texts), f"{len(texts)} messages, got {self.texts}")
        assert self.texts == list(texts)

    async def gets_all_of(self, *texts: str) -> None:
        """In any order."""
        await until(lambda: len(self.got) >= len(texts), f"{len(texts)} messages, got {self.texts}")
        assert sorted(self.texts) == sorted(texts)


async def subscribe(broker: Broker, *topics: str, **options: Any) -> Consumer:
    consumer = Consumer()
    options.setdefault("credit", 1000)
    command = Subscribe(consumer=1, topics=list(topics), **options)
    consumer.feed, consumer.answer = await broker.subscriptions.open(
        command, "tester", consumer.deliver, consumer.ended.append
    )
    consumer.feed.credit(command.credit)
    return consumer


async def settled() -> None:
    """Everything that is due on the loop has had its turn."""
    for _ in range(20):
        await asyncio.sleep(0)
