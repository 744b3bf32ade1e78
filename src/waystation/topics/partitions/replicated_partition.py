"""A partition that several brokers have: one of them leads it, and the others copy its log.

What readers see and what is acknowledged ends at the high watermark: every replica that counts has what is before it,
on its disk. It never goes back here. A leader is told of it by its followers' fetches, a follower by its leader's
answers (`cluster/replication`); both call `advance`. The log's start is never above it: what is above may be truncated,
and a follower that is behind the start empties its log.

Who waits for a receipt waits for the high watermark, whatever the broker's flush setting is. When the partition is led
by another broker, all of them are told NotLeader: what was appended may be truncated.

On the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

from waystation.errors import FencedLeaderEpoch, NotLeader, StorageFailed, UnknownLeaderEpoch
from waystation.log.batches.batch import Header
from waystation.log.cleaning import truncation
from waystation.log.commit import GroupCommit
from waystation.log.log import Appended, Log
from waystation.topics.partitions.durability import SOON_S
from waystation.topics.partitions.no_log import NoLog
from waystation.topics.partitions.partition import Partition
from waystation.topics.partitions.unfinished_batches import UnfinishedBatches

if TYPE_CHECKING:
    from waystation.topics.topics import Topic

NOBODY = -1


class ReplicatedPartition(Partition):
    """Made by `Topics` in a cluster; `cluster/leadership.py` says who leads."""

    __slots__ = (
        "_epoch",
        "_high_watermark",
        "_led_from",
        "_progress",
        "_syncing",
        "leader",
        "on_append",
        "on_durable",
        "on_promise",
        "taken_back",
    )

    replicated = True

    def __init__(
        self,
        topic: Topic,
        index: int,
        log: Log,
        unfinished: UnfinishedBatches,
        commit: GroupCommit,
        high_watermark: int = 0,
    ) -> None:
        self._progress: asyncio.Future[None] | None = None
        self._syncing: asyncio.Handle | None = None
        self._epoch = -1  # none yet: no node was told to lead
        self._led_from = 0
        self.leader = NOBODY
        self.taken_back = 0
        """How often something that had been committed was not there any more: who has applied it begins again."""
        self.on_promise: Callable[[], None] | None = None
        """While it leads: raises NotEnoughReplicas where too few replicas in sync keep up."""
        self.on_append: Callable[[], None] | None = None
        """There is more to be fetched."""
        self.on_durable: Callable[[], None] | None = None
        """More of it is on this broker's disk."""
        super().__init__(topic, index, log, unfinished, commit)
        self._high_watermark = min(max(high_watermark, log.start_offset), log.end_offset)
        log.trim(self._high_watermark)

    def _bind(self, log: Log) -> None:
        super()._bind(log)
        log.on_readable = self._appended
        log.on_durable = self._synced

    def use(self, log: Log) -> None:
        """Another log takes the place of the one there was: a replica comes here, or moves away."""
        self._bind(log)
        self._high_watermark = log.start_offset
        self.taken_back += 1
        self._fail_waiting()

    @property
    def here(self) -> bool:
        """Whether this broker has a replica."""
        return not isinstance(self._log, NoLog)

    # -- who leads --------------------------------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """This broker takes what is published, and writes this epoch into it. FencedLeaderEpoch: its log has a later
        one, which the cluster's store has forgotten."""
        self._log.begin_epoch(epoch)
        self._epoch = epoch
        self._led_from = self._log.end_offset
        self.append = self._append_in_memory if self._log.tier else self._log.append
        self._sync()  # what it had appended when it led before: whoever appended may wait for nothing

    def follow(self, epoch: int, leader: int = NOBODY) -> None:
        """Another broker leads, or nobody does. Whoever waits for what was appended here is told."""
        led = self.leads
        self.append = self._refuse
        self._epoch = epoch
        self._log.epochs.cut(self._log.end_offset)  # one that began without a record never was
        self.leader = leader
        self.on_promise = None
        if led:
            self._fail_waiting()
        self.wake()

    def _fail_waiting(self) -> None:
        self.break_promises()
        self.tell_waiting()

    @property
    def epoch(self) -> int:
        return max(0, self._epoch)

    @property
    def led_from(self) -> int:
        """Where its log ended when this broker began to lead it."""
        return self._led_from

    def check_epoch(self, epoch: int) -> None:
        present = self._epoch
        if epoch < 0 or epoch == present:
            return
        if epoch < present:
            raise FencedLeaderEpoch(f"leader epoch {epoch} is over, it is now {present}; refresh metadata")
        raise UnknownLeaderEpoch(f"leader epoch {epoch} has not begun, it is now {present}")

    # -- offsets ----------------------------------------------------------------------------------------------------

    @property
    def visible_offset(self) -> int:
        return self._high_watermark

    @property
    def durable_offset(self) -> int:
        return self._high_watermark

    @property
    def stable_offset(self) -> int:
        return min(self._log.stable_offset, self._high_watermark)

    @property
    def all_visible(self) -> bool:
        """Whether readers see all that any leader has ever shown: a new one knows that only when the replicas in sync
        have what was there when it began to lead."""
        return not self.leads or self._high_watermark >= self._led_from

    def advance(self, high_watermark: int) -> None:
        """The high watermark is here, or further already. Readers, and who waits for it, are told."""
        reached = min(high_watermark, self._log.end_offset)
        if reached > self._high_watermark:
            self._high_watermark = reached
            self._log.trim(reached)
            self.tell_waiting()
            self.wake()

    def begin_again(self, offset: int) -> None:
        """The leader's log begins here, behind all that this one had; it was emptied."""
        self._high_watermark = offset
        self.taken_back += 1

    def truncated(self) -> None:
        """The log has lost its end. What was acknowledged is in it, unless an unclean election took that away."""
        if self._log.end_offset < self._high_watermark:
            self._high_watermark = self._log.end_offset
            self.taken_back += 1

    @property
    def truncation_interrupted(self) -> bool:
        """Whether the disk has refused to finish a truncation: until it is finished, the log takes nothing."""
        return self._log.truncation is not None and self._log.truncation.interrupted

    async def finish_truncation(self) -> None:
        """Raises StorageFailed where the disk refuses again."""
        await truncation.truncate(self._log, self._log.end_offset, self._commit)
        self.truncated()

    @property
    def disk_refuses(self) -> StorageFailed | None:
        """Why this broker's disk takes nothing for it at the moment; it may have room later."""
        return self._log.refused or self._log.stalled

    # -- waiting ----------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        return True

    async def until_durable(self, offset: int) -> None:
        truncations = self.truncations
        while self._high_watermark < offset:
            self._log.check_usable()
            if not self.leads:
                raise self._not_leader()
            await asyncio.shield(self.next_attempt())
            if self.truncations != truncations:
                raise NotLeader(
                    f"{self.topic.name}-{self.index} has another leader: what was written may not be there; ask it"
                )
            if self._log.stalled is not None and self._high_watermark < offset:
                raise copy(self._log.stalled)

    def next_attempt(self) -> asyncio.Future[None]:
        """Is done when the high watermark has moved, will not, or the disk has put off what was appended."""
        if self._progress is None:
            self._progress = asyncio.get_running_loop().create_future()
        if self._log.durable_offset < self._log.end_offset:
            self._commit.join(self._log).add_done_callback(self._tried)
        return self._progress

    def _tried(self, _: asyncio.Future[None]) -> None:
        if self._log.failure is not None or self._log.stalled is not None:
            self.tell_waiting()

    def tell_waiting(self) -> None:
        """Whoever waits looks again."""
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.set_result(None)

    def check_in_sync(self) -> None:
        if self.on_promise is not None:  # else whoever appends is told that this broker does not lead
            self.on_promise()

    # -- what the log tells -----------------------------------------------------------------------------------------

    def _append_in_memory(self, batch: bytearray | memoryview, header: Header) -> Appended:
        """To a log of an upper tier, which a commit round writes. Whoever appends may wait for none, as a coordinator
        does that notes the end of a transaction: followers would lack the record for ever."""
        appended = self._log.append(batch, header)
        if self._syncing is None:
            self._syncing = asyncio.get_running_loop().call_later(SOON_S, self._sync)
        return appended

    def _appended(self) -> None:
        if self.on_append is not None:
            self.on_append()
        if self._syncing is None and self.leads:
            self._syncing = asyncio.get_running_loop().call_soon(self._sync)

    def _sync(self) -> None:
        """Whoever appended may wait for nothing, as with `acks=1`, but readers wait: what is not on this broker's disk
        is not below the high watermark."""
        self._syncing = None
        if self.leads and self._log.durable_offset < self._log.end_offset and self._log.failure is None:
            self._commit.join(self._log)

    def _synced(self) -> None:
        if self.on_durable is not None:
            self.on_durable()

    def _not_leader(self) -> NotLeader:
        where = "" if self.leader == NOBODY else f" (node {self.leader}, as far as it knows)"
        return NotLeader(
            f"this broker does not lead partition {self.index} of topic {self.topic.name!r}: connect to the node that"
            f" does{where}; `waystation cluster status` shows where it listens"
        )
