"""Entries waiting in line, in the order of their ids, in as few bytes as their order allows.

New entries come with ascending ids, and a backlog is mostly one after the other, so it is kept as runs (first, behind
last): a million messages in a row are one pair of numbers, and in the worst case an entry costs sixteen bytes. What
comes back (released, timed out) belongs before younger entries; those are few, and wait in a heap.

An id may stand here although its entry is no longer ready (it expired, or was purged); the ledger skips it when its
turn comes. So nothing is ever searched for.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush

_TRIM = 1024


class ReadyLine:
    """One priority's line."""

    __slots__ = ("_ends", "_head", "_returned", "_starts")

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")
        self._head = 0
        self._returned: list[int] = []

    def push(self, entry_id: int) -> None:
        ends = self._ends
        if len(ends) > self._head:
            if entry_id == ends[-1]:
                ends[-1] += 1
                return
            if entry_id < ends[-1]:
                heappush(self._returned, entry_id)
                return
        self._starts.append(entry_id)
        ends.append(entry_id + 1)

    def pop(self) -> int | None:
        """The oldest id; None if the line is empty."""
        returned = self._returned
        head = self._head
        if head >= len(self._starts):
            return heappop(returned) if returned else None
        first = self._starts[head]
        if returned and returned[0] < first:
            return heappop(returned)
        if first + 1 == self._ends[head]:
            self._drop_run()
        else:
            self._starts[head] = first + 1
        return first

    def _drop_run(self) -> None:
        self._head += 1
        if self._head == len(self._starts):
            del self._starts[:], self._ends[:]
            self._head = 0
        elif self._head >= _TRIM and self._head * 2 >= len(self._starts):
            del self._starts[: self._head]
            del self._ends[: self._head]
            self._head = 0
