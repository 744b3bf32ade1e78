"""The batches in a share group's window on a partition: which there are, and the records in them, stored or opened.

Batches are read from the topic's log when they are wanted; what was opened last is kept until the window has passed it
(`OpenedBatches`), for members that take a few records at a time. A batch that compaction has changed meanwhile gives
fewer records, which is what compaction means. So does one whose first records were deleted: it is stored whole, and
read from where the log begins now.

Used by `SharedPartition` alone. On the loop's thread only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from waystation.errors import InvalidRecord, NotLeader, TooLarge
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import HEADER_SIZE, Header, Record
from waystation.log.batches.compression import decompress, opened_limit
from waystation.message import Delivered, Run
from waystation.observe.events import event_logger
from waystation.queues.ledger.ledger import Grant
from waystation.topics.partitions.partition import Partition
from waystation.topics.records.record_reading import delivered_of, some_of

MOST_KEPT = 10_000
"""A batch with more records than this is not opened as a whole: only what is wanted of it, each time."""

logger = event_logger("waystation.shared")

BATCH_BYTES = 250
MESSAGE_BYTES = 380
"""What an opened batch, and each message in it, takes beside what was stored: measured (test_shared_cache.py)."""
OPENED = 4
"""Keys and headers are objects of their own in memory: so many times what they are in the log."""


class Batch(NamedTuple):
    """A stored batch in the window."""

    base: int
    last: int
    size: int


class DecodedRecords(NamedTuple):
    """Records as messages, in order."""

    found: list[Delivered]
    missing: list[Run]  # offsets that have no record: it was compacted away
    broken: list[tuple[int, int, str]]  # (first, how many, why): what a producer sent, intact, but no records


class SharedWindow:
    """See the module."""

    def __init__(self, partition: Partition, cache: OpenedBatches) -> None:
        self._partition = partition
        self._cache = cache
        self._batches: list[Batch] = []
        self._bases: list[int] = []

    # -- which there are ---------------------------------------------------------------------------------------------

    def add(self, header: Header) -> None:
        """The window has come to this batch, or further into it."""
        self.add_batch(Batch(header.base_offset, header.last_offset, header.size))

    def add_batch(self, batch: Batch) -> None:
        """As another node knows it, which has no bytes of it."""
        if not self._bases or self._bases[-1] < batch.base:
            self._batches.append(batch)
            self._bases.append(batch.base)

    def prune(self, start: int) -> None:
        """Forgets the batches below the window."""
        if self._batches and self._batches[0].last < start:
            keep = next((i for i, one in enumerate(self._batches) if one.last >= start), len(self._batches))
            self._cache.forget(self._partition, self._bases[:keep])
            del self._batches[:keep], self._bases[:keep]

    def clear(self) -> None:
        self._cache.forget(self._partition, self._bases)
        self._batches.clear()
        self._bases.clear()

    @property
    def largest(self) -> int:
        """The size of the largest batch, at least 1."""
        return max((one.size for one in self._batches), default=1)

    def of(self, grants: Sequence[Grant]) -> list[Batch]:
        """The batches that the records are in, in order, each once."""
        return [self._batches[index] for index in self._indexes(grants)]

    # -- what is in them ---------------------------------------------------------------------------------------------

    def stored(self, grants: Sequence[Grant]) -> list[bytes]:
        """The batches that the records are in, as they are stored."""
        parts: list[bytes] = []
        wanted = self.of(grants)
        i = 0
        while i < len(wanted):
            end, size = wanted[i].last + 1, wanted[i].size
            j = i + 1
            while j < len(wanted) and wanted[j].base == end:  # neighbours are read at once
                end, size = wanted[j].last + 1, size + wanted[j].size
                j += 1
            parts += self._read(wanted[i].base, end, size)
            i = j
        return parts

    def opened(self, grants: Sequence[Grant]) -> DecodedRecords:
        """The messages of the records. CorruptBatch, StorageFailed where the log cannot be read."""
        opened = DecodedRecords([], [], [])
        for grant in grants:
            at, end = grant.first, grant.first + grant.count
            for batch in self.of((grant,)):
                try:
                    messages = self._open(batch, at, end)
                except (InvalidRecord, TooLarge) as error:
                    first, at = max(at, batch.base), min(end, batch.last + 1)
                    opened.broken.append((first, at - first, str(error)))
                    continue
                for one in messages:
                    if at <= one.offset < end:
                        if one.offset > at:
                            opened.missing.append((at, one.offset - at))
                        opened.found.append(one if grant.deliveries == 1 else _again(one, grant.deliveries))
                        at = one.offset + 1
            if at < end:
                opened.missing.append((at, end - at))
        return opened

    def records(self, first: int, count: int) -> list[Record]:
        """Single records as they are stored; fewer where some are no longer there."""
        found: list[Record] = []
        partition = self._partition
        if not partition.leads and partition.visible_offset < first + count:
            raise NotLeader(
                f"this broker does not have all of {partition.topic.name}-{partition.index} that its leader has"
            )
        begin = max(first, partition.start_offset)
        for data, header in partition.batches_from(begin) if begin < first + count else ():
            if header.base_offset >= first + count:
                break
            if header.control:
                continue
            try:
                for one in batches.records_of(data, header):
                    if one.offset >= first + count:
                        break
                    if one.offset >= first:
                        found.append(one)
            except (InvalidRecord, TooLarge) as error:
                logger.error(
                    "shared.no_records",
                    "a batch of topic {topic} cannot be opened: {error}",
                    topic=self._partition.topic.name,
                    offset=header.base_offset,
                    error=error,
                )
        return found

    def _indexes(self, grants: Sequence[Grant]) -> list[int]:
        """The places of the batches that the records are in, in order, each once."""
        found: list[int] = []
        for grant in grants:
            i = max(0, bisect_right(self._bases, grant.first) - 1)
            while i < len(self._batches) and self._batches[i].base < grant.first + grant.count:
                if self._batches[i].last >= grant.first:
                    found.append(i)
                i += 1
        return sorted(set(found)) if len(grants) > 1 else found

    def _there(self, offset: int) -> int:
        """From where on a batch can be asked for: the log may begin in the middle of it by now."""
        return max(offset, self._partition.start_offset)

    def _read(self, first: int, end: int, size: int) -> list[bytes]:
        parts: list[bytes] = []
        first = self._there(first)
        while first < end:
            data = self._partition.read(first, size)
            used = 0
            for position, header in batches.scan(data):
                if header.base_offset >= end:
                    break
                used = position + header.size
                first = header.last_offset + 1
            if not used:
                break
            parts.append(data if used == len(data) else data[:used])
            size -= used
        return parts

    def _open(self, batch: Batch, first: int, end: int) -> list[Delivered]:
        """The batch's messages, or of a large one those before `end` from `first` on."""
        key = (self._partition, batch.base)
        messages = self._cache.get(key)
        if messages is None:
            topic = self._partition.topic
            data = self._partition.read(self._there(batch.base), batch.size)
            header = batches.read_header(data)
            records = memoryview(data)[HEADER_SIZE : header.size]
            body = decompress(header.codec, records, opened_limit(topic.settings.max_message_bytes))
            if header.record_count > MOST_KEPT:
                return some_of(body, header, topic.name, self._partition.index, first, end - first)[0]
            messages = delivered_of(body, header, topic.name, self._partition.index, 0)
            self._cache.put(key, messages, len(body))
        return messages


def _again(one: Delivered, deliveries: int) -> Delivered:
    return Delivered(one.tag, deliveries, one.taken_ms, one.message, one.source, one.partition, one.offset)


class OpenedBatches:
    """The batches that were opened last, for members that take a few records of them at a time.

    Bounded in the bytes that they take in memory. Groups share them: one that is behind the others opens a batch again.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._cost = 0
        self._batches: dict[tuple[Partition, int], tuple[list[Delivered], int]] = {}

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def cost(self) -> int:
        """What they take, in bytes."""
        return self._cost

    def get(self, key: tuple[Partition, int]) -> list[Delivered] | None:
        found = self._batches.pop(key, None)
        if found is None:
            return None
        self._batches[key] = found
        return found[0]

    def put(self, key: tuple[Partition, int], messages: list[Delivered], size: int) -> None:
        """`size`: of the records as they are stored, without compression."""
        payloads = sum(len(one.message.payload) for one in messages)
        cost = BATCH_BYTES + MESSAGE_BYTES * len(messages) + payloads + OPENED * (size - payloads)
        self._batches[key] = messages, cost
        self._cost += cost
        while self._cost > self._most and len(self._batches) > 1:
            _, gone = self._batches.pop(next(iter(self._batches)))
            self._cost -= gone

    def forget(self, partition: Partition, bases: Sequence[int]) -> None:
        """A group is through with these."""
        for base in bases:
            found = self._batches.pop((partition, base), None)
            if found is not None:
                self._cost -= found[1]
