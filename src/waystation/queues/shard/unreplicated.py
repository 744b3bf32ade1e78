"""Messages of a shard that are written, but not on every replica that counts: nobody is shown them yet.

In a cluster a leader that dies takes with it what only it had. What a consumer was given before the others had it would
never have been there, and its number would be another message's. So entries from the first such one of a queue on wait,
in the ledger, until the high watermark has passed the batch that they were written with, or their transaction's end.
They are a suffix of the queue: entries get their numbers in the order of the log.

A broker alone has none of this: there is no object, and the ledger's limit stays None. On the loop; used by the shard.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from waystation.queues.shard.queue import Queue
from waystation.topics.partitions.partition import Partition


class Unreplicated:
    """One shard's. `shown` is told of a queue in which more is to be seen."""

    def __init__(self, partition: Partition, shown: Callable[[Queue], None]) -> None:
        self._partition = partition
        self._shown = shown
        self._writes: deque[tuple[int, Queue]] = deque()  # the log's end behind each of them, ascending
        self._firsts: dict[Queue, deque[int]] = {}  # the first entry of each, by queue
        self._syncing: asyncio.Handle | None = None
        partition.watchers.add(self._look)

    def hide(self, queue: Queue, first: int) -> None:
        """Entries from `first` on were just written, or just committed."""
        end = self._partition.end_offset
        if self._partition.visible_offset >= end:
            return
        firsts = self._firsts.setdefault(queue, deque())
        firsts.append(first)
        self._writes.append((end, queue))
        queue.open_ledger().hide_from(firsts[0])
        if self._syncing is None:  # whoever put them may not wait for anything, but consumers do
            self._syncing = asyncio.get_running_loop().call_soon(self._sync)

    def _sync(self) -> None:
        self._syncing = None
        if self._writes and self._partition.leads:
            self._partition.next_attempt()

    def _look(self) -> None:
        """The high watermark may have moved."""
        visible = self._partition.visible_offset
        changed: dict[Queue, None] = {}
        while self._writes and self._writes[0][0] <= visible:
            _, queue = self._writes.popleft()
            self._firsts[queue].popleft()
            changed[queue] = None
        for queue in changed:
            firsts = self._firsts[queue]
            if not firsts:
                del self._firsts[queue]
            if queue.ledger is not None:
                queue.ledger.hide_from(firsts[0] if firsts else None)
                self._shown(queue)

    def close(self) -> None:
        self._partition.watchers.discard(self._look)
        self._writes.clear()
        self._firsts.clear()
        if self._syncing is not None:
            self._syncing.cancel()
