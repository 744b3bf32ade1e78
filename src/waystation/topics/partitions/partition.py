"""One partition of a topic: the only handle of its log, and the readers that wait for it to grow.

Whoever writes, reads or waits does it here, so that what is visible and what is durable mean more than this broker's
own disk where several brokers have the partition (`replicated_partition.py`), without anybody else knowing. The log
itself is for those who open, tend, copy and close it (`log_of`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from waystation.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
    WaystationError,
)
from waystation.log.aborted import AbortedTransactions
from waystation.log.batches.batch import Header
from waystation.log.cleaning import retention
from waystation.log.commit import GroupCommit
from waystation.log.epochs import Epochs
from waystation.log.log import Appended, Log
from waystation.log.producers import Producers
from waystation.topics.partitions.unfinished_batches import UnfinishedBatches

if TYPE_CHECKING:
    from waystation.topics.topics import Topic

Watcher = Callable[[], None]
Append = Callable[[bytearray | memoryview, Header], Appended]


class Partition:
    """Protocols append and read through it; nobody polls, since every append tells the watchers."""

    __slots__ = (
        "__weakref__",
        "_broken_promises",
        "_commit",
        "_log",
        "aborted_in",
        "append",
        "batches_from",
        "check_usable",
        "find_max_timestamp",
        "find_time",
        "index",
        "read",
        "read_within",
        "step_back",
        "tail_offset",
        "topic",
        "unfinished",
        "watchers",
        "whole_of_read",
    )  # fmt: skip

    replicated = False
    """Whether other brokers have it, too: what is written is not to be seen before they do."""

    def __init__(self, topic: Topic, index: int, log: Log, unfinished: UnfinishedBatches, commit: GroupCommit) -> None:
        self.topic = topic
        self.index = index
        self._commit = commit
        self._broken_promises = 0
        self.unfinished = unfinished
        self.watchers: set[Watcher] = set()
        self.append: Append = self._refuse
        self._bind(log)

    def _bind(self, log: Log) -> None:
        """What hot paths call is the log's own: one call less for each batch."""
        self._log = log
        self.read = log.read
        self.read_within = log.read_within
        self.whole_of_read = log.whole_of_read
        self.aborted_in = log.aborted_in
        self.batches_from: Callable[[int], Iterator[tuple[bytes, Header]]] = log.batches_from
        self.find_time = log.find_time
        self.find_max_timestamp = log.find_max_timestamp
        self.tail_offset = log.tail_offset
        self.step_back = log.step_back
        self.check_usable = log.check_usable
        log.on_readable = self.wake

    @property
    def here(self) -> bool:
        """Whether this broker has a replica."""
        return True

    # -- who leads --------------------------------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """This broker takes what is published to the partition, and writes this epoch into it. Blocks if it is new."""
        if epoch != self._log.epoch:
            self._log.lead(epoch)
        self.append = self._log.append

    def follow(self, epoch: int, leader: int = -1) -> None:
        """Another broker leads the partition: nothing is appended here but what that one has."""
        self._log.epoch = epoch
        self.append = self._refuse

    @property
    def leads(self) -> bool:
        return self.append != self._refuse

    def check_leads(self) -> None:
        """Raises NotLeader where another broker leads."""
        if self.append == self._refuse:
            raise self._not_leader()

    def _not_leader(self) -> NotLeader:
        return NotLeader(f"this broker does not lead {self.topic.name}-{self.index}; refresh metadata and ask who does")

    def _refuse(self, batch: bytearray | memoryview, header: Header) -> Appended:
        raise self._not_leader()

    # -- offsets ----------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """Of the first record that there is."""
        return self._log.start_offset

    @property
    def end_offset(self) -> int:
        """What the next record gets."""
        return self._log.end_offset

    @property
    def visible_offset(self) -> int:
        """Readers see records before this offset."""
        return self._log.written_offset

    @property
    def all_visible(self) -> bool:
        """Whether readers see all that any leader has ever shown them."""
        return True

    def check_end_known(self) -> None:
        """Raises OffsetNotAvailable where the end may be before what readers have seen (KIP-207)."""
        if not self.all_visible:
            raise OffsetNotAvailable(
                f"{self.topic.name}-{self.index} has a new leader, which does not know yet where it ends for readers;"
                " ask again in a moment"
            )

    @property
    def written_offset(self) -> int:
        """Where the log ends for who may read all of it: whoever has its state in it. Readers wait between
        `visible_offset` and here, and are out of range behind it."""
        return self._log.written_offset

    @property
    def stable_offset(self) -> int:
        """read_committed readers see records before this offset: no transaction before it is open."""
        return self._log.stable_offset

    @property
    def durable_offset(self) -> int:
        """Records before this offset may be acknowledged."""
        return self._log.durable_offset

    # -- waiting ----------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether what is appended is acknowledged only when it is durable."""
        return self._commit.waits_for(self._log)

    async def until_durable(self, offset: int) -> None:
        """Returns when everything before `offset` is durable; raises StorageFailed if it is not to be, or not soon."""
        broken = self._broken_promises
        await self._commit.durable(self._log, offset)
        if self._broken_promises != broken:
            raise NotLeader(f"{self.topic.name}-{self.index}: what was to be written was not; ask its leader")

    def next_attempt(self) -> asyncio.Future[None]:
        """Is done when what was appended until now has become durable, has failed, or was put off."""
        return self._commit.join(self._log)

    def check_in_sync(self) -> None:
        """Raises NotEnoughReplicas where durability cannot be promised as the topic asks for it: a broker alone has the
        only replica."""
        wanted = self.topic.settings.min_insync_replicas
        if wanted > 1:
            raise NotEnoughReplicas(
                f"topic {self.topic.name!r} wants {wanted} replicas in sync (min.insync.replicas); there is 1"
            )

    @property
    def truncations(self) -> int:
        """How often its end was cut off: what was appended before may not be there, though offsets say it is."""
        return self._log.truncations + self._broken_promises

    @property
    def truncating(self) -> bool:
        """Its end is being cut off, or the disk has interrupted that: nothing is appended meanwhile."""
        return self._log.truncation is not None

    def break_promises(self) -> None:
        """Receipts were given out for what was about to be appended, and will not be: others' records will have those
        offsets. Whoever waits is told as if the log had been truncated."""
        self._broken_promises += 1

    @property
    def unwritten(self) -> list[tuple[bytearray | memoryview, Header]]:
        """Batches from the visible offset on, which are in memory still: the end of a coordinator's log."""
        return self._log.pending

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> str:
        return self._log.folder

    @property
    def epoch(self) -> int:
        """The leader epoch."""
        return self._log.epoch

    @property
    def epochs(self) -> Epochs:
        return self._log.epochs

    @property
    def producers(self) -> Producers:
        return self._log.producers

    @property
    def aborted(self) -> AbortedTransactions:
        return self._log.aborted

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def appended_bytes(self) -> int:
        """Since the start: lets a waiting reader see growth without reading."""
        return self._log.appended_bytes

    @property
    def segment_bases(self) -> list[int]:
        """The first offsets of the segments, the oldest first: up to where records can be deleted at once."""
        return [segment.base_offset for segment in self._log.segments]

    @property
    def failure(self) -> WaystationError | None:
        """Why it takes nothing until the broker is restarted."""
        return self._log.failure

    @property
    def stalled(self) -> WaystationError | None:
        """Why what was appended waits."""
        return self._log.stalled

    def check_epoch(self, epoch: int) -> None:
        """Refuses a client that knows another leader epoch than the present one; -1: it does not say."""
        present = self._log.epoch
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

    # -- its start --------------------------------------------------------------------------------------------------

    async def remove_before(self, offset: int) -> None:
        """Moves the start, durably, and removes the segments that are wholly below it."""
        await retention.remove_before(self._log, offset)

    async def remove_all_before(self, offset: int) -> None:
        """As `remove_before`, and what is in the last segment goes too, if all of it is before the offset."""
        if offset >= self.end_offset:
            self.begin_segment()
        await self.remove_before(offset)

    def begin_segment(self) -> bool:
        """What is appended from now on is in a segment without anything older. False: not now, as on a full disk, or
        while an append is not durable."""
        return self.end_offset == self._log.active.base_offset or retention.begin_segment(self._log)

    async def delete_records(self, before_offset: int) -> int:
        """Moves the start, durably; -1 means everything. Returns the new start."""
        visible = self.visible_offset
        offset = visible if before_offset == -1 else before_offset
        if offset < 0 or offset > visible:
            raise OffsetOutOfRange(
                f"{self.topic.name}-{self.index}: cannot delete records before {offset}, the log ends at {visible}"
            )
        # Retention may have moved the start already and still be writing it down: what is answered must be durable.
        if offset > self.start_offset or self._log.moving_start.locked():
            await self.remove_before(max(offset, self.start_offset))
        return self.start_offset


class Receipt(NamedTuple):
    """Where a change was written: it is durable when the partition is durable up to there (`durability.py`)."""

    partition: Partition
    offset: int


def log_of(partition: Partition) -> Log:
    """For those who open, tend and close logs."""
    return partition._log
