"""A timer for deadlines of the wall clock: it wakes its owner at the earliest one, and never sleeps too long.

Deadlines of transactions are stored as wall-clock times, because they outlive the process; the event loop counts
monotonic time. So the timer wakes at least every `longest_ms`, to notice a wall clock that was set, and at most every
`shortest_ms`, so that a deadline that cannot be met (the disk refuses) does not keep the loop busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from waystation.world.clock import Clock


class DeadlineTimer:
    """One pending wake-up at most. The owner arms it again after each."""

    def __init__(self, clock: Clock, wake: Callable[[], None], *, shortest_ms: int, longest_ms: int) -> None:
        self._clock = clock
        self._wake = wake
        self._shortest_ms = shortest_ms
        self._longest_ms = longest_ms
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def arm(self, deadline_ms: int) -> None:
        """Wakes no later than at this deadline (within the bounds above)."""
        now_ms = self._clock.now_ms()
        at_ms = min(max(deadline_ms, now_ms + self._shortest_ms), now_ms + self._longest_ms)
        if self._handle is not None:
            if self._at_ms <= at_ms:
                return
            self._handle.cancel()
        self._at_ms = at_ms
        self._handle = asyncio.get_running_loop().call_later((at_ms - now_ms) / 1000, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._wake()
