"""Hands out what is ready in a queue, in turn to everybody who can take something: those with the highest priority
first, and others only what these cannot take.

Being woken is cheap and may come too often; the work is done once, in a turn of the loop of its own. In a turn only so
many messages are handed out: a consumer that always wants more, of a deep queue, lets the rest of the broker live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from waystation.queues.ledger.ledger import Ledger
from waystation.queues.shard.queue import Queue
from waystation.world.clock import Clock, monotonic_ms

if TYPE_CHECKING:
    from waystation.queues.shard.queue_feed import QueueFeed

SHARE = 1024
"""The most that one consumer gets before the next one has its turn."""
AT_ONCE = 8192
"""Messages in one turn of the loop: about ten milliseconds."""
AT_ONCE_BYTES = 1024 * 1024
"""And about so many bytes: to read and send them takes two milliseconds. Behind each turn, consumers' sockets are
written to, and those that are full get no more."""


class Dispatcher:
    """One shard's. `let_pass` lets time pass in a queue, `arm` sets its alarm."""

    def __init__(self, clock: Clock, let_pass: Callable[[Queue, int], None], arm: Callable[[Queue], None]) -> None:
        self._clock = clock
        self._let_pass = let_pass
        self._arm = arm
        self._closed = False

    def close(self) -> None:
        """Nothing is handed out any more: the broker stops, or another one leads the shard."""
        self._closed = True

    def wake(self, queue: Queue) -> None:
        """There may be something to deliver."""
        if queue.feeds and not queue.pumping and queue.ledger is not None and queue.ledger.ready:
            queue.pumping = True
            asyncio.get_running_loop().call_soon(self._turn, queue)

    def _turn(self, queue: Queue) -> None:
        queue.pumping = False
        self.now(queue)

    def now(self, queue: Queue) -> None:
        """Does it at once."""
        ledger, feeds = queue.ledger, queue.feeds
        if ledger is None or not feeds or self._closed:
            return
        self._let_pass(queue, self._clock.now_ms())
        since_ms = monotonic_ms(self._clock)
        left = _at_once(queue, ledger)
        try:
            for tier in _tiers(feeds):
                left = _serve(queue, ledger, tier, since_ms, left)
        finally:
            self._arm(queue)  # whatever happened, visibility timeouts that were begun have an end
        if left <= 0:
            self.wake(queue)


def _tiers(feeds: list[QueueFeed]) -> list[list[QueueFeed]]:
    """The consumers by priority, the highest first. Mostly all have the same."""
    if feeds[0].priority == feeds[-1].priority:
        return [feeds]
    return [list(tier) for _, tier in groupby(feeds, attrgetter("priority"))]


def _at_once(queue: Queue, ledger: Ledger) -> int:
    """How many messages may be handed out in one turn, if they are as large as the queue's are on the average."""
    count = ledger.ready + ledger.delayed + ledger.unacked
    return AT_ONCE if queue.bytes < AT_ONCE_BYTES else max(1, min(AT_ONCE, AT_ONCE_BYTES * count // queue.bytes))


def _serve(queue: Queue, ledger: Ledger, feeds: list[QueueFeed], since_ms: int, left: int) -> int:
    """Hands out to these in turn until none of them takes any more; returns how many more may be handed out."""
    idle = 0
    while ledger.ready and feeds and idle < len(feeds) and left > 0:
        queue.turn = (queue.turn + 1) % len(feeds)
        share = max(1, min(SHARE, left, ledger.ready // len(feeds)))
        taken = feeds[queue.turn].feed(share, since_ms)
        left -= taken
        idle = 0 if taken else idle + 1
    return left
