"""Stored record batches out of partitions, as they are, for clients that decode them themselves.

The counterpart of `batch_publishing`: whole batches, byte for byte. A read answers at once and is bounded in bytes;
waiting for more is a call of its own that carries no data, so that however many wait, they hold nothing. Nothing polls.

What must hold: nothing above the visible end is given (the stable offset for committed readers); what aborted
transactions wrote is named beside the batches, and whoever decodes them leaves it out.

On the loop's thread; called by the native and the HTTP protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from waystation.errors import CorruptBatch, TooLarge
from waystation.protocol import MAX_FRAME_BYTES, PartitionBatches
from waystation.topics.partitions.partition import Partition

PARTITION_BYTES = 1024 * 1024
"""Of one partition in one answer, so that a busy one leaves room for the others; a single batch may be larger."""

LARGEST_BATCH_BYTES = MAX_FRAME_BYTES - 1024 * 1024
"""A batch that is larger does not fit into a frame, with what is said around it."""

MAX_WAIT_MS = 300_000
"""Nobody waits longer than this, whatever they ask for."""

Position = tuple[Partition, int]
"""A partition, and the offset to read from."""


def end_of(partition: Partition, *, committed: bool) -> int:
    """Where such a reader comes to the end, for now."""
    return partition.stable_offset if committed else partition.visible_offset


def read_batches(positions: Sequence[Position], max_bytes: int, *, committed: bool) -> list[PartitionBatches]:
    """One answer for each position. All of them together have `max_bytes` at most, or one batch.

    A position outside of its log (retention removed what is there, or the topic was re-created) gets no batches, and
    reads on where the log begins. Only who leads the partition says so; NotLeader elsewhere, where the log may lack
    what its leader has.
    """
    answers: list[PartitionBatches] = []
    size = 0
    for partition, offset in positions:
        end = end_of(partition, committed=committed)
        if offset == end:
            partition.check_usable()  # nothing more will come
        outside = not partition.start_offset <= offset <= partition.written_offset
        if outside:
            partition.check_leads()
        following = partition.start_offset if outside else offset
        answer = PartitionBatches(partition.topic.name, partition.index, partition.start_offset, end, following)
        if partition.start_offset <= offset < end and (size < max_bytes or not size):
            _read_into(answer, partition, offset, max_bytes - size, first=not size, committed=committed)
            size += len(answer.batches)
        answers.append(answer)
    return answers


def _read_into(
    answer: PartitionBatches, partition: Partition, offset: int, room: int, *, first: bool, committed: bool
) -> None:
    largest = LARGEST_BATCH_BYTES if first else room  # one batch is always given, however little there is room for
    try:
        data = partition.read_within(offset, min(room, PARTITION_BYTES), answer.end_offset, largest)
    except CorruptBatch:
        if not first:
            return  # its reader meets it when it is next
        raise CorruptBatch(
            f"topic {partition.topic.name!r} partition {partition.index}: the checksum of a batch at offset {offset} is"
            " wrong; the broker's log names file and position, and `waystation log skip-corrupt` lets readers pass it"
        ) from None
    if data is None:
        if first:
            raise TooLarge(
                f"the batch of {partition.topic.name}-{partition.index} at offset {offset} is larger than a frame of"
                " this protocol; read it with a Kafka client"
            )
        return
    if not data:
        return
    whole, following = partition.whole_of_read(data)
    answer.batches = data if whole == len(data) else data[:whole]
    answer.next_offset = following
    if committed:
        answer.aborted.extend(partition.aborted_in(offset, answer.batches))


async def grown(positions: Sequence[Position], wait_ms: int, *, committed: bool = True) -> bool:
    """Whether there is something to read at one of these, or one of them is deleted; waits up to `wait_ms` for it."""
    news = asyncio.Event()
    for partition, _ in positions:
        partition.watchers.add(news.set)
    try:
        async with asyncio.timeout(min(wait_ms, MAX_WAIT_MS) / 1000):
            while not _something(positions, committed=committed):
                await news.wait()
                news.clear()
        return True
    except TimeoutError:
        return False
    finally:
        for partition, _ in positions:
            partition.watchers.discard(news.set)


def _something(positions: Sequence[Position], *, committed: bool) -> bool:
    for partition, offset in positions:
        if partition.failure is not None or offset > partition.written_offset:
            return True
        if offset < end_of(partition, committed=committed):
            return True
    return False
