"""The lines of ready entries, one for each priority that is in use, as the chunks in which they stand.

Within a priority, entries go in the order of their ids, also those that came back. The state bytes know which of a
chunk's entries are ready, and finding the first is one search in a kilobyte; so a line is only the sorted numbers of
the chunks where there may be one. Ten million ready entries, in any mix of priorities, are ten thousand numbers.

A number may stand here although nothing in its chunk is ready any more, or the chunk is gone: whoever comes by drops
it. A number never stands here twice.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter

FEW = 16
"""So many lines stay when they are empty: to pass by them is cheaper than to make them again."""


class ReadyLine(list[int]):
    """One priority's line: numbers of chunks, ascending."""

    __slots__ = ("priority",)

    priority: int

    def note(self, number: int) -> None:
        """Something in that chunk became ready."""
        if not self or self[-1] < number:
            self.append(number)
        elif self[-1] != number:
            at = bisect_left(self, number)
            if self[at] != number:
                self.insert(at, number)


_priority_of = attrgetter("priority")


def new_line(priority: int, number: int) -> ReadyLine:
    line = ReadyLine((number,))
    line.priority = priority
    return line


def note(lines: list[ReadyLine], priority: int, number: int) -> None:
    """Something of this priority in that chunk became ready. The lines ascend by priority."""
    for line in (lines[0], lines[-1]):  # mostly there are one or two
        if line.priority == priority:
            line.note(number)
            return
    at = bisect_left(lines, priority, key=_priority_of)
    if at < len(lines) and lines[at].priority == priority:
        lines[at].note(number)
    else:
        lines.insert(at, new_line(priority, number))
