"""What is to happen to which entry when, for tens of millions of entries and horizons from seconds to years.

A row is eight bytes in a bucket: far away a bucket is about a minute, near it is about a second, and only the rows of
the present second are kept in order. So a message parked for next year costs no sorting until its second comes. A
minute is split into its seconds during the minute before, some thousand rows at each call, so that a million messages
due in the same minute do not stop everything else.

A row may stand here although nothing is to happen any more; the owner looks when its time comes, and has rows swept out
when too many are stale. Rows are known by a number below 2**54: an entry, or a run of entries in the owner's own code.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import msgspec

_NEAR_BITS = 10
_NEAR_MS = 1 << _NEAR_BITS
_FAR_BITS = 16
_FAR_MS = 1 << _FAR_BITS

# A row is the milliseconds since its bucket began, above the row's number.
_NEAR_SHIFT = 64 - _NEAR_BITS
_NEAR_MASK = (1 << _NEAR_SHIFT) - 1
_FAR_SHIFT = 64 - _FAR_BITS
_FAR_MASK = (1 << _FAR_SHIFT) - 1

_STEP = 4096  # rows that one call moves from a minute to its seconds: about a millisecond's work


class TimetableState(msgspec.Struct, array_like=True, frozen=True):
    """A timetable as it is stored. A bucket's key is twice the time that it begins, plus one if it is near."""

    boundary: int
    keys: list[int]
    rows: list[bytes]


class Timetable:
    """Times are milliseconds since the epoch."""

    __slots__ = ("_at", "_boundary", "_buckets", "_order", "_second", "_sweep", "_today", "rows")

    def __init__(self) -> None:
        self.rows = 0  # stale ones, too
        self._buckets: dict[int, array[int]] = {}
        self._order: list[int] = []  # a heap of the buckets' keys; some may be gone
        self._boundary = 0  # from this far bucket on, rows go to far buckets
        self._second = -1  # the near bucket that is kept in order, with all before it
        self._today: list[int] | None = None  # its rows, in order from `_at` on
        self._at = 0
        self._sweep: list[int] | None = None  # the buckets yet to be swept

    # -- adding -----------------------------------------------------------------------------------------------------

    def add(self, when_ms: int, row: int, count: int = 1) -> None:
        """Rows that follow one another, at the same time."""
        when_ms = max(when_ms, 0)
        self.rows += count
        if when_ms >> _FAR_BITS >= self._boundary and row + count <= _FAR_MASK:
            bucket = self._bucket(when_ms >> _FAR_BITS << _FAR_BITS + 1)
            base = ((when_ms & _FAR_MS - 1) << _FAR_SHIFT) + row
        elif when_ms >> _NEAR_BITS > self._second:
            bucket = self._bucket(when_ms >> _NEAR_BITS << _NEAR_BITS + 1 | 1)
            base = ((when_ms & _NEAR_MS - 1) << _NEAR_SHIFT) + row
        else:
            self._add_today(when_ms, row, count)
            return
        if count == 1:
            bucket.append(base)
        else:
            bucket.extend(array("Q", range(base, base + count)))

    def _bucket(self, key: int) -> array[int]:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = array("Q")
            heappush(self._order, key)
        return bucket

    def _add_today(self, when_ms: int, row: int, count: int) -> None:
        """What should have happened before this second counts as its beginning."""
        if self._today is None:
            self._today, self._at = [], 0
        base = (max(when_ms - (self._second << _NEAR_BITS), 0) << _NEAR_SHIFT) + row
        if count == 1:
            insort(self._today, base, lo=self._at)
            return
        del self._today[: self._at]
        self._at = 0
        self._today.extend(range(base, base + count))
        self._today.sort()

    # -- time passes ------------------------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """When to look again, at the latest; None if there is nothing to come."""
        order = self._order
        while order and order[0] not in self._buckets:
            heappop(order)
        times: list[int] = []
        if self._today is not None and self._at < len(self._today):
            times.append((self._second << _NEAR_BITS) + (self._today[self._at] >> _NEAR_SHIFT))
        if order:
            times.append((order[0] >> 1) if order[0] & 1 else max((order[0] >> 1) - _FAR_MS, 0))
        ahead = max(self._boundary - 1, 0) << _FAR_BITS
        if ahead << 1 in self._buckets:
            times.append(max(ahead - _FAR_MS, 0))
        return min(times, default=None)

    def due(self, now_ms: int) -> list[int]:
        """The rows whose time has come, in no order; they are taken out."""
        found: list[int] = []
        second = now_ms >> _NEAR_BITS
        if second > self._second:
            if self._today is not None:
                found += [row & _NEAR_MASK for row in self._today[self._at :]]
                self._today = None
            self._second = second
        order = self._order
        while order and order[0] >> 1 <= now_ms:
            key = heappop(order)
            bucket = self._buckets.pop(key, None)
            if bucket is not None:
                self._open(key, bucket, now_ms, found)
        self._look_ahead(now_ms)
        self._take_today(now_ms, found)
        self.rows -= len(found)
        return found

    def _open(self, key: int, bucket: array[int], now_ms: int, found: list[int]) -> None:
        """A bucket that has begun: all of it is due, or it is brought into order."""
        start, near = key >> 1, key & 1
        if start + (_NEAR_MS if near else _FAR_MS) <= now_ms:
            mask = _NEAR_MASK if near else _FAR_MASK
            found += [row & mask for row in bucket]
        elif not near:
            self._boundary = max(self._boundary, (start >> _FAR_BITS) + 1)
            self._split(start, bucket)
        elif self._today is None:
            self._today, self._at = sorted(bucket), 0
        else:
            self._today = sorted([*self._today[self._at :], *bucket])
            self._at = 0

    def _look_ahead(self, now_ms: int) -> None:
        """Splits a part of the next far bucket, before its time comes."""
        ahead = (now_ms >> _FAR_BITS) + 1
        self._boundary = max(self._boundary, ahead + 1)
        key = ahead << _FAR_BITS + 1
        bucket = self._buckets.get(key)
        if bucket is not None:
            part = bucket[-_STEP:]
            del bucket[-_STEP:]
            if not bucket:
                del self._buckets[key]
            self._split(ahead << _FAR_BITS, part)

    def _split(self, start_ms: int, far: array[int]) -> None:
        self.rows -= len(far)
        for row in far:
            self.add(start_ms + (row >> _FAR_SHIFT), row & _FAR_MASK)

    def _take_today(self, now_ms: int, found: list[int]) -> None:
        today = self._today
        limit = now_ms - (self._second << _NEAR_BITS) + 1
        if today is None or limit <= 0:
            return
        end = bisect_left(today, limit << _NEAR_SHIFT, lo=self._at)
        found += [row & _NEAR_MASK for row in today[self._at : end]]
        self._at = end
        if end == len(today):
            self._today = None

    # -- housekeeping -----------------------------------------------------------------------------------------------

    def sweep(self, keep: Callable[[int, int], bool]) -> None:
        """Throws stale rows out of one bucket, the next one in turn. `keep` is asked (when_ms, row)."""
        if not self._sweep:
            self._sweep = list(self._buckets)
        key = self._sweep.pop() if self._sweep else -1
        bucket = self._buckets.get(key)
        if bucket is None:
            return
        shift, mask = (_NEAR_SHIFT, _NEAR_MASK) if key & 1 else (_FAR_SHIFT, _FAR_MASK)
        start = key >> 1
        kept = array("Q", [row for row in bucket if keep(start + (row >> shift), row & mask)])
        self.rows -= len(bucket) - len(kept)
        if kept:
            self._buckets[key] = kept
        else:
            del self._buckets[key]

    def all_rows(self) -> Iterator[tuple[int, int]]:
        """Every (when_ms, row), in no order: slow."""
        for key, bucket in self._buckets.items():
            shift, mask = (_NEAR_SHIFT, _NEAR_MASK) if key & 1 else (_FAR_SHIFT, _FAR_MASK)
            for row in bucket:
                yield (key >> 1) + (row >> shift), row & mask
        if self._today is not None:
            for row in self._today[self._at :]:
                yield (self._second << _NEAR_BITS) + (row >> _NEAR_SHIFT), row & _NEAR_MASK

    def dump(self) -> TimetableState:
        keys, rows = list(self._buckets), [bucket.tobytes() for bucket in self._buckets.values()]
        if self._today is not None:
            keys.append(self._second << _NEAR_BITS + 1 | 1)
            rows.append(array("Q", self._today[self._at :]).tobytes())
        return TimetableState(self._boundary, keys, rows)

    @classmethod
    def load(cls, state: TimetableState) -> Timetable:
        table = cls()
        table._boundary = state.boundary
        for key, rows in zip(state.keys, state.rows, strict=True):
            bucket = array("Q")
            bucket.frombytes(rows)
            table._buckets[key] = bucket
            table.rows += len(bucket)
        table._order = sorted(table._buckets)
        return table
