"""One partition of a topic: its log, and the readers that wait for it to grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from waystation.errors import FencedLeaderEpoch, OffsetOutOfRange, UnknownLeaderEpoch
from waystation.log import retention
from waystation.log.batch import Header
from waystation.log.log import Appended, Log
from waystation.topics.unfinished_batches import UnfinishedBatches

if TYPE_CHECKING:
    from waystation.topics.topics import Topic

Watcher = Callable[[], None]


class Partition:
    """Doors append and read through it; nobody polls, since every append tells the watchers."""

    __slots__ = ("index", "log", "topic", "unfinished", "watchers")

    def __init__(self, topic: Topic, index: int, log: Log, unfinished: UnfinishedBatches) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.unfinished = unfinished
        self.watchers: set[Watcher] = set()
        log.on_readable = self.wake

    def append(self, batch: bytearray | memoryview, header: Header) -> Appended:
        return self.log.append(batch, header)

    def check_epoch(self, epoch: int) -> None:
        """Refuses a client that knows another leader epoch than the present one; -1: it does not say."""
        present = self.log.epoch
        if epoch < 0 or epoch == present:
            return
        if epoch < present:
            raise FencedLeaderEpoch(f"leader epoch {epoch} is over, it is now {present}; refresh metadata")
        raise UnknownLeaderEpoch(f"leader epoch {epoch} has not begun, it is now {present}")

    def wake(self) -> None:
        """Something changed that a waiting reader may want to know: new records, or the end of the partition."""
        if self.watchers:
            for watcher in tuple(self.watchers):
                watcher()

    async def delete_records(self, before_offset: int) -> int:
        """Moves the log's start, durably; -1 means everything. Returns the new start."""
        log = self.log
        offset = log.high_watermark if before_offset == -1 else before_offset
        if offset < 0 or offset > log.high_watermark:
            raise OffsetOutOfRange(
                f"{self.topic.name}-{self.index}: cannot delete records before {offset},"
                f" the log ends at {log.high_watermark}"
            )
        # Retention may have moved the start already and still be writing it down: what is answered must be durable.
        if offset > log.start_offset or log.moving_start.locked():
            await retention.remove_before(log, max(offset, log.start_offset))
        return log.start_offset
