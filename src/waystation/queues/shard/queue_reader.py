"""A queue's reader: it reads a queue alone and by entry numbers, for whoever keeps books of its own (Spark).

A reader *claims* entries: the next ones, or, by their numbers, ones that it knows of. What it has claimed is out of
everybody's reach (no consumer, no purge, no expiry, no length limit takes it) until the reader acknowledges it, gives
it back or goes. A claim is no delivery: it is not counted and not written down. So after a crash of the reader or of
the broker the same entries can be claimed again, as often as it takes, and read as they were.

Invariants: a queue with a reader has no other consumer. Only what the reader has claimed is ended by it. Opened by the
broker's queues; all calls are for the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from waystation.errors import Conflict, Invalid, WaystationError
from waystation.message import Delivered, Run
from waystation.queues.feed import Settled, Verdict
from waystation.queues.ledger.runs import apart, common, tidy, without
from waystation.queues.shard.commands import count_of
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.queue_feed import OnEnd, QueueFeed
from waystation.queues.shard.shard import Shard

PIECE = 1024
"""Entries that are claimed before it is looked whether they are enough."""
MAX_RUNS = 10_000
"""Runs in one claim: whoever keeps books writes all of them down."""

Waiter = asyncio.Future[list[Run]]


class QueueReader(QueueFeed):
    """The one consumer of its queue."""

    __slots__ = ("_claimed", "_count", "_max_bytes", "_waiter")

    def __init__(self, shard: Shard, queue: Queue, consumer: str, on_end: OnEnd) -> None:
        super().__init__(shard, queue, consumer, _deliver_nothing, on_end, exclusive=True)
        self._claimed: list[Run] = []
        self._waiter: Waiter | None = None
        self._count = self._max_bytes = 0

    @property
    def claimed(self) -> int:
        return count_of(self._claimed)

    async def claim(self, count: int, max_bytes: int, wait_ms: int) -> list[Run]:
        """The next entries, at most `count`, in tidy runs; none if none came in time. `max_bytes` of payloads, if it is
        not 0: more than that only if the first one alone is larger."""
        if count < 1 or max_bytes < 0:
            raise Invalid(f"count: {count} is below 1" if count < 1 else f"max_bytes: {max_bytes} is below zero")
        self.check_open()
        if self._waiter is not None:
            raise Conflict(f"queue {self.queue.name!r}: this reader waits for entries already")
        self._count, self._max_bytes = count, max_bytes
        self.shard.touch(self.queue)
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        try:
            self.shard.dispatcher.now(self.queue)
            if not waiter.done() and wait_ms > 0:
                await asyncio.wait([waiter], timeout=wait_ms / 1000)
            return waiter.result() if waiter.done() else []
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give_back(waiter.result())  # they came in the moment in which whoever waited gave up
            raise
        finally:
            self._waiter = None

    def claim_these(self, runs: Sequence[Run]) -> list[Run]:
        """Entries by their numbers; returns those of them that the reader has now, or had before."""
        self.check_open()
        wanted = list(apart(runs))
        tidy(wanted)
        self.shard.note_use(self.queue)
        found = self.queue.open_ledger().claim_these(without(wanted, self._claimed))
        self._add(found)
        return common(wanted, self._claimed)

    def feed(self, share: int, since_ms: int) -> int:
        """Something is ready: whoever waits for it gets as much as it wanted, not just its share."""
        if self._waiter is None or self._waiter.done() or self.closed:
            return 0
        runs = self._take()
        self._waiter.set_result(runs)
        return count_of(runs)

    def _take(self) -> list[Run]:
        ledger, places = self.queue.open_ledger(), self.queue.places
        self.shard.note_use(self.queue)
        taken: list[Run] = []
        left, room = self._count, self._max_bytes
        while left > 0 and len(taken) < MAX_RUNS:
            piece = ledger.claim(min(left, PIECE))
            if not piece:
                break
            size = sum(places.bytes_of(*run) for run in piece) if self._max_bytes and places is not None else 0
            if size > room:
                taken += self._as_fits(piece, room, at_least=0 if taken else 1)
                tidy(taken)
                break
            room -= size
            left -= count_of(piece)
            taken += piece
            tidy(taken)
        self._add(taken)
        self.queue.delivered += count_of(taken)
        return taken

    def _as_fits(self, piece: list[Run], room: int, at_least: int) -> list[Run]:
        """The first entries of a piece that fit; the others are requeued."""
        fits: list[Run] = []
        for first, count in piece:
            for entry in range(first, first + count):
                room -= self.queue.places.bytes_of(entry, 1)  # type: ignore[union-attr]  # comes with the ledger
                if room < 0 and len(fits) >= at_least:
                    tidy(fits)
                    self.queue.open_ledger().restore(without(piece, fits))
                    return fits
                fits.append((entry, 1))
        tidy(fits)
        return fits

    def settle(
        self,
        verdict: Verdict,
        runs: Sequence[Run],
        *,
        delay_ms: int | None = None,
        error: str | None = None,
        deliveries: int = 0,
    ) -> Settled:
        """`ack` ends entries for good, `release` requeues them; a reader has no other verdicts. What is claimed is
        not delivered, so that there is nothing to tell apart by `deliveries`."""
        if self.closed:
            return Settled(None, list(runs))
        if verdict not in (Verdict.ACK, Verdict.RELEASE) or delay_ms is not None:
            raise Invalid("verdict: a queue's reader can ack what it has claimed, or release it at once")
        wanted = list(apart(runs))
        tidy(wanted)
        known = common(wanted, self._claimed)
        receipt = None
        if verdict is Verdict.RELEASE:
            self._give_back(known)
        elif known:
            receipt = self.shard.end(self.queue, known)
            self.queue.acked += count_of(known)
            self._claimed = without(self._claimed, known)
        return Settled(receipt, without(wanted, known))

    def touch(self, runs: Sequence[Run], visibility_timeout_ms: int | None = None, deliveries: int = 0) -> list[Run]:
        """What is claimed needs no more time."""
        wanted = list(apart(runs))
        tidy(wanted)
        return without(wanted, self._claimed)

    def retire(self) -> None:
        """It is the queue's reader, or nobody."""
        self.close()

    def _go(self, *, forgiven: bool) -> None:
        if self.closed:
            return
        super()._go(forgiven=forgiven)
        self._give_back(self._claimed)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Conflict(f"queue {self.queue.name!r} was deleted, or this reader was closed"))

    def drop(self, error: WaystationError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self._claimed = []
        super().drop(error)

    def _add(self, runs: Sequence[Run]) -> None:
        self._claimed += runs
        tidy(self._claimed)

    def _give_back(self, runs: Sequence[Run]) -> None:
        known = common(runs, self._claimed)
        if known:
            self._claimed = without(self._claimed, known)
            self.shard.give_back(self.queue, known)


def _deliver_nothing(messages: list[Delivered]) -> None:
    """A reader is sent nothing."""
