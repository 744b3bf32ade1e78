"""A line of ready entries, as the chunks in which they stand.

Within a priority, entries go in the order of their ids, also those that came back. The state bytes know which of a
chunk's entries are ready, and finding the first is one search in a kilobyte; so a line is only the sorted numbers of
the chunks where there may be one. Ten million ready entries, in any mix of priorities, are ten thousand numbers.

A number may stand here although nothing in its chunk is ready any more, or the chunk is gone: whoever comes by drops
it. A number never stands here twice.
"""

from __future__ import annotations

from bisect import bisect_left


class ReadyLine(list[int]):
    """One priority's line: numbers of chunks, ascending."""

    __slots__ = ()

    def note(self, number: int) -> None:
        """Something in that chunk became ready."""
        if not self or self[-1] < number:
            self.append(number)
        elif self[-1] != number:
            at = bisect_left(self, number)
            if self[at] != number:
                self.insert(at, number)
