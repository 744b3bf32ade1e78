"""A queue's consumer (`feed.Feed`): pushed to as far as its credit goes, or asked for messages one by one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from waystation.errors import Conflict, Corrupt, Invalid, StorageFailed, Unavailable, WaystationError
from waystation.message import Delivered, Run
from waystation.observe.events import event_logger
from waystation.observe.spans import TracedPlace
from waystation.observe.tracing import Tracing
from waystation.queues.feed import Deliver, Settled, Verdict
from waystation.queues.ledger.ledger import Grant
from waystation.queues.ledger.runs import add_run
from waystation.queues.shard.commands import count_of
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.shard import Shard

logger = event_logger("waystation.queues")

OnEnd = Callable[[WaystationError], None]


class QueueFeed:
    """Opened by the broker's queues. `consumer` is unique on its queue. `silent`: messages may be in flight to it, but
    it counts as no consumer and is sent none."""

    __slots__ = (
        "_deliver", "_dropped", "_left", "_on_end", "_paused", "auto_ack", "closed", "consumer", "door", "exclusive",
        "on_closed", "portion_bytes", "priority", "queue", "shard", "silent", "visibility_timeout_ms",
    )  # fmt: skip

    def __init__(
        self,
        shard: Shard,
        queue: Queue,
        consumer: str,
        deliver: Deliver,
        on_end: OnEnd,
        *,
        prefetch: int = 0,
        visibility_timeout_ms: int | None = None,
        auto_ack: bool = False,
        exclusive: bool = False,
        priority: int = 0,
        silent: bool = False,
    ) -> None:
        self.shard = shard
        self.queue = queue
        self.consumer = consumer
        self.visibility_timeout_ms = visibility_timeout_ms
        self.auto_ack = auto_ack
        self.exclusive = exclusive
        self.priority = priority
        self.silent = silent
        self.closed = False
        self.portion_bytes = 0  # after about so many it is given no more at once; 0: credit is all that counts
        self.door = "" if shard.tracing is None else shard.tracing.protocol
        self.on_closed: Callable[[QueueFeed], None] | None = None
        self._deliver = deliver
        self._on_end = on_end
        self._left = 0
        self._paused = False
        self._dropped: WaystationError | None = None  # why there is nothing to be had here any more
        queue.open_ledger().attach(consumer, prefetch, aside=silent)
        if silent:
            queue.join_beside(self)
        else:
            queue.join(self)
        shard.touch(queue)

    @property
    def claimed(self) -> int:
        """Entries that a reader has; see `queue_reader.py`."""
        return 0

    def credit(self, count: int) -> None:
        if self.silent:
            return
        self._left += count
        if self._left > 0:
            self.shard.dispatcher.wake(self.queue)

    def pause(self) -> None:
        """Its client does not read: it gets nothing, whatever credit it has."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._left > 0 and not self.closed:
            self.shard.dispatcher.wake(self.queue)

    def feed(self, share: int, since_ms: int) -> int:
        """Takes up to `share` messages; returns how many it took. The queue calls it when its turn has come. Their
        visibility timeouts begin at `since_ms` of the monotonic clock."""
        count = min(share, self._left)
        if count <= 0 or self.closed or self._paused:
            return 0
        visibility_timeout_ms = (
            self.visibility_timeout_ms if self.visibility_timeout_ms is not None else self.queue.settings.hold_ms
        )
        if self.portion_bytes:
            grants = self._acquire_portion(count, since_ms, visibility_timeout_ms)
        else:
            grants = self.shard.acquire(self.queue, self.consumer, count, since_ms, visibility_timeout_ms)
        if not grants:
            return 0
        if not self.auto_ack:  # else they are acknowledged before anybody has them
            self.shard.note_delivered(self.queue, grants)
        taken = self._open_all(grants)
        self._left -= len(taken)
        if taken and (not self.auto_ack or self._write_off(taken)):
            if self.shard.tracing is not None:
                self._trace(self.shard.tracing, taken)
            self._hand_out(taken)
        return count_of((grant.first, grant.count) for grant in grants)

    def _acquire_portion(self, count: int, since_ms: int, visibility_timeout_ms: int) -> list[Grant]:
        """One by one, since only who has a message knows its size: at most one more than the portion has room for."""
        grants: list[Grant] = []
        size = 0
        places = self.queue.places
        while places is not None and count > 0 and size < self.portion_bytes:
            more = self.shard.acquire(self.queue, self.consumer, 1, since_ms, visibility_timeout_ms)
            if not more:
                break
            count -= 1
            grants += more
            size += sum(places.bytes_of(grant.first, grant.count) for grant in more)
        return grants

    def _open_all(self, grants: Sequence[Grant]) -> list[Delivered]:
        taken: list[Delivered] = []
        for grant in grants:
            self._open(grant, taken)
        return taken

    def _open(self, grant: Grant, taken: list[Delivered]) -> None:
        """The grant's messages; those that the disk does not give are put aside."""
        deliveries = grant.deliveries
        for first, count, offset, index in self.queue.places.blocks(grant.first, grant.count):  # type: ignore[union-attr]
            try:
                block = self.shard.bodies.get(offset)
            except (Corrupt, StorageFailed) as error:
                self.shard.unreadable(self.queue, self.consumer, (first, count), error)
                continue
            when = block.taken_ms
            if isinstance(when, int):
                taken += [
                    Delivered(tag, deliveries, when, message)
                    for tag, message in enumerate(block.messages[index : index + count], first)
                ]
            else:
                taken += [
                    Delivered(first + i, deliveries, when[index + i], block.messages[index + i]) for i in range(count)
                ]

    def _write_off(self, taken: list[Delivered]) -> bool:
        """Acknowledges what the consumer is about to get; False if the disk refuses, which ends the consumer."""
        try:
            self.shard.write_off(self.queue, self.consumer, _runs(taken))
        except StorageFailed as error:
            self.end(error)
            return False
        return True

    def _trace(self, tracing: Tracing, taken: list[Delivered]) -> None:
        place = TracedPlace("queue", self.queue.name, self.door, self.consumer)
        if self.auto_ack:
            tracing.delivered(place, taken, outcome="auto-ack")
        else:
            tracing.delivered(place, taken, self.queue)

    def _hand_out(self, taken: list[Delivered]) -> None:
        try:
            self._deliver(taken)
        except Exception:  # a mistake of ours with one consumer must not keep the others from theirs
            logger.exception(
                "consumer.failed",
                "messages of queue {queue} could not be delivered to a consumer, and it is closed",
                queue=self.queue.name,
            )
            self.end(Unavailable(f"queue {self.queue.name!r}: the broker failed to deliver; consume again"))

    def settle(
        self,
        verdict: Verdict,
        runs: Sequence[Run],
        *,
        delay_ms: int | None = None,
        error: str | None = None,
        deliveries: int = 0,
    ) -> Settled:
        """`deliveries`: the delivery that is meant, by its count; a later one of the same message is another's, even
        if that is this consumer. 0: whichever it is."""
        if self.closed:
            return Settled(None, list(runs))
        return self.shard.settle(
            self.queue, self.consumer, verdict, runs, delay_ms=delay_ms, error=error, deliveries=deliveries
        )

    def touch(self, runs: Sequence[Run], visibility_timeout_ms: int | None = None, deliveries: int = 0) -> list[Run]:
        if self.closed:
            return list(runs)
        if visibility_timeout_ms is None:
            visibility_timeout_ms = (
                self.visibility_timeout_ms if self.visibility_timeout_ms is not None else self.queue.settings.hold_ms
            )
        return self.shard.renew(self.queue, self.consumer, runs, visibility_timeout_ms, deliveries)

    def retire(self) -> None:
        """It gets no more and is no consumer any more; what is in flight to it is its own to settle, until it goes."""
        if self.closed or self.silent:
            return
        self.silent = True
        self._left = 0
        queue = self.queue
        queue.part(self)
        queue.join_beside(self)
        queue.open_ledger().set_aside(self.consumer)
        self.shard.touch(queue)
        self.shard.dispatcher.wake(queue)  # it may be another one's turn now
        if self.on_closed is not None:
            self.on_closed(self)

    def leave(self) -> None:
        self._go(forgiven=True)

    def close(self) -> None:
        self._go(forgiven=False)

    def _go(self, *, forgiven: bool) -> None:
        if self.closed:
            return
        self.closed = True
        self._left = 0
        self.queue.part(self)
        self.shard.detach(self.queue, self.consumer, forgiven=forgiven)
        if self.silent:
            return  # nobody counted it
        self.shard.touch(self.queue)
        if self.on_closed is not None:
            self.on_closed(self)

    def end(self, error: WaystationError) -> None:
        """The broker ends it: the queue is gone, or cannot be used."""
        if not self.closed:
            self.close()
            self._tell(error)

    def drop(self, error: WaystationError) -> None:
        """Another broker has the queue: that ends the consumer as a crash would. Nothing is requeued or written, and
        the queue is not deleted with its last consumer."""
        if not self.closed:
            self.closed = True
            self._left = 0
            self._dropped = error
            self._tell(error)

    def _tell(self, error: WaystationError) -> None:
        if self.silent:
            return  # it expects nothing
        try:
            self._on_end(error)
        except Exception:
            logger.exception(
                "consumer.not_told", "a consumer of queue {queue} could not be told of its end", queue=self.queue.name
            )

    def check_open(self) -> None:
        """Raises why there is nothing to be had or settled here any more."""
        if self._dropped is not None:
            raise self._dropped
        if self.closed:
            raise Conflict(f"queue {self.queue.name!r} was deleted, or this consumer was closed")


class Getter(QueueFeed):
    """A consumer that asks for messages instead of being sent them."""

    __slots__ = ("_waiters",)

    def __init__(
        self,
        shard: Shard,
        queue: Queue,
        consumer: str,
        *,
        visibility_timeout_ms: int | None = None,
        auto_ack: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__(
            shard,
            queue,
            consumer,
            self._hand_over,
            self._ended,
            visibility_timeout_ms=visibility_timeout_ms,
            auto_ack=auto_ack,
            silent=silent,
        )
        self._waiters: list[tuple[int, asyncio.Future[list[Delivered]]]] = []

    def take(self, count: int) -> list[Delivered]:
        """What is there now, at most `count`; it does not wait, and for nobody's turn."""
        self._begin(count)
        visibility_timeout_ms = (
            self.visibility_timeout_ms if self.visibility_timeout_ms is not None else self.queue.settings.hold_ms
        )
        grants = self.shard.acquire_now(self.queue, self.consumer, count, visibility_timeout_ms)
        if grants and not self.auto_ack:
            self.shard.note_delivered(self.queue, grants)
        taken = self._open_all(grants)
        if taken and self.auto_ack:
            try:
                self.shard.write_off(self.queue, self.consumer, _runs(taken))
            except StorageFailed:
                self.shard.detach(self.queue, self.consumer, forgiven=True)  # they are where they were
                raise
        if taken and self.shard.tracing is not None:
            self._trace(self.shard.tracing, taken)
        self._give_way()
        return taken

    def _begin(self, count: int) -> None:
        if count < 1:
            raise Invalid(f"count: {count} is below 1")
        self.check_open()
        self.queue.open_ledger().attach(self.consumer, aside=self.silent)  # it may have given way
        self.shard.touch(self.queue)

    async def get(self, count: int, wait_ms: int) -> list[Delivered]:
        """At least one message, at most `count`; none if none came in time."""
        if self.silent:
            raise Conflict("a consumer that counts as none does not wait for messages; it takes what is there")
        self._begin(count)
        future: asyncio.Future[list[Delivered]] = asyncio.get_running_loop().create_future()
        waiter = (count, future)
        self._waiters.append(waiter)
        self._left += count
        self.shard.dispatcher.now(self.queue)
        try:
            if not future.done() and wait_ms > 0:
                await asyncio.wait([future], timeout=wait_ms / 1000)
            return future.result() if future.done() else []
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # They came in the moment in which whoever waited gave up: without this, only the end of the visibility
                # timeout would bring them back.
                with contextlib.suppress(StorageFailed):
                    self.settle(Verdict.RELEASE, [(delivered.tag, 1) for delivered in future.result()])
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._left -= count
            if not future.done():
                future.cancel()
            self._give_way()

    def _give_way(self) -> None:
        """Where only one consumer is active, one that neither waits nor has anything in flight is not in the others'
        way."""
        ledger = self.queue.ledger
        if ledger is None or self.closed:
            return
        if ledger.single_active and not (self._waiters or ledger.unacked_of(self.consumer)):
            ledger.detach(self.consumer)
            self.shard.dispatcher.wake(self.queue)

    def _hand_over(self, messages: list[Delivered]) -> None:
        while messages and self._waiters:
            count, future = self._waiters.pop(0)
            share, messages = messages[:count], messages[count:]
            self._left -= count - len(share)
            future.set_result(share)

    def _ended(self, error: WaystationError) -> None:
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(error)
        self._waiters.clear()


def _runs(messages: Sequence[Delivered]) -> list[Run]:
    runs: list[Run] = []
    for delivered in messages:
        add_run(runs, delivered.tag, 1)
    return runs
