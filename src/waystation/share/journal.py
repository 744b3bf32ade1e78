"""Where share groups are written down: `__share_group_state`, of each thing the newest state.

Whoever changes something says so (`note`) and is given a receipt; what was noted in one turn of the loop is written
together at its end, each thing once, as it is then. Many small acknowledgements so cost one record. The receipt holds
nevertheless, because nothing else is ever appended to these logs: the n-th thing that waits gets the n-th offset from
the present end.

What is noted reaches the disk within `KEEP_S`, whether somebody waits for its receipt or not: there are protocols whose
acknowledgements have no answer. What nobody will ever wait for (`note_soon`: how often records were handed out) is
written with the next thing, or a moment later.

Of each partition there is something here only while this broker leads it (`lead`, `drop`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from waystation.errors import StorageFailed, WaystationError
from waystation.groups.machines.errors import NotCoordinator
from waystation.groups.records import partition_for
from waystation.log.commit import GroupCommit
from waystation.observe.events import event_logger
from waystation.share.machines.records import ShareKey
from waystation.topics.partitions.partition import Partition, Receipt
from waystation.topics.partitions.state_log import PartitionStateLog
from waystation.world.clock import Clock

logger = event_logger("waystation.shared")

Encode = Callable[[], bytes | None]
"""The state as it is when it is written; None: it is deleted."""

SOON_S = 0.25
"""A crash forgets at most this much of how often records were handed out."""
KEEP_S = 0.02
"""Acknowledgements that nobody waits for are synced together, fifty times a second at most."""
RETRY_S = 1.0
MAX_RECORDS = 500
"""In one batch."""


class _Shard:
    """One partition of the topic, and what waits to be written to it."""

    __slots__ = ("log", "partition", "soon", "waiting")

    def __init__(self, partition: Partition, log: PartitionStateLog) -> None:
        self.partition = partition
        self.log = log
        self.waiting: dict[ShareKey, tuple[Encode, int]] = {}
        """With the end of the log that it is kept below."""
        self.soon: dict[ShareKey, Encode] = {}

    def put(self, key: ShareKey, encode: Encode) -> int:
        """Queues a thing, unless it waits already; returns the end of the log that it is kept below."""
        found = self.waiting.get(key)
        end = self.partition.end_offset + len(self.waiting) + 1 if found is None else found[1]
        self.waiting[key] = encode, end
        return end

    def take_soon(self) -> None:
        """What nobody waits for goes along, behind what somebody waits for."""
        for key, encode in self.soon.items():
            self.put(key, encode)
        self.soon.clear()


class SharedJournal:
    """One per broker. `partition_count`: of the topic, whoever leads them."""

    def __init__(self, partition_count: int, commit: GroupCommit, clock: Clock) -> None:
        self._count = partition_count
        self._shards: dict[int, _Shard] = {}  # those that this broker leads
        self._commit = commit
        self._clock = clock
        self._writing: asyncio.Handle | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._durability: asyncio.TimerHandle | None = None
        self._closed = False

    # -- who leads ---------------------------------------------------------------------------------------------------

    def index_of(self, group_id: str) -> int:
        """The partition that a group's state is in."""
        return partition_for(group_id, self._count)

    def leads(self, index: int) -> bool:
        return index in self._shards

    def check_led(self, group_id: str) -> None:
        self._shard_of(group_id)

    def lead(self, partition: Partition) -> Iterator[tuple[bytes, bytes | None]]:
        """Every record of the partition, oldest first; from now on it is written to."""
        shard = _Shard(partition, PartitionStateLog(partition, self._commit, self._clock))
        self._shards[partition.index] = shard
        for batch in shard.log.replay():
            yield from batch.records

    def drop(self, index: int) -> None:
        """Another broker leads the partition. What waits is written if the log still takes it; if not, who waits for
        it is told so."""
        shard = self._shards.pop(index)
        shard.take_soon()
        try:
            self._append(shard)
        except WaystationError as error:
            logger.warning(
                "shared.not_written",
                "the state of share groups cannot be written now: {error}",
                partition=index,
                error=error,
            )
            shard.partition.break_promises()
        if shard.partition.durable_offset < shard.partition.end_offset:
            self._commit.join()

    # -- changes -----------------------------------------------------------------------------------------------------

    def note(self, key: ShareKey, encode: Encode) -> Receipt:
        """The thing has changed; it is kept when the receipt is."""
        shard = self._shard_of(key.group_id)
        shard.soon.pop(key, None)
        end = shard.put(key, encode)
        self._write_later()
        if self._durability is None and not self._closed:
            self._durability = asyncio.get_running_loop().call_later(KEEP_S, self._keep)
        return Receipt(shard.partition, end)

    def note_soon(self, key: ShareKey, encode: Encode) -> None:
        """The thing has changed, but nobody waits for it."""
        shard = self._shard_of(key.group_id)
        if key in shard.waiting:
            return
        shard.soon[key] = encode
        if self._soon is None and not self._closed:
            self._soon = asyncio.get_running_loop().call_later(SOON_S, self._write_soon)

    def close(self) -> None:
        """Writes what is left; the broker's last commit round makes it durable."""
        for shard in self._shards.values():
            shard.take_soon()
        self._write()
        self._closed = True
        for timer in (self._writing, self._soon, self._durability):
            if timer is not None:
                timer.cancel()

    # -- parts -------------------------------------------------------------------------------------------------------

    def _shard_of(self, group_id: str) -> _Shard:
        shard = self._shards.get(self.index_of(group_id))
        if shard is None:
            raise NotCoordinator(f"this broker is not the coordinator of share group {group_id!r}; ask which one is")
        return shard

    def _write_later(self) -> None:
        if self._writing is None and not self._closed:
            self._writing = asyncio.get_running_loop().call_soon(self._write)

    def _keep(self) -> None:
        """Logs of this kind are written when they are synced, and synced when somebody asks for it."""
        self._durability = None
        partitions = [shard.partition for shard in self._shards.values()]
        if any(one.failure is None and one.durable_offset < one.end_offset for one in partitions):
            self._commit.join()

    def _write_soon(self) -> None:
        self._soon = None
        for shard in self._shards.values():
            shard.take_soon()
        self._write()
        self._commit.join()  # nobody waits for it, but it is to reach the disk

    def _write(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        for shard in self._shards.values():
            if shard.waiting:
                self._write_shard(shard)

    def _write_shard(self, shard: _Shard) -> None:
        shard.take_soon()
        try:
            self._append(shard)
        except StorageFailed as error:
            # It stays, in its order, so that the receipts still hold; whoever waits hears of the log's failure.
            logger.warning(
                "shared.log_failed",
                "the log of share groups takes no writes: {error}",
                partition=shard.partition.index,
                error=error,
            )
            if self._writing is None and not self._closed:
                self._writing = asyncio.get_running_loop().call_later(RETRY_S, self._write)

    @staticmethod
    def _append(shard: _Shard) -> None:
        while shard.waiting:
            taken = list(shard.waiting.items())[:MAX_RECORDS]
            shard.log.append([(key.encode(), encode()) for key, (encode, _) in taken])
            for key, _ in taken:
                del shard.waiting[key]
