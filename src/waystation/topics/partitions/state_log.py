"""A partition of an internal topic, as the coordinator that owns it sees it (`log.state.StateLog`).

Another broker that leads the partition is the coordinator by now: whoever asks is told so (NotCoordinator), and never
that something is wrong with the topic that it commits or writes to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from waystation.errors import CorruptBatch, NotLeader
from waystation.groups.machines.errors import NotCoordinator
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header
from waystation.log.commit import GroupCommit
from waystation.log.state import StateBatch
from waystation.observe.events import event_logger
from waystation.topics.partitions.partition import Partition
from waystation.world.clock import Clock

logger = event_logger("waystation.state")


class PartitionStateLog:
    """Appends go to the partition's log and its tier of the group commit."""

    def __init__(self, partition: Partition, commit: GroupCommit, clock: Clock) -> None:
        self._partition = partition
        self._commit = commit
        self._clock = clock

    @property
    def partition(self) -> int:
        return self._partition.index

    @property
    def epoch(self) -> int:
        return self._partition.epoch

    @property
    def end_offset(self) -> int:
        return self._partition.end_offset

    @property
    def replicated_offset(self) -> int:
        partition = self._partition
        return partition.visible_offset if partition.replicated else partition.end_offset

    def append(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
    ) -> None:
        batch = batches.build(
            ((key, value, ()) for key, value in records),
            self._clock.now_ms(),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            attributes=batches.TRANSACTIONAL if transactional else 0,
        )
        try:
            self._partition.append(batch, batches.read_header(batch))
        except NotLeader as error:
            raise self._not_coordinator() from error

    async def committed(self) -> None:
        """In every flush mode: what it says must not outlive what it speaks of (`GroupCommit.waits_for`)."""
        partition = self._partition
        try:
            await partition.until_durable(partition.end_offset)
        except NotLeader as error:
            raise self._not_coordinator() from error

    def _not_coordinator(self) -> NotCoordinator:
        name = f"{self._partition.topic.name}-{self._partition.index}"
        return NotCoordinator(
            f"this broker does not lead {name} any more, so it coordinates nothing of it; ask who does"
        )

    def replay(self) -> Iterator[StateBatch]:
        """Also what was appended and is not written yet: leadership may have come back before the next commit. A
        damaged batch is passed over, with a word in the log: a broker that does not start helps nobody."""
        partition = self._partition
        offset = partition.start_offset
        told = ""
        while offset < partition.written_offset:
            try:
                for data, header in partition.batches_from(offset):
                    offset = header.last_offset + 1
                    batch = _state_batch(data, header)
                    if batch is not None:
                        yield batch
                break
            except CorruptBatch as error:
                if str(error) != told:
                    told = str(error)
                    logger.error(
                        "state.batch_damaged",
                        "what a damaged batch said is not known, continuing after it: {error}",
                        error=error,
                    )
                offset += 1
        for unwritten, header in partition.unwritten:
            batch = _state_batch(bytes(unwritten), header)
            if batch is not None:
                yield batch


def _state_batch(data: bytes, header: Header) -> StateBatch | None:
    """A stored batch as a coordinator sees it; None for control records that mean nothing to it."""
    outcome: Literal["commit", "abort"] | None = None
    records: tuple[tuple[bytes, bytes | None], ...] = ()
    if header.control:
        commits = batches.marker_commits(data, header)
        if commits is None:
            return None
        outcome = "commit" if commits else "abort"
    else:
        records = tuple((record.key or b"", record.value) for record in batches.records_of(data, header))
    return StateBatch(
        header.base_offset,
        header.last_offset + 1,
        header.producer_id,
        header.producer_epoch,
        header.transactional,
        outcome,
        records,
    )
