"""The latest writes of a catalog, in memory, for those who watch it.

It begins when the catalog is opened: who was not there then reads everything. Bounded: a watcher that is too far behind
is told so (Compacted), and nobody is waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from waystation.catalog.catalog import Compacted, Update, Watch

MAX_BYTES = 4 * 1024 * 1024
"""Of keys and values. A watcher takes what there is at every turn of the loop, so it is behind by a few kilobytes; by
more while a topic of thousands of partitions is made."""
OVERHEAD = 300
"""Bytes of memory that an update costs besides."""


class UpdateHistory:
    """One per catalog. Any thread."""

    def __init__(self, revision: int, max_bytes: int = MAX_BYTES) -> None:
        self._lock = threading.Lock()
        self._updates: deque[tuple[Update, int]] = deque()
        self._begin = revision  # it has all updates after this one
        self._bytes = 0
        self.max_bytes = max_bytes
        self._wakers: dict[HistoryWatch, Callable[[], None]] = {}

    def add(self, update: Update) -> None:
        """In the order of revisions."""
        size = OVERHEAD + sum(len(key) + len(value or b"") for key, value in update.changes)
        with self._lock:
            self._updates.append((update, size))
            self._bytes += size
            while self._bytes > self.max_bytes:
                oldest, size = self._updates.popleft()
                self._bytes -= size
                self._begin = oldest.revision
            wakers = list(self._wakers.values())
        for wake in wakers:
            wake()

    def after(self, revision: int) -> list[Update]:
        """Raises Compacted."""
        with self._lock:
            if revision < self._begin:
                raise Compacted(f"what was written after revision {revision} is not remembered; {self._begin} is")
            found = []
            for update, _ in reversed(self._updates):
                if update.revision <= revision:
                    break
                found.append(update)
        found.reverse()
        return found

    def compact(self, revision: int) -> None:
        """Forgets what was written up to this revision: who has not taken it is told so."""
        with self._lock:
            while self._updates and self._updates[0][0].revision <= revision:
                self._bytes -= self._updates.popleft()[1]
            self._begin = max(self._begin, revision)
            wakers = list(self._wakers.values())
        for wake in wakers:
            wake()

    def watch(self, after: int, wake: Callable[[], None]) -> HistoryWatch:
        watch = HistoryWatch(self, after)
        with self._lock:
            self._wakers[watch] = wake
        return watch

    def forget(self, watch: HistoryWatch) -> None:
        with self._lock:
            self._wakers.pop(watch, None)


class HistoryWatch(Watch):
    def __init__(self, history: UpdateHistory, after: int) -> None:
        self._history = history
        self._after = after

    def take(self) -> list[Update]:
        found = self._history.after(self._after)
        if found:
            self._after = found[-1].revision
        return found

    def close(self) -> None:
        self._history.forget(self)
