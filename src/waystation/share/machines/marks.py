"""What is remembered of a share group's records above its start offset: runs of offsets with a mark each.

A mark is a small number: `DONE` (acknowledged, or nothing to deliver there), `DYING` (dead, on the way to the dead
letters), or two and more: alive and handed out `mark - 1` times. An offset without a mark was never handed out. Runs
are kept in order, never touch a neighbour of the same mark and never overlap, so that the whole is as short as it can
be: it is written to the log with every change.

Pure. `SharePartition` is the only caller.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

DONE = 0
DYING = 1


def handed_out(times: int) -> int:
    """The mark of a record that was handed out so often."""
    return times + 1


class Mark(NamedTuple):
    """Offsets from `first` up to, not including, `end`."""

    first: int
    end: int
    mark: int

    @property
    def deliveries(self) -> int:
        return max(0, self.mark - 1)


class Marks:
    """See the module."""

    __slots__ = ("_ends", "_firsts", "_marks", "done", "dying")

    def __init__(self, runs: Iterable[Mark] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._marks: list[int] = []
        self.done = 0
        """How many offsets are marked DONE."""
        self.dying = 0
        for run in runs:
            self.set(run.first, run.end, run.mark)

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[Mark]:
        return map(Mark, self._firsts, self._ends, self._marks)

    def front(self) -> Mark | None:
        """The first run."""
        return Mark(self._firsts[0], self._ends[0], self._marks[0]) if self._firsts else None

    def at(self, offset: int) -> int | None:
        i = bisect_right(self._firsts, offset) - 1
        return self._marks[i] if i >= 0 and offset < self._ends[i] else None

    def between(self, first: int, end: int) -> list[Mark]:
        """The runs in [first, end), cut to it."""
        found = []
        for i in range(bisect_right(self._ends, first), bisect_left(self._firsts, end)):
            found.append(Mark(max(first, self._firsts[i]), min(end, self._ends[i]), self._marks[i]))
        return found

    def set(self, first: int, end: int, mark: int) -> None:
        """Gives all offsets in [first, end) this mark, whatever they had."""
        if first >= end:
            return
        new = Mark(first, end, mark)
        low = self._replace(first, end, [new])
        self._count(new, 1)
        self._mend(low)

    def clear(self, first: int, end: int) -> None:
        """Takes the marks of all offsets in [first, end) away."""
        if first < end:
            self._replace(first, end, [])

    def cut(self, offset: int) -> None:
        """Forgets everything below `offset`."""
        for piece in self.between(self._firsts[0], offset) if self._firsts else ():
            self._count(piece, -1)
        i = bisect_right(self._ends, offset)
        del self._firsts[:i], self._ends[:i], self._marks[:i]
        if self._firsts and self._firsts[0] < offset:
            self._firsts[0] = offset

    def _replace(self, first: int, end: int, new: list[Mark]) -> int:
        """Puts `new` in the place of what is in [first, end); returns the index of the first run that was touched."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        before, after = self._frayed(low, high, first, end)
        for piece in self.between(first, end):
            self._count(piece, -1)
        self._splice(low, high, [*before, *new, *after])
        return low

    def _frayed(self, low: int, high: int, first: int, end: int) -> tuple[list[Mark], list[Mark]]:
        """What is left of the outermost runs on both sides of [first, end)."""
        before, after = [], []
        if low < high:
            if self._firsts[low] < first:
                before.append(Mark(self._firsts[low], first, self._marks[low]))
            if self._ends[high - 1] > end:
                after.append(Mark(end, self._ends[high - 1], self._marks[high - 1]))
        return before, after

    def _splice(self, low: int, high: int, runs: list[Mark]) -> None:
        self._firsts[low:high] = [run.first for run in runs]
        self._ends[low:high] = [run.end for run in runs]
        self._marks[low:high] = [run.mark for run in runs]

    def _mend(self, i: int) -> None:
        """Joins neighbours of one mark around the place where something was put (at most three runs, from `i` on)."""
        i = max(1, i)
        for _ in range(3):
            if i < len(self._firsts):
                if self._ends[i - 1] == self._firsts[i] and self._marks[i - 1] == self._marks[i]:
                    self._ends[i - 1] = self._ends[i]
                    del self._firsts[i], self._ends[i], self._marks[i]
                else:
                    i += 1

    def _count(self, run: Mark, sign: int) -> None:
        if run.mark == DONE:
            self.done += sign * (run.end - run.first)
        elif run.mark == DYING:
            self.dying += sign * (run.end - run.first)
