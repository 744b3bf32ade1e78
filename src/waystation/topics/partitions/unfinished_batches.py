"""Batches that readers stand in the middle of: large ones are decoded in pieces, and the next piece should not cost the
first one again.

What must hold: no more than `UNFINISHED_BYTES` of opened batches are kept, however many readers and partitions there
are (one batch always is, whatever its size). What is kept is known by its checksum, so that it is never taken for
another. For `reading`, on the loop's thread.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from waystation.topics.records.record_reading import Stop

UNFINISHED_BYTES = 32 * 1024 * 1024


class UnfinishedBatch(NamedTuple):
    """The records of a batch, uncompressed, and how far they were read."""

    base_offset: int
    crc: int
    body: bytes
    stop: Stop


class UnfinishedBatches:
    """The one of each partition that was read last. One per broker."""

    def __init__(self, most_bytes: int = UNFINISHED_BYTES) -> None:
        self._most = most_bytes
        self._batches: dict[tuple[UUID, int], UnfinishedBatch] = {}
        self.size = 0

    def of(self, topic: UUID, partition: int) -> UnfinishedBatch | None:
        return self._batches.get((topic, partition))

    def keep(self, topic: UUID, partition: int, batch: UnfinishedBatch | None) -> None:
        """What is known of the partition from now on; what was kept longest goes if that is too much."""
        before = self._batches.pop((topic, partition), None)
        if before is not None:
            self.size -= len(before.body)
        if batch is None:
            return
        self._batches[topic, partition] = batch
        self.size += len(batch.body)
        while self.size > self._most and len(self._batches) > 1:
            self.size -= len(self._batches.pop(next(iter(self._batches))).body)
