"""Stores for tests: the one in memory and the one in etcd, as two nodes see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.waiting import wait_for
from waystation.catalog import Update, Watch
from waystation.cluster.store import Store


@dataclass
class TwoNodes:
    """Two nodes of one cluster, and how a third one opens it."""

    a: Store
    b: Store
    open: Callable[[], Store]
    compact: Callable[[], None]
    """Forgets what was written until now."""


class Following:
    """What a watch gives, as it comes."""

    def __init__(self, store: Store, after: int) -> None:
        self.woken = 0
        self.watch: Watch = store.watch(after, self._wake)
        self.updates: list[Update] = []

    def _wake(self) -> None:
        self.woken += 1

    def take(self) -> list[Update]:
        """All that was written so far, with what changed something."""
        self.updates += self.watch.take()
        return [update for update in self.updates if update.changes]

    def reach(self, revision: int) -> list[Update]:
        """All up to a revision at least."""
        wait_for(lambda: self.take() is not None and self.last >= revision, f"revision {revision} is told")
        return self.take()

    @property
    def last(self) -> int:
        return self.updates[-1].revision if self.updates else 0
