"""A publish of record batches into a partition: the rules that every protocol's publish obeys.

A batch is checked and appended as it is. The check is of its length, CRC, limits and timestamps, and then of the
records in it, so that nothing is stored that consumers would stop at forever; a topic with
`waystation.validate.records=crc` does without the latter. Only topics that ask for it are opened up further: compacted
ones (every record needs a key), ones with a codec of their own, ones that deduplicate.

What `check` opens is bounded (`opened_limit`, `MAX_BATCH_RECORDS`), but what is bounded may still be much for a loop
that serves everybody: `check_here` does what is quick, and says when a thread should do it. What is not compressed is
checked where it is, without a copy, if it is known where that is: `place` is where a batch begins in the bytearray that
it is a view into.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from waystation.config import TopicSettings
from waystation.errors import InvalidRecord, InvalidTimestamp, NotAllowed, TooLarge
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import LOG_APPEND_TIME, Header
from waystation.log.batches.compression import CODEC_MASK, CODEC_NAMES, NONE, compress, decompress, opened_limit
from waystation.log.batches.record_check import MAX_BATCH_RECORDS, check_records
from waystation.log.log import Appended
from waystation.message import Message
from waystation.observe.tracing import Tracing
from waystation.topics.dedup import DedupWindow
from waystation.topics.partitions.partition import Partition
from waystation.topics.records.record_tracing import traced_in
from waystation.world import World

AWAY_BYTES = 64 * 1024
"""Compressed batches of more than this are checked on a thread."""
AWAY_OPENED_BYTES = 1024 * 1024
"""So are those that open to more than this, and are small as they came: up to here it takes a few milliseconds."""
AWAY_RECORDS = 20_000
"""So are those with more records than this: 20 ms, if no two of them are alike."""
MAX_RECORD_ERRORS = 1_000
"""Records that the refusal of a batch names, at most: an answer of 50 KB. A producer sends the others again, without
those that were named."""


_SEEN = struct.Struct(">21xh34xi")  # attributes, record count


class _Opened(NamedTuple):
    """The records of a batch, uncompressed: what is from `start` to `end`."""

    buffer: bytes | bytearray
    start: int
    end: int


class Publishing:
    """One per broker."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock
        self._offload = world.offload
        self.tracing: Tracing | None = None
        self._windows: WeakKeyDictionary[Partition, DedupWindow] = WeakKeyDictionary()

    def check(self, partition: Partition, batch: bytearray | memoryview, place: int | None = None) -> Header:
        """Everything that can be known of a batch before it is appended; raises if it will not be taken.

        It may take a while for a batch that opens to much, and may be called on a thread.
        """
        header = self.check_header(partition, batch)
        settings = partition.topic.settings
        if settings.opens_batches:
            limit = opened_limit(settings.max_message_bytes)
            _check_content(settings, _opened(batch, place, header, limit), header)
        return header

    def check_here(
        self, partition: Partition, batch: bytearray | memoryview, place: int | None = None
    ) -> Header | None:
        """As `check`, as long as it is quick; None: it is not, a thread should do it."""
        header = self.check_header(partition, batch)
        settings = partition.topic.settings
        if not settings.opens_batches:
            return header
        if header.record_count > AWAY_RECORDS or (header.codec != NONE and len(batch) > AWAY_BYTES):
            return None
        try:
            opened = _opened(batch, place, header, AWAY_OPENED_BYTES)
        except TooLarge:
            return None
        _check_content(settings, opened, header)
        return header

    async def checked(self, partition: Partition, batch: bytearray | memoryview, place: int | None = None) -> Header:
        """As `check`, here or on a thread. The batch must stay as it is meanwhile."""
        header = self.check_here(partition, batch, place)
        return await self._offload(self.check, partition, batch, place) if header is None else header

    def check_header(self, partition: Partition, batch: bytearray | memoryview, *, internal: bool = False) -> Header:
        """What `check` does without looking at the records: enough for batches that the broker has made itself.
        `internal`: and that it may write to its own topics."""
        settings = partition.topic.settings
        _check_size(partition, batch)
        header = batches.check_batch(batch)
        if header.control:
            raise InvalidRecord("control records are the broker's alone")
        if header.last_offset_delta != header.record_count - 1:
            raise InvalidRecord(f"{header.record_count} records with a last offset delta of {header.last_offset_delta}")
        if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
            raise InvalidRecord("a batch with a producer id needs its epoch and its sequence")
        if header.attributes & LOG_APPEND_TIME:
            raise InvalidTimestamp("the broker's own time is the broker's alone to set (attribute bit 3)")
        if not settings.log_append_time:
            self._check_times(batch, header, settings)
        if partition.topic.internal and not internal:
            raise NotAllowed(f"topic {partition.topic.name!r} is the broker's own")
        return header

    def _check_times(self, batch: bytearray | memoryview, header: Header, settings: TopicSettings) -> None:
        now = self._clock.now_ms()
        low, high = now - settings.message_timestamp_before_max_ms, now + settings.message_timestamp_after_max_ms
        if header.max_timestamp > high:
            error = InvalidTimestamp(f"timestamp {header.max_timestamp} is too far ahead of the broker's clock ({now})")
        elif header.base_timestamp < low and header.base_timestamp >= 0:
            error = InvalidTimestamp(f"timestamp {header.base_timestamp} is too far behind the broker's clock ({now})")
        else:
            return
        error.records = _untimely(batch, header, low, high)
        raise error

    def fresh(self, partition: Partition, messages: Sequence[Message], producer_id: int = -1) -> Sequence[Message]:
        """Those of a topic that deduplicates which it does not have by their ids; all of them in another one."""
        window_ms = partition.topic.settings.dedup_window_ms
        if not window_ms:
            return messages
        return self._window(partition, window_ms).fresh(messages, self._clock.now_ms(), producer_id)

    def append(self, partition: Partition, batch: bytearray | memoryview, header: Header) -> Appended:
        """Appends a batch that `check` has passed."""
        settings = partition.topic.settings
        window: DedupWindow | None = None
        if settings.dedup_window_ms:
            window = self._window(partition, settings.dedup_window_ms)
            batch, header = window.filter(batch, header, self._clock.now_ms())
        traced = None if self.tracing is None else traced_in(batch, header)
        if settings.compression_type != "producer" and header.codec != CODEC_NAMES[settings.compression_type]:
            batch = self._recompress(batch, header, CODEC_NAMES[settings.compression_type])
            header = batches.read_header(batch)
            _check_size(partition, batch)
        appended = partition.append(batch, header)
        if window is not None and not appended.duplicate:
            window.remember(batch, header, self._clock.now_ms(), appended.base_offset)
        if traced and self.tracing is not None and not appended.duplicate:
            traced = [one._replace(offset=appended.base_offset + one.offset - header.base_offset) for one in traced]
            end = appended.last_offset + 1
            self.tracing.published(partition.topic.name, partition.index, traced, partition, end)
        return appended

    @staticmethod
    def _recompress(batch: bytearray | memoryview, header: Header, codec: int) -> bytearray:
        body = batches.records_section(batch, header)
        attributes = (header.attributes & ~CODEC_MASK) | codec
        return batches.assemble(header._replace(attributes=attributes), compress(codec, body))

    def _window(self, partition: Partition, window_ms: int) -> DedupWindow:
        window = self._windows.get(partition)
        if window is None or window.epoch != partition.epoch:
            window = self._windows[partition] = DedupWindow(partition, window_ms, self._clock.now_ms())
        window.window_ms = window_ms
        return window


def may_be_slow(batch: bytearray | memoryview) -> bool:
    """Whether the check of a batch may take long, by a look at its header (which may be wrong, or too short)."""
    if len(batch) < batches.HEADER_SIZE:
        return False
    codec, count = _SEEN.unpack_from(batch)
    return bool(codec & CODEC_MASK or count > AWAY_RECORDS)


def _check_content(settings: TopicSettings, opened: _Opened, header: Header) -> None:
    """The records themselves."""
    if settings.validate_records == "full":
        check_records(opened.buffer, header, opened.start, opened.end)
    if settings.compacts:
        body = bytes(memoryview(opened.buffer)[opened.start : opened.end])
        records = batches.parse_records(body, header)
        bad = [number for number, record in enumerate(records) if record.key is None]
        if bad:
            error = InvalidRecord(f"{len(bad)} of {header.record_count} records have no key, on a compacted topic")
            error.records = [(number, "no key, on a compacted topic") for number in bad[:MAX_RECORD_ERRORS]]
            raise error


def _untimely(batch: bytearray | memoryview, header: Header, low: int, high: int) -> list[tuple[int, str]]:
    """Which records of a batch that is refused have a time outside of what is taken. None, where it is not quick to
    see: then the batch is refused without."""
    if header.record_count > AWAY_RECORDS or (header.codec != NONE and len(batch) > AWAY_BYTES):
        return []
    try:
        opened = _opened(batch, None, header, AWAY_OPENED_BYTES)
        body = bytes(memoryview(opened.buffer)[opened.start : opened.end])
        times = [record.timestamp for record in batches.parse_records(body, header)]
    except (InvalidRecord, TooLarge):
        return []
    bad = [(number, at) for number, at in enumerate(times) if at > high or 0 <= at < low]
    return [(number, f"timestamp {at} is not from {low} to {high}") for number, at in bad[:MAX_RECORD_ERRORS]]


def _opened(batch: bytearray | memoryview, place: int | None, header: Header, limit: int) -> _Opened:
    """TooLarge if the records are more than a batch may have."""
    if header.record_count > MAX_BATCH_RECORDS:
        raise TooLarge(f"{header.record_count} records in one batch; at most {MAX_BATCH_RECORDS} are taken")
    if header.codec == NONE:
        if isinstance(batch, bytearray):
            return _Opened(batch, batches.HEADER_SIZE, len(batch))
        if place is not None and isinstance(batch.obj, bytearray):
            return _Opened(batch.obj, place + batches.HEADER_SIZE, place + len(batch))
    body = decompress(header.codec, memoryview(batch)[batches.HEADER_SIZE :], limit)
    return _Opened(body, 0, len(body))


def _check_size(partition: Partition, batch: bytearray | memoryview) -> None:
    limit = partition.topic.settings.max_message_bytes
    if len(batch) > limit:
        raise TooLarge(
            f"a batch of {len(batch)} bytes for topic {partition.topic.name!r}, which takes at most"
            f" {limit} (max.message.bytes)"
        )
