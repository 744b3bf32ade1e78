"""Messages for a topic that are not to be there before a time: they wait in a queue of the broker's own.

When a message's time has come, it is published and its place in the queue given up in one transaction, so that it comes
to the topic once, whatever the moment of a crash, and never early.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from waystation.broker.transacting import OWN_PREFIX
from waystation.errors import NotFound, WaystationError
from waystation.message import Delivered, Message
from waystation.queues.feed import Receipt, Verdict
from waystation.queues.queue_feed import QueueFeed

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.broker.transacting import Tx

logger = logging.getLogger("waystation.delayed")

QUEUE = "__delayed"
TRANSACTIONAL_ID = f"{OWN_PREFIX}delayed"
TARGET = "x-delayed-to"
CREDIT = 500
RETRY_MS = 1_000


class Delayed:
    """Constructed by the broker; `start` when queues and transactions are there."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._feed: QueueFeed | None = None
        self._due: asyncio.Queue[list[Delivered]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if QUEUE in self._broker.queues:
            self._open()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def put(self, topic: str, messages: Sequence[Message], partition: int | None = None) -> Receipt:
        """Takes messages that have a delay; the receipt says when they are kept."""
        if self._feed is None:
            self._open()
        place = [topic, partition]
        wrapped = [
            msgspec.structs.replace(message, headers={**message.headers, TARGET: place}) for message in messages
        ]
        return self._broker.queues.put(QUEUE, wrapped).receipt

    def _open(self) -> None:
        queues = self._broker.queues
        queues.ensure(QUEUE)
        self._feed = queues.open_feed(QUEUE, "delayed", self._due.put_nowait, on_end=lambda error: None)
        self._task = asyncio.get_running_loop().create_task(self._run(self._feed), name="delayed-messages")
        self._feed.credit(CREDIT)

    async def _run(self, feed: QueueFeed) -> None:
        tx: Tx | None = None
        while True:
            messages = await self._due.get()
            try:
                tx = tx or await self._broker.transacting.begin(TRANSACTIONAL_ID)
                await self._publish(tx, feed, messages)
            except WaystationError as error:
                logger.warning("delayed messages wait: %s", error)
                tx = None
                with contextlib.suppress(WaystationError):
                    feed.settle(Verdict.RELEASE, [(message.tag, 1) for message in messages], delay_ms=RETRY_MS)
            feed.credit(len(messages))

    async def _publish(self, tx: Tx, feed: QueueFeed, messages: list[Delivered]) -> None:
        lost = []
        for delivered in messages:
            message = delivered.message
            topic, partition = message.headers[TARGET]
            headers = {name: value for name, value in message.headers.items() if name != TARGET}
            ready = msgspec.structs.replace(message, headers=headers, delay_ms=0, deliver_at_ms=None)
            try:
                await tx.publish(topic, [ready], partition)
            except NotFound:
                lost.append(topic)
        if lost:
            logger.warning("delayed messages dropped, their topics were deleted: %s", sorted(set(lost)))
        await tx.settle(feed, [(message.tag, 1) for message in messages])
        await tx.end(commit=True)
