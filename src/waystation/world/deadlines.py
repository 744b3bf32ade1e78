"""Deadlines by name: a heap that forgives postponement.

Heartbeats postpone deadlines all the time and hardly ever let one pass, so `set` to a later moment touches only a
dict; the heap entry is corrected when it comes to the top. Pure: the caller says what time it is.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


STALE = 1_000
"""Entries of the heap that may be stale, beside one for each deadline."""


class Deadlines(Generic[K]):
    """At most one deadline per key."""

    __slots__ = ("_at", "_count", "_heap", "_queued")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}  # the truth
        self._queued: dict[K, int] = {}  # the earliest heap entry of a key; never later than the truth
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0  # breaks ties in order of arrival, so that keys need not be comparable

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def get(self, key: K) -> int | None:
        return self._at.get(key)

    def set(self, key: K, at_ms: int) -> None:
        self._at[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: K) -> None:
        if self._at.pop(key, None) is not None:
            self._sweep_if_stale()

    def next_ms(self) -> int | None:
        """The earliest deadline, or None."""
        heap = self._heap
        while heap:
            at_ms, _, key = heap[0]
            real_ms = self._at.get(key)
            if real_ms == at_ms:
                return at_ms
            heappop(heap)
            if self._queued.get(key) != at_ms:
                continue  # superseded by an earlier entry, which has been dealt with or will be
            del self._queued[key]
            if real_ms is not None:
                self._push(key, real_ms)
        return None

    def due(self, now_ms: int, most: int | None = None) -> list[K]:
        """Takes out the keys whose deadline has come, earliest first; at most so many."""
        keys: list[K] = []
        while len(keys) != most and (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            _, _, key = heappop(self._heap)
            del self._queued[key]
            del self._at[key]
            keys.append(key)
        return keys

    @property
    def rows(self) -> int:
        """What the heap holds, stale entries too: never many more than there are deadlines."""
        return len(self._heap)

    def _push(self, key: K, at_ms: int) -> None:
        self._queued[key] = at_ms
        self._count += 1
        heappush(self._heap, (at_ms, self._count, key))
        self._sweep_if_stale()

    def _sweep_if_stale(self) -> None:
        """Throws out what no longer counts: a cancelled deadline may have been a year away."""
        if len(self._heap) > 2 * len(self._at) + STALE:
            self._queued = dict(self._at)
            self._heap = [(at_ms, count, key) for count, (key, at_ms) in enumerate(self._at.items())]
            self._count = len(self._heap)
            heapify(self._heap)
