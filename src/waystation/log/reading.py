"""The reading half of a log: records by offset, by time, and the aborted transactions among them.

Bytes are handed out as they were appended. Nothing before `start_offset` or from `written_offset` on is ever shown, and
a place that cannot be read is an error there, never a silent gap.

`Log` is this plus appending; nobody else builds one. On the loop's thread only.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from waystation.config import TopicSettings
from waystation.errors import CorruptBatch, InvalidRecord, OffsetOutOfRange, StorageFailed, TooLarge
from waystation.log.aborted import Aborted, AbortedTransactions
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header
from waystation.log.batches.compression import opened_limit
from waystation.log.segments.segment import Segment
from waystation.observe.events import event_logger

logger = event_logger("waystation.log")


class _FirstIsLarger(Exception):
    """The first batch has more bytes than are wanted."""


class SegmentReader:
    """Segments in order, and what may be seen of them."""

    settings: TopicSettings

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.segments: list[Segment] = []
        self.start_offset = 0
        self.written_offset = 0  # tier 0: always the end; upper tiers: what the commit has written
        self.aborted = AbortedTransactions()
        self._bases: list[int] = []
        self._last_read: Segment | None = None
        self._last_position = 0  # in that segment, where the last read began
        self._told: set[str] = set()  # damage that the log file has a line about

    def adopt(self, segments: list[Segment]) -> None:
        """Takes these as the log's segments."""
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]

    def uses(self, segment: Segment) -> bool:
        """Whether somebody else needs the segment's file to stay open."""
        raise NotImplementedError

    # -- by offset --------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, before_offset: int | None = None) -> bytes:
        """Stored bytes from the batch that holds `offset` on: at least one batch, else about `max_bytes`.

        May end in the middle of a batch, as Kafka's fetch does (not if it is encrypted on the disk); never reaches
        `before_offset`. Empty at the end of the log. OffsetOutOfRange outside the log, CorruptBatch where the batch is
        not intact.
        """
        return self._read(offset, max_bytes, before_offset, sys.maxsize)

    def read_within(self, offset: int, max_bytes: int, before_offset: int | None, first_bytes: int) -> bytes | None:
        """The same, but None, and next to nothing was read, if the first batch alone is larger than `first_bytes`."""
        try:
            return self._read(offset, max_bytes, before_offset, first_bytes)
        except _FirstIsLarger:
            return None

    def _read(self, offset: int, max_bytes: int, before_offset: int | None, first_bytes: int) -> bytes:
        limit = self.written_offset if before_offset is None else min(before_offset, self.written_offset)
        if offset < self.start_offset or offset > max(self.written_offset, self.start_offset):
            raise OffsetOutOfRange(f"offset {offset} is outside {self.start_offset}..{self.written_offset}")
        if offset >= limit:
            return b""
        try:
            for i in range(max(0, bisect_right(self._bases, offset) - 1), len(self.segments)):
                data = self._read_from(self.segments[i], offset, max_bytes, limit, first_bytes)
                if data is not None:
                    return data
        except OSError as error:
            raise self._unreadable(error) from error
        return b""

    def _unreadable(self, error: OSError) -> StorageFailed:
        return StorageFailed(f"{self.folder}: cannot read: {error.strerror or error}")

    def _read_from(self, segment: Segment, offset: int, max_bytes: int, limit: int, first_bytes: int) -> bytes | None:
        """What `read` gives if it is in this segment; None if it can only be in a later one."""
        self._turn_to(segment)
        found = segment.find(offset)
        if found is None:
            self._explain_gap(segment, offset)
            return None
        position, header = found
        if header.size > first_bytes:
            raise _FirstIsLarger
        size = max(max_bytes, header.size)
        if segment.last_offset >= limit:
            end = segment.find(limit)
            if end is not None:
                size = min(size, end[0] - position)
        if size <= 0:
            return b""
        self._last_position = position
        try:
            return segment.read(position, size) or segment.read(position, header.size)
        except CorruptBatch as error:
            self._tell(error, header.base_offset)
            raise

    def _turn_to(self, segment: Segment) -> None:
        """Keeps one sealed segment's file open, so that reading through a long log does not use up the handles."""
        last = self._last_read
        if last is not segment:
            if last is not None and last is not self.segments[-1] and not self.uses(last):
                last.close()
            self._last_read = segment

    def _explain_gap(self, segment: Segment, offset: int) -> None:
        """A segment that should hold the offset but cannot be walked to it is corrupt, not empty."""
        if offset <= segment.last_offset:
            position = segment.index.floor(offset - segment.base_offset)
            for at, header in segment.walk(position):
                position = at + header.size
            if position < segment.size:
                error = CorruptBatch(f"{segment.path()} is corrupt at position {position}")
                self._tell(error, offset)
                raise error

    def _tell(self, error: CorruptBatch, offset: int) -> None:
        """Once per place: a consumer that tries again every half second needs no line each time."""
        if str(error) not in self._told:
            self._told.add(str(error))
            logger.error(
                "batch.corrupt",
                "corrupt batch: {error} (offset {offset}); see `waystation log skip-corrupt`",
                offset=offset,
                error=error,
            )

    def batches_from(self, offset: int) -> Iterator[tuple[bytes, Header]]:
        """Whole batches with their headers, from the one that holds `offset` to the end of what is written."""
        end = self.written_offset
        while offset < end:
            data = self.read(max(offset, self.start_offset), 1024 * 1024)
            if not data:
                return
            for position, header in batches.scan(data):
                yield data[position : position + header.size], header
                offset = header.last_offset + 1

    def whole_of_read(self, data: bytes) -> tuple[int, int]:
        """(bytes, offset) behind the last whole batch of what `read` gave just now; it gave one at least.

        Found from the index's last entry before the end of the bytes, so that a megabyte of small batches takes a few
        microseconds and not a millisecond.
        """
        segment, begin = self._last_read, self._last_position
        if segment is not None and segment.keys is not None:
            return segment.read_end
        positions = segment.index.positions if segment is not None else ()
        entry = bisect_right(positions, begin + len(data)) - 1
        while True:
            at = positions[entry] - begin if entry >= 0 else 0
            found = batches.last_whole(data, max(0, at))
            if found is not None:
                return found
            if at <= 0:
                return 0, 0
            entry -= 1

    def aborted_in(self, first: int, data: bytes) -> list[Aborted]:
        """The aborted transactions that have a batch in bytes read from `first` on.

        One that only overlaps them may have lost its marker to compaction, with all else that it had: who is told of it
        waits for the marker, and drops what its producer has committed since.
        """
        if not data or not self.aborted:
            return []
        end = first
        written: dict[int, list[int]] = {}  # by producer id, where its transactional batches are
        for _, header in batches.scan(data):
            end = header.last_offset + 1
            if header.transactional and not header.control:
                written.setdefault(header.producer_id, []).append(header.base_offset)
        return [entry for entry in self.aborted.overlapping(first, end) if _wrote(entry, written)]

    # -- by time ----------------------------------------------------------------------------------------------------

    def find_time(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that is not older than `timestamp`; None if all are."""
        try:
            return self._find_time(timestamp)
        except OSError as error:
            raise self._unreadable(error) from error

    def _find_time(self, timestamp: int) -> tuple[int, int] | None:
        for segment in self.segments:
            if segment.latest_timestamp() < timestamp or segment.last_offset < self.start_offset:
                continue
            self._turn_to(segment)
            for position, header in segment.walk(segment.index.floor(segment.times.floor(timestamp))):
                if header.max_timestamp < timestamp or header.control or header.last_offset < self.start_offset:
                    continue
                found = self._first_not_older(segment.read(position, header.size), header, timestamp)
                if found is not None:
                    return found
        return None

    def _first_not_older(self, data: bytes, header: Header, timestamp: int) -> tuple[int, int] | None:
        try:
            body = batches.records_section(data, header, opened_limit(self.settings.max_message_bytes))
            return batches.first_not_older(body, header, timestamp, self.start_offset)
        except (InvalidRecord, TooLarge):
            # Its checksum is right, so it is what a producer sent; what is inside is between it and its consumers.
            return max(header.base_offset, self.start_offset), header.max_timestamp

    def find_max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the record with the latest timestamp; None in an empty log."""
        segments = [segment for segment in self.segments if segment.last_offset >= self.start_offset]
        latest = max((segment.latest_timestamp() for segment in segments), default=-1)
        found = self.find_time(latest) if latest >= 0 else None
        if found is not None or latest < 0:
            return found
        # The latest was below the log's start, in a segment that is still there: look at what is left.
        for data, header in self.batches_from(self.start_offset):
            if not header.control and (found is None or header.max_timestamp > found[1]):
                found = self._latest_in(data, header, found)
        return found

    def _latest_in(self, data: bytes, header: Header, best: tuple[int, int] | None) -> tuple[int, int] | None:
        try:
            for record in batches.records_of(data, header):
                if record.offset >= self.start_offset and (best is None or record.timestamp > best[1]):
                    best = record.offset, record.timestamp
        except (InvalidRecord, TooLarge):
            return max(header.base_offset, self.start_offset), header.max_timestamp
        return best

    def tail_offset(self, max_bytes: int) -> int:
        """An offset from which to the end there are at most about `max_bytes`; at least the last batch."""
        left = max_bytes
        for segment in reversed(self.segments):
            if segment.size >= left:
                index = segment.index
                entry = bisect_left(index.positions, segment.size - left)
                if entry == len(index.positions):
                    entry -= 1
                found = segment.base_offset + (index.offsets[entry] if entry >= 0 else 0)
                return max(self.start_offset, found)
            left -= segment.size
        return self.start_offset

    def step_back(self, before: int, max_bytes: int) -> int:
        """An offset from which to `before` there are about `max_bytes`: below `before`, unless the log begins there."""
        if before <= self.start_offset:
            return self.start_offset
        at = max(0, bisect_right(self._bases, before - 1) - 1)
        segment = self.segments[at]
        index = segment.index
        entry = bisect_left(index.offsets, before - segment.base_offset)
        end = index.positions[entry] if entry < len(index) else segment.size
        entry = bisect_right(index.positions, max(0, end - max_bytes)) - 1
        found = segment.base_offset + (index.offsets[entry] if entry >= 0 else 0)
        return max(self.start_offset, min(found, before - 1))


def _wrote(aborted: Aborted, written: dict[int, list[int]]) -> bool:
    """Whether one of these batches is of the transaction."""
    offsets = written.get(aborted.producer_id, ())
    at = bisect_left(offsets, aborted.first_offset)
    return at < len(offsets) and offsets[at] <= aborted.last_offset
