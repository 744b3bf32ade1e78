"""One timer for all queues of a shard: each queue is told when its next moment has come.

A queue has at most one moment that counts, the earliest it asked for; being told too often does no harm, too late does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from waystation.queues.queue import Queue
from waystation.world.clock import Clock

LONGEST_S = 3600.0
"""The loop's clock and the calendar may drift apart, so a far moment is looked at again every hour."""


class Alarm:
    """`ring(queue, now_ms)` is called when a queue's moment has come."""

    def __init__(self, clock: Clock, ring: Callable[[Queue, int], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._moments: list[tuple[int, int, Queue]] = []
        self._serial = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def arm(self, queue: Queue, when_ms: int) -> None:
        if queue.armed_ms is not None and queue.armed_ms <= when_ms:
            return
        queue.armed_ms = when_ms
        self._serial += 1
        heappush(self._moments, (when_ms, self._serial, queue))
        if self._timer is None or when_ms < self._timer_ms:
            self._set()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._moments.clear()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._moments:
            self._timer_ms = self._moments[0][0]
            wait = min(LONGEST_S, max(0.0, (self._timer_ms - self._clock.now_ms()) / 1000))
            self._timer = asyncio.get_running_loop().call_later(wait, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        while self._moments and self._moments[0][0] <= now_ms:
            when_ms, _, queue = heappop(self._moments)
            if queue.armed_ms == when_ms:
                queue.armed_ms = None
                self._ring(queue, now_ms)
        self._set()
