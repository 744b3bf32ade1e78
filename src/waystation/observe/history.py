"""The last hour in points of a few seconds: a ring of numbers per series, of a fixed size from the beginning."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

SERIES = (
    "publish",
    "deliver",
    "ack",
    "publish_bytes",
    "deliver_bytes",
    "connections",
    "memory_bytes",
    "data_bytes",
    "messages_ready",
    "loop_delay_ms",
    "fsync_ms",
    "cpu_share",
)
INTERVAL_MS = 5_000
POINTS = 720


class SeriesHistory:
    """720 points of 12 series take 75 KB."""

    def __init__(self, series: Sequence[str] = SERIES, points: int = POINTS) -> None:
        self.series = tuple(series)
        self._points = points
        self._times = array("q", bytes(8 * points))
        self._rings = {name: array("d", bytes(8 * points)) for name in self.series}
        self._next = 0  # where the next point goes
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, time_ms: int, values: Mapping[str, float]) -> None:
        """A point; what a series has no value for is zero."""
        at = self._next
        self._times[at] = time_ms
        for name, ring in self._rings.items():
            ring[at] = values.get(name, 0.0)
        self._next = (at + 1) % self._points
        self._count = min(self._count + 1, self._points)

    def since(self, time_ms: int) -> tuple[list[int], dict[str, list[float]]]:
        """The points after that time, the oldest first: their times, and the values of each series."""
        first = (self._next - self._count) % self._points
        places = [(first + i) % self._points for i in range(self._count)]
        places = [place for place in places if self._times[place] > time_ms]
        times = [self._times[place] for place in places]
        return times, {name: [round(ring[place], 3) for place in places] for name, ring in self._rings.items()}
