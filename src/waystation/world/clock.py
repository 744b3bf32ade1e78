"""Time, as handed to the core: wall-clock milliseconds for what is stored, a monotonic clock for durations."""

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
