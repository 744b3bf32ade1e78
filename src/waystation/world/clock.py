"""Time, as handed to the core: a wall clock for what is stored, a monotonic clock for what lives in memory only."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time may jump (the user may set it); monotonic time never goes back."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # asked several times for each request: a call less


def monotonic_ms(clock: Clock) -> int:
    """The monotonic clock in whole milliseconds, as deadlines in memory are kept. Not comparable with `now_ms`."""
    return int(clock.monotonic() * 1000)
