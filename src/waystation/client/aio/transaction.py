"""A transaction, for asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Unpack

from waystation.client.aio.bridge import Bridge
from waystation.client.aio.message import Message
from waystation.client.aio.queue import Queue
from waystation.client.options.payloads import Value
from waystation.client.options.values import MessageOptions
from waystation.client.sending.results import Published, Stored
from waystation.client.transacting import Offset, Tx
from waystation.errors import WaystationError
from waystation.protocol import StagedTransaction


class Transaction:
    """A transaction: all of its effects happen, or none.

        async with mq.transaction("resizer-1") as tx:
            message = await jobs.get()
            await tx.put("done", work(message.json()))
            await tx.ack(message)

    Commits on exit; an exception aborts it, and the messages acked in it are redelivered. The id names the worker:
    a new transaction with the same id fences the earlier one.
    """

    def __init__(self, tx: Tx, bridge: Bridge) -> None:
        self._tx = tx
        self._bridge = bridge
        self._over = False

    async def publish(
        self, topic: str, value: Value, *, partition: int | None = None, **options: Unpack[MessageOptions]
    ) -> Published:
        """Publishes to a topic; read-committed consumers see it after the commit. The answer's `duplicates` is not
        empty if the topic has its `id` already: then nothing is published."""
        return await self._tx.publish(topic, [self._tx.core.message(value, options)], partition)

    async def publish_many(self, topic: str, values: Iterable[Value], **options: Unpack[MessageOptions]) -> Published:
        """Publishes many to a topic; the answer's `duplicates` were left out, since the topic has their ids already."""
        return await self._tx.publish(topic, list(self._tx.core.messages(values, options)))

    async def put(self, queue: str | Queue, value: Value, **options: Unpack[MessageOptions]) -> None:
        """Puts into a queue. AlreadyExists for an `id` that was used within its deduplication window, and nothing is
        put; not with a queue opened for `"exactly-once"`, where that is how a repetition ends."""
        forgiving = isinstance(queue, Queue) and queue.guarantee == "exactly-once"
        await self._tx.put_one(_name(queue), self._tx.core.message(value, options), forgiving=forgiving)

    async def put_many(self, queue: str | Queue, values: Iterable[Value], **options: Unpack[MessageOptions]) -> Stored:
        """Puts many into a queue; the answer's `duplicates` were left out, since their ids were used before."""
        return await self._tx.put(_name(queue), list(self._tx.core.messages(values, options)))

    async def ack(self, *messages: Message) -> None:
        """Acks messages of queues and of stream subscriptions, with the commit."""
        await self._tx.ack(messages)

    async def commit_offsets(self, group: str, offsets: Sequence[Offset]) -> None:
        """Offsets of a consumer group: (topic, partition, the next offset to read)."""
        await self._tx.commit_offsets(group, offsets)

    async def publish_batches(self, topic: str, batches: list[tuple[int, bytearray]]) -> None:
        """Record batches (Kafka's version 2) that you have built, each with its partition: for bulk writers."""
        await self._tx.publish_batches(topic, batches)

    # threads: def publish_batches_nowait(self, topic: str, batches: list[tuple[int, bytearray]]) -> Future[None]:
    # threads:     """The same without waiting; what follows in this transaction follows it."""
    # threads:     return self._bridge.start(self._tx.publish_batches(topic, batches))

    # threads: def put_many_nowait(self, queue: str | Queue, values: Iterable[Value]) -> Future[Stored]:
    # threads:     """As `put_many`, without waiting."""
    # threads:     return self._bridge.start(self._tx.put(_name(queue), list(self._tx.core.messages(values, {}))))

    async def stage(self) -> StagedTransaction | None:
        """Stages it: it stays on the broker, complete and durable, and `Client.commit_staged` commits it, together with
        others, from any connection. None if it is empty."""
        staged = await self._tx.stage()
        self._over = True
        return staged

    async def commit(self) -> None:
        """Commits now, before the block ends."""
        self._over = True
        await self._tx.end(commit=True)

    async def abort(self) -> None:
        """Aborts it; the rest of the block runs outside of it."""
        self._over = True
        await self._tx.end(commit=False)

    async def __aenter__(self) -> Transaction:
        await self._tx.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._over:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.abort()
        except WaystationError:
            pass  # the broker undoes it by itself; the error that led here is the one to see


def _name(queue: str | Queue) -> str:
    return queue if isinstance(queue, str) else queue.name
