"""A histogram with fixed buckets, made for hot paths: a list of counts and a bisection.

What must hold: `counts` has one entry more than `bounds` (the last is for what is above all of them), and their sum is
the number of observations. Pure; one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""From a tenth of a millisecond, which is a good answer without a disk, to what nobody wants to wait for."""
COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0)
BYTES = tuple(float(4**power) for power in range(4, 14))
"""256 bytes to 64 MiB."""


class Histogram:
    """Counts values by bucket. An upper bound belongs to its bucket, as Prometheus has it."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """One value, or the same one several times: what was done together took the same time."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound, how many were not above it); the last bound is infinite."""
        total = 0
        found: list[tuple[float, int]] = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found


class Mean:
    """The mean of what was added to a histogram since the last time that somebody asked."""

    __slots__ = ("_count", "_sum")

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0

    def since(self, histogram: Histogram) -> float:
        count, total = histogram.count, histogram.sum
        found = (total - self._sum) / (count - self._count) if count > self._count else 0.0
        self._count, self._sum = count, total
        return found
