"""Messages for a topic that are not to be there before a time: they wait in a queue of the broker's own.

When a message's time has come, it is published and its place in the queue given up in one transaction, so that it comes
to the topic once, whatever the moment of a crash, and never early. A message that its topic does not take (it became
too large for it, say) waits on and keeps no other waiting; one whose topic was deleted is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from waystation.errors import Invalid, NotFound, TooLarge, WaystationError
from waystation.message import Delivered, Message
from waystation.observe.events import event_logger
from waystation.protocol import Found
from waystation.queues.feed import Verdict
from waystation.queues.shard.queue_feed import QueueFeed
from waystation.topics.partitions.partition import Receipt
from waystation.transactions.transacting import OWN_PREFIX

if TYPE_CHECKING:
    from waystation.core import Core
    from waystation.transactions.transacting import Tx

logger = event_logger("waystation.delayed")

QUEUE = "__delayed"
TRANSACTIONAL_ID = f"{OWN_PREFIX}delayed"
TARGET = "x-delayed-to"
CREDIT = 500
RETRY_MS = 1_000
REFUSED_MS = 60_000


class Delayed:
    """Constructed by the broker; `start` when queues and transactions are there."""

    def __init__(self, broker: Core) -> None:
        self._broker = broker
        self._feed: QueueFeed | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self) -> None:
        self._broker.queues.subscribe_leads(self._open_if_there)
        self._open_if_there()

    def _open_if_there(self) -> None:
        """The broker that leads the queue's shard publishes what is due."""
        if self._feed is None and self._broker.queues.known(QUEUE) is not None:
            self._open()

    async def stop(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def put(self, topic: str, messages: Sequence[Message], partition: int | None = None) -> Receipt:
        """Takes messages that have a delay; the receipt says when they are kept."""
        if self._feed is None:
            self._open()
        shard, queue = self._broker.queues.get(QUEUE)
        return shard.put(queue, [_wrapped(message, topic, partition) for message in messages]).receipt

    def _open(self) -> None:
        shard, queue = self._broker.queues.ensure_own(QUEUE)
        due: asyncio.Queue[list[Delivered]] = asyncio.Queue()
        self._feed = QueueFeed(shard, queue, "delayed", due.put_nowait, lambda error: self._ended(due))
        task = asyncio.get_running_loop().create_task(self._run(self._feed, due), name="delayed-messages")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        self._feed.credit(CREDIT)

    def _ended(self, due: asyncio.Queue[list[Delivered]]) -> None:
        """Another broker leads the queue's shard."""
        self._feed = None
        due.put_nowait([])  # what is being published is finished, or undone; then the task ends

    async def _run(self, feed: QueueFeed, due: asyncio.Queue[list[Delivered]]) -> None:
        tx: Tx | None = None
        while True:
            messages = await due.get()
            if feed.closed:
                return
            try:
                tx = tx or await self._broker.transacting.begin_own(TRANSACTIONAL_ID)
                await self._publish(tx, feed, messages)
            except Exception as error:
                if isinstance(error, WaystationError):
                    logger.warning("delayed.wait", "delayed messages wait: {error}", error=error)
                else:  # a mistake of ours: they are tried again, and so are all others
                    logger.exception("delayed.wait", "delayed messages wait")
                tx = None
                _put_aside(feed, messages, RETRY_MS)
            feed.credit(len(messages))

    async def _publish(self, tx: Tx, feed: QueueFeed, messages: list[Delivered]) -> None:
        through: list[Delivered] = []
        refused: list[Delivered] = []
        for delivered in messages:
            try:
                topic, partition, ready = _unwrapped(delivered.message)
                await tx.publish(topic, [ready], partition)
            except NotFound as error:
                logger.warning("delayed.dropped", "a delayed message is dropped: {error}", error=error)
            except (Invalid, TooLarge) as error:
                logger.error(
                    "delayed.refused",
                    "a delayed message waits, its topic does not take it: {error}",
                    tag=delivered.tag,
                    error=error,
                )
                refused.append(delivered)
                continue
            through.append(delivered)
        _put_aside(feed, refused, REFUSED_MS)
        if through:
            await tx.settle(feed, [(delivered.tag, 1) for delivered in through])
        await tx.end(commit=True)


def _put_aside(feed: QueueFeed, messages: list[Delivered], delay_ms: int) -> None:
    """What is still in flight; the rest is in the hands of a transaction, which requeues it if it is undone."""
    if messages:
        with contextlib.suppress(WaystationError):
            feed.settle(Verdict.RELEASE, [(message.tag, 1) for message in messages], delay_ms=delay_ms)


def as_sent(found: Found) -> Found:
    """A message that was found in any queue, as its sender knows it: one that waits for its time is its topic's."""
    if found.place != f"queue:{QUEUE}":
        return found
    delivered = found.delivered
    try:
        topic, partition, ready = _unwrapped(delivered.message)
    except NotFound:
        return found
    terms = {"delay_ms": delivered.message.delay_ms, "deliver_at_ms": delivered.message.deliver_at_ms}
    shown = msgspec.structs.replace(
        delivered,
        message=msgspec.structs.replace(ready, **terms),
        source=topic,
        partition=-1 if partition is None else partition,
    )
    return msgspec.structs.replace(found, place=f"topic:{topic}", delivered=shown)


def _wrapped(message: Message, topic: str, partition: int | None) -> Message:
    """With where it is to go. How often it may be delivered is its consumers' affair: here it is tried until it is."""
    place = [topic, partition, message.max_deliveries]
    return msgspec.structs.replace(message, headers={**message.headers, TARGET: place}, max_deliveries=0)


def _unwrapped(message: Message) -> tuple[str, int | None, Message]:
    """(topic, partition, the message as it was sent, but without a delay)."""
    headers = dict(message.headers)
    place = headers.pop(TARGET, None)
    if not isinstance(place, list) or len(place) < 2:
        raise NotFound("it does not say for which topic it is")
    most = place[2] if len(place) > 2 else message.max_deliveries
    ready = msgspec.structs.replace(message, headers=headers, delay_ms=0, deliver_at_ms=None, max_deliveries=most)
    return place[0], place[1], ready
