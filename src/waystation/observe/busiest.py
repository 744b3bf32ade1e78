"""Counters by name for the busiest names only, and one for all others: what keeps the number of labels bounded.

A name has counters of its own while it is among the `limit` busiest. How busy it is is its growth, halved every few
minutes; another one takes its place only if it is twice as busy, so that two that are alike do not change places all
the time. What a name had counted when it loses its place goes to `other`. So the sum over all names and `other` is
exact, no counter ever goes down, and a name that comes back begins at zero, like a counter after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest

HALF_LIFE_S = 180.0
TWICE = 2.0


class Busiest:
    """`width`: how many counters a name has. The first of them and those behind it, but for bytes, make it busy."""

    def __init__(self, limit: int, width: int) -> None:
        self.limit = limit
        self.width = width
        self.members: dict[str, list[int]] = {}
        self.other = [0] * width
        self._scores: dict[str, float] = {}

    def note(self, grown: Mapping[str, Sequence[int]], elapsed_s: float, busy: Callable[[Sequence[int]], int]) -> None:
        """Names with what they have grown by since the last time."""
        fade = 0.5 ** (elapsed_s / HALF_LIFE_S)
        for name in self._scores:
            self._scores[name] *= fade
        strangers: dict[str, int] = {}
        for name, counts in grown.items():
            own = self.members.get(name)
            if own is None:
                strangers[name] = busy(counts)
            else:
                self._scores[name] += busy(counts)
                _add(own, counts)
        if strangers:
            self._admit(strangers, grown)

    def _admit(self, strangers: Mapping[str, int], grown: Mapping[str, Sequence[int]]) -> None:
        quietest = sorted(self._scores.items(), key=lambda entry: -entry[1])
        for name in nlargest(self.limit, strangers, key=strangers.__getitem__):
            score = strangers[name]
            if len(self.members) >= self.limit:
                quiet, least = quietest[-1] if quietest else ("", float("inf"))
                if score <= TWICE * least:
                    break
                quietest.pop()
                self.forget(quiet)
            self.members[name] = list(grown[name])
            self._scores[name] = float(score)
        left = [grown[name] for name in strangers if name not in self.members]
        if left:
            _add(self.other, list(map(sum, zip(*left, strict=True))))

    def forget(self, name: str) -> None:
        """It is no more, or must give way."""
        own = self.members.pop(name, None)
        if own is not None:
            del self._scores[name]
            _add(self.other, own)

    def keep(self, there: Callable[[str], bool]) -> None:
        """Forgets those that are not there any more."""
        for name in [name for name in self.members if not there(name)]:
            self.forget(name)

    def items(self) -> Iterable[tuple[str, list[int]]]:
        return self.members.items()


def _add(total: list[int], counts: Sequence[int]) -> None:
    for index, count in enumerate(counts):
        total[index] += count
