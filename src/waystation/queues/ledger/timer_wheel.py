"""What is to happen to which entry when, for tens of millions of entries and horizons from seconds to years.

A row is eight bytes in a bucket. Far away a bucket is about an hour, nearer a minute, then a second; only the rows of
the present second are kept in order, and a few more so that a small table needs no buckets at all. So a message delayed
for next year costs no sorting until its second comes. A bucket is split into smaller ones while the one before it
passes, some thousand rows at each call: a million messages due in the same minute do not stop everything else.

A row may stand here although nothing is to happen any more; the owner looks when its time comes, and has rows swept out
when too many are stale. Rows are known by a number below 2**54: an entry, or a run of entries in the owner's own code.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

_HOURS, _MINUTES, _SECONDS = 0, 1, 2
_BITS = (22, 16, 10)  # a bucket lasts 2**bits milliseconds
# A row of a bucket is the milliseconds since the bucket began, above the row's number: 64 bits in all. So hours have
# room for numbers below 2**42 only, minutes below 2**48; larger ones go to smaller buckets.
_SHIFTS = tuple(64 - bits for bits in _BITS)
_MASKS = tuple((1 << shift) - 1 for shift in _SHIFTS)
_HOUR_BITS, _MINUTE_BITS, _SECOND_BITS = _BITS
_SHIFT = _SHIFTS[_SECONDS]  # in order, a row is its time above its number, in an int of any length
_MASK = _MASKS[_SECONDS]

_FEW = 32  # rows that are kept in order anyway
_LOOKS = 64  # rows that are looked at in one sweep: some ten microseconds
_STEP = 4096  # rows that one call moves from a bucket to smaller ones: about a millisecond's work


class TimerWheelState(msgspec.Struct, array_like=True, frozen=True):
    """A timer wheel as it is stored."""

    keys: list[int] = []  # four times the time when a bucket begins, plus 0 for hours, 1 for minutes, 2 for seconds
    rows: list[bytes] = []
    near: bytes = b""  # time, row, time, row, …


class Part(NamedTuple):
    """Rows as they lie in a bucket: in the order of numbers, they are in the order of (time, row)."""

    start_ms: int
    shift: int
    mask: int
    rows: Sequence[int]

    def number_of(self, when_ms: int, row: int) -> int:
        """How (time, row) is written in this part; below zero if it is before all of it."""
        return -1 if when_ms < self.start_ms else (when_ms - self.start_ms << self.shift) + row

    def time_and_row(self, number: int) -> tuple[int, int]:
        return self.start_ms + (number >> self.shift), number & self.mask


class Stretch(NamedTuple):
    """All rows from some time on up to `end_ms`; None: to the end. A copy, in no order; some may lie before it."""

    end_ms: int | None
    parts: list[Part]


class TimerWheel:
    """Times are milliseconds of whichever clock the owner goes by; a wall clock may be set, forward or back."""

    __slots__ = ("_at", "_bounds", "_buckets", "_near", "_order", "_second", "_sweep", "_swept", "rows")

    def __init__(self) -> None:
        self.rows = 0  # stale ones, too
        self._near: list[int] = []  # in order, from `_at` on: what is due in this second or before, and a few more
        self._at = 0
        self._second = -1
        self._bounds = (0, 0)  # the first hour and the first minute that have buckets
        self._buckets: dict[int, array[int]] | None = None
        self._order: list[int] = []  # a heap of the buckets' keys; some may be gone
        self._sweep: list[int] | None = None  # the buckets yet to be swept, the last one up to `_swept`
        self._swept = 0

    # -- adding -----------------------------------------------------------------------------------------------------

    def add(self, when_ms: int, row: int, count: int = 1) -> None:
        """Rows that follow one another, at the same time."""
        if when_ms < 0:
            when_ms = 0
        self.rows += count
        if when_ms >> _SECOND_BITS <= self._second or len(self._near) - self._at + count <= _FEW:
            self._add_near(when_ms << _SHIFT | row, count)
            return
        level = self._level(when_ms, row + count)
        bits, shift = _BITS[level], _SHIFTS[level]
        key = when_ms >> bits << bits + 2 | level
        bucket = (self._buckets.get(key) if self._buckets is not None else None) or self._bucket(key)
        base = ((when_ms & (1 << bits) - 1) << shift) + row
        if count == 1:
            bucket.append(base)
        else:
            bucket.extend(array("Q", range(base, base + count)))

    def _level(self, when_ms: int, end: int) -> int:
        """How large a bucket: as large as is not yet being split, and has room for the row's number."""
        hour, minute = self._bounds
        if when_ms >> _HOUR_BITS >= hour and end <= _MASKS[_HOURS]:
            return _HOURS
        return _MINUTES if when_ms >> _MINUTE_BITS >= minute and end <= _MASKS[_MINUTES] else _SECONDS

    def _add_near(self, base: int, count: int) -> None:
        if count == 1:
            insort(self._near, base, lo=self._at)
            return
        del self._near[: self._at]
        self._at = 0
        self._near.extend(range(base, base + count))
        self._near.sort()

    def _bucket(self, key: int) -> array[int]:
        if self._buckets is None:
            self._buckets = {}
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = array("Q")
            heappush(self._order, key)
        return bucket

    # -- time passes ------------------------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """When to look again, at the latest; None if there is nothing to come."""
        near = self._near[self._at] >> _SHIFT if self._at < len(self._near) else None
        buckets, order = self._buckets, self._order
        if not buckets:
            return near
        while order[0] not in buckets:
            heappop(order)
        times = [_begins(order[0])] if near is None else [near, _begins(order[0])]
        for level in (_HOURS, _MINUTES):  # a bucket that is being split
            key = max(self._bounds[level] - 1, 0) << _BITS[level] + 2 | level
            if key in buckets:
                times.append(_begins(key))
        return min(times)

    def due(self, now_ms: int) -> list[int]:
        """The rows whose time has come, in no order; they are taken out."""
        found: list[int] = []
        if now_ms >> _SECOND_BITS != self._second:  # it may go back, too: then it is as if it had not been later
            # What has begun, and the bucket after it, is split: from now on its rows go to smaller ones at once.
            self._second = now_ms >> _SECOND_BITS
            self._bounds = ((now_ms >> _BITS[_HOURS]) + 2, (now_ms >> _BITS[_MINUTES]) + 2)
        if self._buckets:
            self._open(now_ms, found)
            for level in (_HOURS, _MINUTES):
                self._split_ahead(level, now_ms)
        near, at = self._near, self._at
        if at < len(near) and near[at] >> _SHIFT <= now_ms:
            self._at = bisect_left(near, now_ms + 1 << _SHIFT, lo=at)
            found += [row & _MASK for row in near[at : self._at]]
            if self._at == len(near) or (self._at > 512 and self._at * 2 > len(near)):
                del near[: self._at]
                self._at = 0
        self.rows -= len(found)
        return found

    def _open(self, now_ms: int, found: list[int]) -> None:
        """Takes what is due of buckets that have begun, and puts the rest into smaller ones, or into order."""
        order, buckets = self._order, self._buckets or {}
        while order and order[0] >> 2 <= now_ms:
            key = heappop(order)
            bucket = buckets.pop(key, None)
            if bucket is None:
                continue
            start, level = key >> 2, key & 3
            if start + (1 << _BITS[level]) <= now_ms:
                mask = _MASKS[level]
                found += [row & mask for row in bucket]
                continue
            rows = sorted(bucket)
            passed = bisect_left(rows, now_ms - start + 1 << _SHIFTS[level])
            found += [row & _MASKS[level] for row in rows[:passed]]
            self._split(level, start, rows[passed:])

    def _split_ahead(self, level: int, now_ms: int) -> None:
        """Splits a part of the next bucket, before its time comes."""
        bits = _BITS[level]
        ahead = (now_ms >> bits) + 1
        key = ahead << bits + 2 | level
        buckets = self._buckets or {}
        bucket = buckets.get(key)
        if bucket is not None:
            part = sorted(bucket[-_STEP:])
            del bucket[-_STEP:]
            if not bucket:
                del buckets[key]
            self._split(level, ahead << bits, part)

    def _split(self, level: int, start_ms: int, rows: list[int]) -> None:
        """Puts sorted rows of a bucket where they belong, all those of one smaller bucket at once."""
        if level == _SECONDS:
            base = start_ms << _SHIFT
            self._near = sorted([*self._near[self._at :], *[base + row for row in rows]])
            self._at = 0
            return
        shift, mask = _SHIFTS[level], _MASKS[level]
        bits, smaller_shift = _BITS[level + 1], _SHIFTS[level + 1]
        within = (1 << bits) - 1
        at = 0
        while at < len(rows):
            offset_ms = rows[at] >> shift
            end = bisect_left(rows, (offset_ms >> bits) + 1 << bits + shift, lo=at)
            when_ms = start_ms + offset_ms
            if self._level(when_ms, mask) == level + 1 and when_ms >> _SECOND_BITS > self._second:
                bucket = self._bucket(when_ms >> bits << bits + 2 | level + 1)
                bucket.extend(
                    array("Q", [(row >> shift & within) << smaller_shift | row & mask for row in rows[at:end]])
                )
            else:
                self.rows -= end - at
                for row in rows[at:end]:
                    self.add(start_ms + (row >> shift), row & mask)
            at = end

    # -- housekeeping -----------------------------------------------------------------------------------------------

    def sweep(self, keep: Callable[[int, int], bool], looks: int = _LOOKS) -> None:
        """Looks at some rows of one bucket, going on where it ended the last time, and throws the stale ones out.
        `keep` is asked (when_ms, row). So little at a time that nobody has to wait for it."""
        buckets = self._buckets
        if not buckets:
            return
        if not self._sweep:
            self._sweep, self._swept = list(buckets), 0
        key, at = self._sweep[-1], self._swept
        bucket = buckets.get(key)
        if bucket is None or at >= len(bucket):
            self._sweep.pop()
            self._swept = 0
            return
        start, shift, mask = key >> 2, _SHIFTS[key & 3], _MASKS[key & 3]
        part = bucket[at : at + looks]
        kept = array("Q", [row for row in part if keep(start + (row >> shift), row & mask)])
        if len(kept) < len(part):
            bucket[at : at + looks] = kept
            self.rows -= len(part) - len(kept)
        self._swept = at + len(kept)
        if not bucket:
            del buckets[key]

    def all_rows(self) -> Iterator[tuple[int, int]]:
        """Every (when_ms, row), in no order: slow."""
        for row in self._near[self._at :]:
            yield row >> _SHIFT, row & _MASK
        for key, bucket in (self._buckets or {}).items():
            start, shift, mask = key >> 2, _SHIFTS[key & 3], _MASKS[key & 3]
            for row in bucket:
                yield start + (row >> shift), row & mask

    def stretch(self, from_ms: int, enough: int) -> Stretch:
        """The rows from a time on, bucket by bucket, until there are `enough` of them.

        Buckets lie within one another or apart. So what is in the first of those that are in no other, in those inside
        of it and in the rows that are kept in order anyway is all there is until its end.
        """
        near = self._near[bisect_left(self._near, from_ms << _SHIFT, lo=self._at) :]
        ahead = sorted(key for key in self._buckets or () if _ends(key) > from_ms)  # larger ones before those inside
        parts: list[Part] = []
        end_ms: int | None = None
        count = outer_end = 0
        for key in ahead:
            start = key >> 2
            if start >= outer_end:  # everything before it is known
                if count + bisect_left(near, start << _SHIFT) >= enough:
                    end_ms = start
                    break
                outer_end = _ends(key)
            bucket = (self._buckets or {})[key]
            parts.append(Part(start, _SHIFTS[key & 3], _MASKS[key & 3], bucket[:]))
            count += len(bucket)
        last = len(near) if end_ms is None else bisect_left(near, end_ms << _SHIFT)
        if last:
            parts.append(Part(0, _SHIFT, _MASK, near[:last]))
        return Stretch(end_ms, parts)

    def dump(self) -> TimerWheelState:
        buckets = self._buckets or {}
        near = array("q", [number for row in self._near[self._at :] for number in (row >> _SHIFT, row & _MASK)])
        return TimerWheelState(list(buckets), [bucket.tobytes() for bucket in buckets.values()], near.tobytes())

    @classmethod
    def load(cls, state: TimerWheelState) -> TimerWheel:
        table = cls()
        near = array("q")
        near.frombytes(state.near)
        table._near = [when_ms << _SHIFT | row for when_ms, row in zip(near[::2], near[1::2], strict=True)]
        table.rows = len(table._near)
        if state.keys:
            table._buckets = {}
            for key, rows in zip(state.keys, state.rows, strict=True):
                bucket = table._buckets[key] = array("Q")
                bucket.frombytes(rows)
                table.rows += len(bucket)
            table._order = sorted(state.keys)
        return table


def _ends(key: int) -> int:
    return (key >> 2) + (1 << _BITS[key & 3])


def _begins(key: int) -> int:
    """When to look at a bucket: when it begins; hours and minutes before, to split them."""
    level = key & 3
    return key >> 2 if level == _SECONDS else max((key >> 2) - (1 << _BITS[level]), 0)
