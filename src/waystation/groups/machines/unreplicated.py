"""What things were before changes that could still be lost, because not every replica has them yet.

Whoever asks is told of what was before: never of something that the next leader may not know. Offsets of the log say
how far that is: a change is over when everything before its `end` is replicated. Pure; `offsets.py` is the only caller.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MOST = 16
"""Changes of one thing that are told apart. Further ones count as one, which is over with the last of them."""


class Change(NamedTuple, Generic[V]):
    end: int
    before: V | None
    """None: there was nothing."""


class Unreplicated(Generic[K, V]):
    """See the module."""

    def __init__(self) -> None:
        self._changes: OrderedDict[K, deque[Change[V]]] = OrderedDict()

    def __iter__(self) -> Iterator[K]:
        """What was changed, maybe by what is replicated meanwhile."""
        return iter(self._changes)

    def note(self, key: K, before: V | None, end: int) -> None:
        """It was changed by what ends there in the log; ends never go back."""
        changes = self._changes.setdefault(key, deque())
        if len(changes) == MOST:
            before = changes.pop().before
        changes.append(Change(end, before))

    def forget(self, replicated: int) -> None:
        """Everything before this offset of the log is replicated."""
        while self._changes:
            key, changes = next(iter(self._changes.items()))
            if changes[0].end > replicated:
                return
            if self.first(key, replicated) is not None:
                self._changes.move_to_end(key)  # others may be over before the rest of it is

    def first(self, key: K, replicated: int) -> Change[V] | None:
        """The first change that is not replicated; None: it is as it was left."""
        changes = self._changes.get(key)
        if changes is None:
            return None
        while changes and changes[0].end <= replicated:
            changes.popleft()
        if changes:
            return changes[0]
        del self._changes[key]
        return None
