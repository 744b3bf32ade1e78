"""A partition of an internal topic, as the coordinator that owns it sees it (`log.state.StateLog`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from waystation.broker.partition import Partition
from waystation.log import batch as batches
from waystation.log.commit import GroupCommit
from waystation.log.state import StateBatch
from waystation.world.clock import Clock


class PartitionStateLog:
    """Appends go to the partition's log and its tier of the group commit."""

    def __init__(self, partition: Partition, commit: GroupCommit, clock: Clock) -> None:
        self._partition = partition
        self._commit = commit
        self._clock = clock

    @property
    def partition(self) -> int:
        return self._partition.index

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
        self._partition.append(batch, batches.read_header(batch))

    async def committed(self) -> None:
        log = self._partition.log
        if self._commit.waits:
            await self._commit.durable(log, log.end_offset)

    def replay(self) -> Iterator[StateBatch]:
        for data, header in self._partition.log.batches_from(0):
            if header.control:
                commits = batches.marker_commits(data, header)
                if commits is not None:
                    outcome: Literal["commit", "abort"] = "commit" if commits else "abort"
                    yield StateBatch(
                        header.base_offset,
                        header.producer_id,
                        header.producer_epoch,
                        True,
                        outcome,
                        (),
                    )
                continue
            records = tuple((record.key or b"", record.value) for record in batches.records_of(data, header))
            yield StateBatch(
                header.base_offset, header.producer_id, header.producer_epoch, header.transactional, None, records
            )
