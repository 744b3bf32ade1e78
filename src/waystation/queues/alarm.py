"""One timer for all queues of a shard: each queue is told when its next moment has come.

A queue has at most one moment that counts, the earliest it asked for; being told too often does no harm, too late does.
Queues are known here by their numbers, so that one that is deleted is not kept for the sake of its last moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from waystation.queues.queue import Queue
from waystation.world.clock import Clock

logger = logging.getLogger("waystation.queues")

LONGEST_S = 10.0
"""The loop's clock knows nothing of a calendar that is set, or a machine that slept: so often moments are looked at."""
RINGS = 128
"""Queues that are told in one turn of the loop: when a million are due at once, others get their turns in between."""
RETRY_MS = 1_000
STALE = 1_000


class Alarm:
    """`ring(queue, now_ms)` is called when a queue's moment has come."""

    def __init__(self, clock: Clock, queues: Mapping[int, Queue], ring: Callable[[Queue, int], None]) -> None:
        self._clock = clock
        self._queues = queues
        self._ring = ring
        self._moments: list[tuple[int, int]] = []  # a heap of (when, queue); some no longer count
        self._sweep_at = STALE
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._ringing = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._moments)

    def arm(self, queue: Queue, when_ms: int) -> None:
        if self._closed or (queue.armed_ms is not None and queue.armed_ms <= when_ms):
            return
        queue.armed_ms = when_ms
        heappush(self._moments, (when_ms, queue.id))
        if len(self._moments) > self._sweep_at:
            self._sweep()
        if not self._ringing and (self._timer is None or when_ms < self._timer_ms):
            self._set()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._moments.clear()

    def _sweep(self) -> None:
        """Throws out what no longer counts: a queue that asks for an earlier moment leaves the later one behind."""
        self._moments = [*{moment for moment in self._moments if self._counts(*moment)}]
        heapify(self._moments)
        self._sweep_at = 2 * len(self._moments) + STALE

    def _counts(self, when_ms: int, queue_id: int) -> bool:
        queue = self._queues.get(queue_id)
        return queue is not None and queue.armed_ms == when_ms

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
        self._ringing = True
        now_ms = self._clock.now_ms()
        rung = 0
        while self._moments and self._moments[0][0] <= now_ms and rung < RINGS:
            when_ms, queue_id = heappop(self._moments)
            if self._counts(when_ms, queue_id):
                rung += 1
                self._tell(self._queues[queue_id], now_ms)
        self._ringing = False
        self._set()

    def _tell(self, queue: Queue, now_ms: int) -> None:
        queue.armed_ms = None
        try:
            self._ring(queue, now_ms)
        except Exception:  # a mistake of ours with one queue must not stop the clock of all others
            logger.exception("time could not pass in a queue, trying again: name=%r", queue.name)
            self.arm(queue, now_ms + RETRY_MS)
