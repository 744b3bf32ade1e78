"""The names of queues: who is called what, and all of them in order.

Names that begin with two underscores are the broker's own queues. Doors look at them, but use and change them never.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import groupby, islice

from waystation.errors import NotAllowed, NotFound, near_matches
from waystation.queues.queue import Queue
from waystation.queues.shard import Shard

INTERNAL_PREFIX = "__"
NEAR = 2000

Place = tuple[Shard, Queue]


def check_not_internal(name: str, field: str = "queue") -> None:
    if name.startswith(INTERNAL_PREFIX):
        raise NotAllowed(
            f"{field}: names that begin with {INTERNAL_PREFIX!r} are the broker's own, so is {name[:60]!r}"
        )


class QueueNames(dict[str, Place]):
    """Name → where the queue is. A million names may come and go: they are put in order only when someone asks."""

    def __init__(self) -> None:
        super().__init__()
        self._sorted: list[str] | None = None  # with names that have come or gone since
        self._came = self._went = False

    def find(self, name: str) -> Place:
        found = self.get(name)
        if found is None:
            raise NotFound(self.not_found(name))
        return found

    def not_found(self, name: str) -> str:
        return f"there is no queue {name[:300]!r}{near_matches(name, islice(self, NEAR))}"

    def add(self, name: str, place: Place) -> None:
        self[name] = place
        if self._sorted is not None:
            self._sorted.append(name)
            self._came = True

    def discard(self, name: str) -> None:
        if self.pop(name, None) is not None:
            self._went = True

    def ordered(self, prefix: str = "", after: str = "") -> Iterator[str]:
        """Names in order, behind `after`."""
        known = self._in_order()
        for i in range(bisect_left(known, max(prefix, after)), len(known)):
            name = known[i]
            if not name.startswith(prefix):
                return
            if name > after or not after:
                yield name

    def _in_order(self) -> list[str]:
        if self._sorted is None:
            self._sorted = sorted(self)
        elif self._came or self._went:
            self._sorted.sort()  # 15 ms for a million that are mostly in order
            if self._went:
                self._sorted = [name for name, _ in groupby(self._sorted) if name in self]
        self._came = self._went = False
        return self._sorted
