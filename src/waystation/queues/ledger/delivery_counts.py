"""Small numbers by entry: how often it was handed out, how often it may be. A byte each, and only where there are any.

They lie in lanes beside the chunks of states. A number from 255 on does not fit its byte and stands in a dict; few
messages are handed out that often. What was never noted is 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

LANE = 1024
"""Entries in a lane; the same as in a chunk of states."""

SAME = re.compile(rb"(.)\1*", re.DOTALL)
"""Finds the runs of equal bytes."""

_FULL = 255
_PLUS_ONE = bytes(min(byte + 1, _FULL) for byte in range(256))


class DeliveryCountsState(msgspec.Struct, array_like=True, frozen=True):
    """Delivery counts as they are stored."""

    numbers: list[int]
    lanes: list[bytes]
    big: dict[int, int]


class DeliveryCounts:
    """Entry → number."""

    __slots__ = ("_big", "_lanes")

    def __init__(self) -> None:
        self._lanes: dict[int, bytearray] = {}
        self._big: dict[int, int] = {}

    def get(self, entry: int) -> int:
        number, index = divmod(entry, LANE)
        lane = self._lanes.get(number)
        if lane is None or index >= len(lane):
            return 0
        value = lane[index]
        return value if value < _FULL else self._big[entry]

    def put(self, entry: int, value: int) -> None:
        number, index = divmod(entry, LANE)
        self._lane(number, index + 1)[index] = min(value, _FULL)
        if value >= _FULL:
            self._big[entry] = value

    def bump(self, first: int, count: int) -> None:
        """One more, for a run inside a lane."""
        number, start = divmod(first, LANE)
        stop = start + count
        lane = self._lane(number, stop)
        before = lane[start:stop]
        lane[start:stop] = before.translate(_PLUS_ONE)
        if max(before) >= _FULL - 1:
            for index, value in enumerate(before, first):
                if value >= _FULL - 1:
                    self._big[index] = self._big.get(index, value) + 1

    def values(self, first: int, count: int) -> bytes:
        """The numbers of a run inside a lane; 255 stands for anything larger, too."""
        number, start = divmod(first, LANE)
        lane = self._lanes.get(number)
        return bytes(count) if lane is None else bytes(lane[start : start + count]).ljust(count, b"\0")

    def each(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(first, count, number) for entries in a row, in any number of lanes, that have the same number."""
        end = first + count
        while first < end:
            stop = min(end, (first // LANE + 1) * LANE)
            if not self.has(first):
                yield first, stop - first, 0
            else:
                for same in SAME.finditer(self.values(first, stop - first)):
                    start, length = first + same.start(), same.end() - same.start()
                    if same[0][0] < _FULL:
                        yield start, length, same[0][0]
                    else:
                        yield from ((entry, 1, self._big[entry]) for entry in range(start, start + length))
            first = stop

    def has(self, first: int) -> bool:
        """Whether there may be numbers in this entry's lane."""
        return first // LANE in self._lanes

    def forget(self, number: int) -> None:
        """Nothing in that chunk is alive any more."""
        self._lanes.pop(number, None)
        if self._big:
            for entry in [entry for entry in self._big if entry // LANE == number]:
                del self._big[entry]

    def copy(self) -> DeliveryCounts:
        return DeliveryCounts.load(self.dump())

    def dump(self) -> DeliveryCountsState:
        return DeliveryCountsState(list(self._lanes), [bytes(lane) for lane in self._lanes.values()], dict(self._big))

    @classmethod
    def load(cls, state: DeliveryCountsState) -> DeliveryCounts:
        counts = cls()
        counts._lanes = {number: bytearray(lane) for number, lane in zip(state.numbers, state.lanes, strict=True)}
        counts._big = dict(state.big)
        return counts

    def _lane(self, number: int, length: int) -> bytearray:
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = bytearray(length)
        elif len(lane) < length:
            lane.extend(bytes(length - len(lane)))
        return lane


NONE = DeliveryCounts()
"""Of entries none of which has a number. Nobody notes any here."""
