"""One partition that this node leads: its log, what its followers have promised, and how far that is acknowledged.

The decisions are `LeaderState`'s. Here the log tells it what was written and synced, and the partition is told of the
high watermark, which wakes readers and those who wait. Made for each epoch, so that no promise outlives it. On the
loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from waystation.cluster.decisions.promises import LeaderState, floor
from waystation.cluster.decisions.replica_fetch import EpochHistory
from waystation.cluster.decisions.state import PartitionState
from waystation.cluster.decisions.writes import StoreEntry, Write
from waystation.cluster.links.peer import Key
from waystation.errors import CorruptBatch, NotEnoughReplicas, StorageFailed
from waystation.log.batches import batch as batches
from waystation.log.log import Log
from waystation.topics.partitions.partition import Partition, log_of
from waystation.topics.partitions.replicated_partition import ReplicatedPartition


class Listener(Protocol):
    """A follower's session: it is told that there is more of a partition."""

    def grown(self, key: Key) -> None: ...

    def advanced(self, key: Key) -> None: ...


def history(log: Log | Partition, start: int | None = None) -> EpochHistory:
    """`start`: where it begins for who copies it, if that is before its start."""
    return EpochHistory(log.start_offset if start is None else start, log.end_offset, log.epochs.entries)


def copied_from(log: Log) -> int:
    """Where a replica begins that lacks what is before the log's start. Batches are copied whole, and the start may be
    inside one: then that one is the first."""
    try:
        first = log.read(log.start_offset, 1)
    except (CorruptBatch, StorageFailed):  # who reads it to copy it says so
        first = b""
    return min(batches.read_header(first).base_offset, log.start_offset) if first else log.start_offset


class Led:
    def __init__(
        self,
        key: Key,
        partition: ReplicatedPartition,
        view: StoreEntry[PartitionState],
        node_id: int,
        min_in_sync: int,
        now: float,
    ) -> None:
        """The partition leads already."""
        log = log_of(partition)
        self.key = key
        self.partition = partition
        self.state = LeaderState(
            node_id=node_id,
            view=view,
            min_in_sync=min_in_sync,
            start=partition.led_from,
            high_watermark=partition.visible_offset,
            since=now,
            end=log.end_offset,
            durable=log.durable_offset,
        )
        self.listeners: dict[Listener, None] = {}  # as a set, but in an order that repeats
        self.keeping_up = len(view.state.in_sync)  # members of the set that do, when somebody looked last
        self.proposal: Write | None = None  # a change of the in-sync set whose outcome is not known
        self.on_settled: Callable[[], None] | None = None
        """Told once: what an earlier leader acknowledged is below the high watermark."""
        partition.on_append = self._appended
        partition.on_durable = self.written
        partition.on_promise = self._check_in_sync
        self.written()

    def close(self) -> None:
        """Deposed, or the broker stops."""
        self.partition.on_append = None
        self.partition.on_durable = None
        self.on_settled = None

    def _check_in_sync(self) -> None:
        state = self.state.view.state
        wanted = floor(state, self.state.min_in_sync)
        if self.keeping_up < wanted:
            raise NotEnoughReplicas(
                f"{self.partition.topic.name}-{self.partition.index} wants {wanted} replicas in sync"
                f" (min.insync.replicas); of its {len(state.replicas)}, {self.keeping_up} keep up"
            )

    def _appended(self) -> None:
        for listener in self.listeners:
            listener.grown(self.key)

    def written(self) -> None:
        log = log_of(self.partition)
        self.state.wrote(log.end_offset, log.durable_offset)
        self.advance()

    def advance(self) -> None:
        """The high watermark is the partition's, and told to followers some time."""
        if self.state.high_watermark > self.partition.visible_offset:
            self.partition.advance(self.state.high_watermark)
            for listener in self.listeners:
                listener.advanced(self.key)
        if self.on_settled is not None and self.state.settled:
            told, self.on_settled = self.on_settled, None
            told()
