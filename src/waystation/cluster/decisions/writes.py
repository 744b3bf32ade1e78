"""What a decision knows, and what it asks the store to write. Pure.

A decision is a function: it gets entries of the store as this node last saw them, and says which write it wants, if
any. What it has seen may be old; that is harmless, because each write names the revisions that the decision rests on,
and the store makes all of it or nothing. A decision never waits, retries or looks at a clock.

Every write of a node names the revision of the node's own disk entry (`Identity`). Another process that has started
with the same node id (a copied folder, a mistake in a command line) has changed that entry, and from then on nothing
that the former one decides is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import msgspec

from waystation.cluster.decisions.state import DiskState, NodeState, PartitionState, disk_key, encode
from waystation.cluster.store import MOST_CHANGES

State = NodeState | DiskState | PartitionState
S_co = TypeVar("S_co", NodeState, DiskState, PartitionState, covariant=True)


class StoreEntry(msgspec.Struct, Generic[S_co], frozen=True):
    """An entry of the store, as of a revision."""

    key: str
    state: S_co
    revision: int  # of the write that the entry comes from


class Identity(msgspec.Struct, frozen=True):
    """Who decides: the node's id, and its disk entry as this process has written it."""

    node_id: int
    disk: StoreEntry[DiskState]

    @property
    def leaving(self) -> bool:
        return self.disk.state.leaving

    @property
    def expected(self) -> dict[str, int]:
        return {disk_key(self.node_id): self.disk.revision}


class Write(msgspec.Struct, frozen=True):
    """All of it or nothing. `expected` has the revision that each key must have, ABSENT where it must not be there."""

    changes: Mapping[str, State | None]
    expected: Mapping[str, int]

    def encoded(self) -> dict[str, bytes | None]:
        return {key: None if state is None else encode(state) for key, state in self.changes.items()}


def together(writes: Iterable[Write], most: int = MOST_CHANGES) -> Iterator[Write]:
    """The same in as few writes as the store takes: ten thousand partitions of a dead node move in some hundred.

    Such a write fails whole if one of its keys was changed by somebody else. Then the caller decides again for each of
    its partitions, from what it has learned by then, or tries parts of it (`Portions`).
    """
    return (_merged(some) for some in _portions(writes, most))


class Portions:
    """Writes that are made together, as by `together`. Of a refused one it is not known which of its changes was:
    its halves come next, and so on, so that one that is refused costs some writes more and not one for each."""

    def __init__(self, writes: Iterable[Write], most: int = MOST_CHANGES) -> None:
        self._waiting = deque(_portions(writes, most))
        self._last: list[Write] = []

    def next(self) -> Write | None:
        """What is to be made now; None: that was all."""
        if not self._waiting:
            return None
        self._last = self._waiting.popleft()
        return _merged(self._last)

    def refused(self, is_open: Callable[[Write], bool]) -> bool:
        """Whether the last one, which was refused, is tried in parts: those of which nobody knows yet that they would
        be refused. False: it was one alone."""
        if len(self._last) == 1:
            return False
        left = [one for one in self._last if is_open(one)]
        half = (len(left) + 1) // 2
        self._waiting.extendleft(some for some in (left[half:], left[:half]) if some)
        return True


def _portions(writes: Iterable[Write], most: int) -> Iterator[list[Write]]:
    some: list[Write] = []
    keys: set[str] = set()
    changes: set[str] = set()
    expected: dict[str, int] = {}
    for write in writes:
        more = keys | write.changes.keys() | write.expected.keys()
        agrees = all(expected.get(key, revision) == revision for key, revision in write.expected.items())
        if some and (len(more) > most or not agrees or changes & write.changes.keys()):
            yield some
            some, keys, changes, expected = [], set(), set(), {}
        some.append(write)
        keys |= write.changes.keys() | write.expected.keys()
        changes |= write.changes.keys()
        expected |= write.expected
    if some:
        yield some


def _merged(writes: Iterable[Write]) -> Write:
    changes: dict[str, State | None] = {}
    expected: dict[str, int] = {}
    for write in writes:
        changes |= write.changes
        expected |= write.expected
    return Write(changes, expected)
