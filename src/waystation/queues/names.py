"""The names of queues: who is called what, and all of them in order.

Names that begin with two underscores are the broker's own queues: protocols look at them, and never change them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from waystation.errors import NotAllowed
from waystation.paging import STEP, sort_in_steps, span
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.shard import Shard

INTERNAL_PREFIX = "__"
FEW = 200
"""Names that went are taken out of the order one by one, if they are not more."""

QueuePlace = tuple[Shard, Queue]


def check_not_internal(name: str, field: str = "queue") -> None:
    if name.startswith(INTERNAL_PREFIX):
        raise NotAllowed(
            f"{field}: names that begin with {INTERNAL_PREFIX!r} are reserved for the broker, so is {name[:60]!r}"
        )


class QueueNames(dict[str, QueuePlace]):
    """Name → where the queue is. A million names may come and go: they are put in order only when someone asks."""

    def __init__(self) -> None:
        super().__init__()
        self._sorted: list[str] | None = None  # each once; those that came since it was sorted are at its end
        self._came = 0
        self._changes = 0
        self._went: set[str] = set()  # they are in `_sorted` all the same

    def add(self, name: str, place: QueuePlace) -> None:
        known = name in self
        self[name] = place
        if known:
            return
        self._changes += 1
        if name in self._went:
            self._went.discard(name)
        elif self._sorted is not None:
            self._sorted.append(name)
            self._came += 1

    def discard(self, name: str) -> None:
        if self.pop(name, None) is not None:
            self._changes += 1
            if self._sorted is not None:
                self._went.add(name)

    def ordered(self, prefix: str = "", after: str = "") -> Iterator[str]:
        """Names in order, behind `after`."""
        known = self._in_order()
        for i in range(bisect_left(known, max(prefix, after)), len(known)):
            name = known[i]
            if not name.startswith(prefix):
                return
            if name > after or not after:
                yield name

    async def listed(self, prefix: str = "") -> list[str]:
        """The names with this prefix in order, without the broker's own: a copy."""
        if self._sorted is None or self._came > STEP:
            await self._sort_in_steps()
        known = self._in_order()
        first, last = span(known, prefix)
        own_first, own_last = span(known, INTERNAL_PREFIX)
        return known[first : max(first, min(last, own_first))] + known[min(last, max(first, own_last)) : last]

    async def _sort_in_steps(self) -> None:
        """Where many are not in order: a hundred thousand names at once would keep everybody waiting."""
        before = self._changes
        ordered = await sort_in_steps(list(self))
        self._came = 0
        if self._changes != before:
            there = set(ordered)
            came = [name for name in self if name not in there]
            ordered = [*(name for name in ordered if name in self), *came]
            self._came = len(came)
        self._sorted = ordered
        self._went.clear()

    def _in_order(self) -> list[str]:
        if self._sorted is None:
            self._sorted = sorted(self)
        elif self._came:
            self._sorted.sort()  # 15 ms for a million that are mostly in order
        self._came = 0
        if len(self._went) > FEW:
            self._sorted = [name for name in self._sorted if name not in self._went]
        else:
            for name in self._went:
                del self._sorted[bisect_left(self._sorted, name)]
        self._went.clear()
        return self._sorted
