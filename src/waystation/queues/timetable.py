"""What is to happen to which entry when, for tens of millions of entries and horizons from seconds to years.

Far away, an entry is sixteen bytes in a bucket of about a minute; only the nearest bucket is kept in order. So a
message parked for next year costs no sorting until its minute comes.

An entry may stand here although nothing is to happen to it any more; the ledger looks when its time comes.
"""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush

BUCKET_MS = 65_536


class Timetable:
    """Times are milliseconds since the epoch."""

    __slots__ = ("_boundary", "_buckets", "_far", "_near")

    def __init__(self) -> None:
        self._near: list[tuple[int, int]] = []  # a heap of everything before the boundary
        self._boundary = 0  # the first bucket that is far
        self._buckets: list[int] = []  # a heap of the far buckets' numbers
        self._far: dict[int, array[int]] = {}

    def add(self, when_ms: int, entry_id: int) -> None:
        number = when_ms // BUCKET_MS
        if number < self._boundary:
            heappush(self._near, (when_ms, entry_id))
            return
        bucket = self._far.get(number)
        if bucket is None:
            bucket = self._far[number] = array("q")
            heappush(self._buckets, number)
        bucket.append(when_ms)
        bucket.append(entry_id)

    def next_ms(self) -> int | None:
        """When to look again; None if there is nothing to come."""
        self._come_near()
        return self._near[0][0] if self._near else None

    def due(self, now_ms: int) -> list[int]:
        """The entries whose time has come, in the order of their times; they are taken out."""
        found: list[int] = []
        while True:
            self._come_near()
            if not self._near or self._near[0][0] > now_ms:
                return found
            found.append(heappop(self._near)[1])

    def _come_near(self) -> None:
        """Brings the nearest bucket into order when there is nothing nearer."""
        if self._near or not self._buckets:
            return
        number = heappop(self._buckets)
        bucket = self._far.pop(number)
        self._near = list(zip(bucket[0::2], bucket[1::2], strict=True))
        heapify(self._near)
        self._boundary = number + 1
