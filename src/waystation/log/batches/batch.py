"""Record batch v2, the unit of everything stored: read, checked, built.

The layout is Kafka's, byte for byte, because what a producer sends is what is stored and what a consumer gets:

    0 base offset i64 · 8 length i32 (of what follows) · 12 leader epoch i32 · 16 magic i8 (2) · 17 CRC-32C u32 ·
    21 attributes i16 · 23 last offset delta i32 · 27 base timestamp i64 · 35 max timestamp i64 · 43 producer id i64 ·
    51 producer epoch i16 · 53 base sequence i32 · 57 record count i32 · 61 records

The CRC covers everything from byte 21, so the broker may set the base offset and the leader epoch in place without
touching it. Attributes: bits 0–2 codec, 3 timestamp is the broker's, 4 transactional, 5 control, 6 delete horizon;
14, in files only: encrypted (`sealed_batch.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from waystation.errors import CorruptBatch, InvalidRecord, UnsupportedFormat
from waystation.log.batches.compression import CODEC_MASK, MAX_DECOMPRESSED_BYTES, NONE, ZSTD, compress, decompress
from waystation.wire.crc32c import crc32c

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size  # 61
_EXTENT = struct.Struct(">qi11xi")  # base offset, length, last offset delta
_PLACE = struct.Struct(">qi4xb6xi")  # base offset, length, magic, last offset delta
PREFIX_SIZE = 12  # base offset and length: what must be read to know where the next batch starts
CRC_START = 21
MAGIC = 2

LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
ENCRYPTED = 0x4000
"""Only in files: what follows the header is sealed (`sealed_batch.py`). Kafka has no meaning for this bit."""

NO_PRODUCER = -1
SMALLEST_RECORD = 7
"""Bytes of a record with nothing in it: length, attributes, two deltas, no key, no value, no headers."""

_CODEC_OR_ENCRYPTED = CODEC_MASK | ENCRYPTED
_PREFIX = struct.Struct(">qi")
_CRC = struct.Struct(">I")
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")


class Header(NamedTuple):
    """The fixed part of a batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + PREFIX_SIZE

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence numbers wrap from 2**31 - 1 to 0."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & CONTROL)


class Record(NamedTuple):
    """One record, opened up."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_header(data: Buffer, position: int = 0) -> Header:
    """The header at `position`; the caller has made sure that 61 bytes are there."""
    return Header._make(HEADER.unpack_from(data, position))


def check_batch(data: Buffer) -> Header:
    """The header of a batch that fills `data` exactly and is intact; raises otherwise.

    This is all that the stream path looks at: length, magic, CRC, and counts that agree.
    """
    if len(data) < HEADER_SIZE:
        if len(data) > 16 and data[16] < MAGIC:
            raise UnsupportedFormat(_old_format(data[16]))
        raise CorruptBatch(f"a record batch has at least {HEADER_SIZE} bytes, this one has {len(data)}")
    header = Header._make(HEADER.unpack_from(data))
    if header.magic != MAGIC:
        if header.magic in (0, 1):
            raise UnsupportedFormat(_old_format(header.magic))
        raise CorruptBatch(f"unknown message format {header.magic}")
    if header.length + PREFIX_SIZE != len(data):
        raise CorruptBatch(f"the batch says it has {header.length + PREFIX_SIZE} bytes, but {len(data)} came")
    if crc32c(memoryview(data)[CRC_START:]) != header.crc:
        raise CorruptBatch("the batch's CRC-32C does not match its content")
    if header.record_count < 0 or header.last_offset_delta < 0:
        raise InvalidRecord("record count and last offset delta cannot be negative")
    if header.attributes & _CODEC_OR_ENCRYPTED > ZSTD:
        if header.attributes & ENCRYPTED:
            raise InvalidRecord("attribute bit 14 is not for clients: it marks batches that are encrypted on the disk")
        raise InvalidRecord(f"unknown compression codec {header.codec}")
    room = len(data) - HEADER_SIZE if header.codec == NONE else MAX_DECOMPRESSED_BYTES
    if header.record_count * SMALLEST_RECORD > room:
        raise InvalidRecord(f"{header.record_count} records cannot fit in {room} bytes")
    return header


def check_batches(data: Buffer) -> list[tuple[memoryview, Header]]:
    """The batches that fill `data` exactly, each intact, with their headers; raises otherwise."""
    view = memoryview(data)
    found: list[tuple[memoryview, Header]] = []
    position = 0
    while position < len(view):
        size = PREFIX_SIZE + _PREFIX.unpack_from(view, position)[1] if position + PREFIX_SIZE <= len(view) else 0
        if size < HEADER_SIZE or position + size > len(view):
            raise CorruptBatch(f"there is no whole batch at byte {position} of {len(view)}")
        batch = view[position : position + size]
        found.append((batch, check_batch(batch)))
        position += size
    return found


def _old_format(magic: int) -> str:
    return f"message format v{magic} is not supported; use a client that writes record batch v2 (Kafka 0.11 or later)"


def scan(data: Buffer, position: int = 0) -> Iterator[tuple[int, Header]]:
    """Positions and headers of the whole batches in `data`, until it ends or what is there is no batch.

    Lengths are checked, CRCs are not: this is for walking bytes that were checked before.
    """
    end = len(data)
    while position + HEADER_SIZE <= end:
        header = Header._make(HEADER.unpack_from(data, position))
        if header.magic != MAGIC or header.length < HEADER_SIZE - PREFIX_SIZE:
            return
        after = position + header.length + PREFIX_SIZE
        if after > end:
            return
        yield position, header
        position = after


def last_whole(data: Buffer, position: int) -> tuple[int, int] | None:
    """(position, offset) behind the last whole batch from `position` on, where one begins; None if not one is whole."""
    found: tuple[int, int] | None = None
    end = len(data)
    while position + HEADER_SIZE <= end:
        base, length, delta = _EXTENT.unpack_from(data, position)
        position += length + PREFIX_SIZE
        if position > end or length < HEADER_SIZE - PREFIX_SIZE:
            break
        found = position, base + delta + 1
    return found


def skip_before(data: Buffer, offset: int, lowest: int, highest: int) -> tuple[int, int]:
    """(position, lowest) behind the whole batches at the beginning of `data` that end before `offset`, as far as their
    offsets ascend from `lowest` and stay within `highest`. What stops it is for the caller to judge.

    Looks at no more of a batch than it must: 0.25 µs, a quarter of what it takes to read a header.
    """
    position, end = 0, len(data)
    while position + HEADER_SIZE <= end:
        base, length, magic, delta = _PLACE.unpack_from(data, position)
        after, last = position + length + PREFIX_SIZE, base + delta
        if magic != MAGIC or length < HEADER_SIZE - PREFIX_SIZE or after > end:
            break
        if last >= offset or base < lowest or last > highest or delta < -1:
            break
        position, lowest = after, last + 1
    return position, lowest


def intact(data: Buffer, position: int, header: Header) -> bool:
    """Whether the batch at `position` matches its CRC."""
    view = memoryview(data)
    return crc32c(view[position + CRC_START : position + header.size]) == header.crc


# -- opening a batch ---------------------------------------------------------------------------------------------------


def records_of(data: Buffer, header: Header | None = None) -> Iterator[Record]:
    """The records of one batch, decompressed within bounds, parsed as they are asked for.

    InvalidRecord if they do not parse; those before the first bad one have been given by then.
    """
    header = read_header(data) if header is None else header
    body = records_section(data, header)
    yield from parse_records(body, header)


def values_of(data: Buffer, header: Header) -> Iterator[tuple[int, Buffer | None]]:
    """(offset, value) of the records of one batch; values that are not compressed are views of `data`."""
    if header.codec == NONE:
        body: Buffer = memoryview(data)[HEADER_SIZE : header.size]
    else:
        body = records_section(data, header)
    for record in parse_records(body, header):
        yield record.offset, record.value


def records_section(data: Buffer, header: Header, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """The records of a batch as uncompressed bytes; TooLarge if they are more than `limit`."""
    return decompress(header.codec, memoryview(data)[HEADER_SIZE : header.size], limit)


def parse_records(body: Buffer, header: Header) -> Iterator[Record]:
    fixed_timestamp = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    position = 0
    before = -1
    try:
        for _ in range(header.record_count):
            size, position = read_varint(body, position)
            end = position + size
            if size < 0 or end > len(body):
                raise InvalidRecord("a record is longer than its batch")
            record, position = _parse_record(body, position + 1, header, fixed_timestamp)
            if position != end:
                raise InvalidRecord("a record's length does not match its content")
            if record.offset <= before:
                raise InvalidRecord("the offsets of the records do not ascend")
            before = record.offset
            yield record
    except (IndexError, UnicodeDecodeError) as error:
        raise InvalidRecord("a record ends in the middle or has a header name that is not text") from error
    if position != len(body):
        raise InvalidRecord("the batch has bytes after its last record")


def first_not_older(body: bytes, header: Header, timestamp: int, start: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record from offset `start` on that is not older; None if all are.

    Looks at no more of a record than it must: 0.4 µs, a quarter of what it takes to open it.
    """
    if header.attributes & LOG_APPEND_TIME:
        for record in parse_records(body, header):
            if record.timestamp >= timestamp and record.offset >= start:
                return record.offset, record.timestamp
        return None
    least, base, base_offset = timestamp - header.base_timestamp, header.base_timestamp, header.base_offset
    position = 0
    try:
        for _ in range(header.record_count):
            size, position = read_varint(body, position)
            if size < 0:
                raise InvalidRecord("a record has a negative length")
            delta, at = read_varint(body, position + 1)
            if delta >= least:
                offset = base_offset + read_varint(body, at)[0]
                if offset >= start:
                    return offset, base + delta
            position += size
    except IndexError as error:
        raise InvalidRecord("a record ends in the middle") from error
    return None


def _parse_record(body: Buffer, position: int, header: Header, fixed: int | None) -> tuple[Record, int]:
    timestamp_delta, position = read_varint(body, position)
    offset_delta, position = read_varint(body, position)
    key, position = _read_bytes(body, position)
    value, position = _read_bytes(body, position)
    count, position = read_varint(body, position)
    if count < 0 or count > len(body):
        raise InvalidRecord("a record has an impossible number of headers")
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if count:
        found = []
        for _ in range(count):
            name, position = _read_bytes(body, position)
            if name is None:
                raise InvalidRecord("a record header has no name")
            content, position = _read_bytes(body, position)
            found.append((str(name, "utf-8"), content))
        headers = tuple(found)
    timestamp = header.base_timestamp + timestamp_delta if fixed is None else fixed
    if not 0 <= offset_delta <= header.last_offset_delta or not -(2**63) <= timestamp < 2**63:
        raise InvalidRecord("a record's offset or timestamp is outside what its batch says")
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers), position


def _read_bytes(body: Buffer, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(body, position)
    if size < 0:
        return None, position
    end = position + size
    if end > len(body):
        raise InvalidRecord("a record's field is longer than the record")
    return body[position:end], end  # type: ignore[return-value]  # a view of a view, for `values_of` alone


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """A zigzag varint; IndexError where the data ends, InvalidRecord where it is longer than any number."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    result = byte & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result >= 2**64:
                raise InvalidRecord("a number in a record has more than 64 bits")
            return (result >> 1) ^ -(result & 1), position
        shift += 7
        if shift > 63:
            raise InvalidRecord("a number in a record has more than ten bytes")


# -- building a batch --------------------------------------------------------------------------------------------------


def write_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _varint(value: int) -> bytes:
    """Of what is not below zero."""
    if value < 64:
        return _SHORT_VARINTS[value]
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


_SHORT_VARINTS = [bytes([2 * value]) for value in range(64)]


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # zigzag of -1
    else:
        write_varint(out, len(value))
        out += value


def encode_records(records: Iterable[Record], base_offset: int, base_timestamp: int) -> tuple[bytes, int]:
    """The uncompressed records section, and how many records are in it."""
    out = bytearray()
    count = 0
    for record in records:
        one = bytearray(b"\0")  # record attributes: none are defined
        write_varint(one, record.timestamp - base_timestamp)
        write_varint(one, record.offset - base_offset)
        _write_bytes(one, record.key)
        _write_bytes(one, record.value)
        write_varint(one, len(record.headers))
        for name, content in record.headers:
            _write_bytes(one, name.encode())
            _write_bytes(one, content)
        write_varint(out, len(one))
        out += one
        count += 1
    return bytes(out), count


def assemble(header: Header, body: bytes) -> bytearray:
    """A batch from a header and its (already compressed) records; length and CRC are computed."""
    out = bytearray().join((bytes(HEADER_SIZE), body))
    write_header(out, header)
    return out


def write_header(batch: bytearray, header: Header) -> None:
    """Writes the header of a batch whose records are in place behind it; length and CRC are computed."""
    HEADER.pack_into(batch, 0, *header._replace(length=len(batch) - PREFIX_SIZE, magic=MAGIC))
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))


def build(
    records: Iterable[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]],
    timestamp: int,
    *,
    codec: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytearray:
    """A batch of (key, value, headers), all with one timestamp, offsets from 0."""
    made = [Record(i, timestamp, key, value, headers) for i, (key, value, headers) in enumerate(records)]
    body, count = encode_records(made, 0, timestamp)
    header = Header(
        0,
        0,
        -1,
        MAGIC,
        0,
        attributes | codec,
        count - 1,
        timestamp,
        timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return assemble(header, compress(codec, body))


def build_values(
    values: Sequence[Sequence[Buffer]],
    timestamp: int,
    *,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    attributes: int = 0,
) -> tuple[bytearray, Header]:
    """What `build` makes of values that have neither keys nor headers, and its header. Each value is given in pieces,
    which are copied once."""
    pieces: list[Buffer] = [b""]
    length = HEADER_SIZE - PREFIX_SIZE
    for i, value in enumerate(values):
        size = len(value[0]) if len(value) == 1 else sum(map(len, value))
        # Attributes and the difference of timestamps are 0, the key is -1 bytes long; behind the value, no headers.
        head = b"\0\0" + _varint(i) + b"\1" + _varint(size)
        whole = _varint(len(head) + size + 1)
        pieces.append(whole + head)
        pieces += value
        pieces.append(b"\0")
        length += len(whole) + len(head) + size + 1
    count = len(values)
    fields = (attributes, count - 1, timestamp, timestamp, producer_id, producer_epoch, -1, count)
    pieces[0] = HEADER.pack(0, length, -1, MAGIC, 0, *fields)
    batch = bytearray().join(pieces)
    crc = crc32c(memoryview(batch)[CRC_START:])
    _CRC.pack_into(batch, 17, crc)
    return batch, Header(0, length, -1, MAGIC, crc, *fields)


def build_marker(
    producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, timestamp: int
) -> bytearray:
    """The control batch that ends a transaction in a partition."""
    record = (_CONTROL_KEY.pack(0, 1 if commit else 0), _CONTROL_VALUE.pack(0, coordinator_epoch), ())
    return build(
        [record], timestamp, producer_id=producer_id, producer_epoch=producer_epoch, attributes=TRANSACTIONAL | CONTROL
    )


def marker_commits(data: Buffer, header: Header) -> bool | None:
    """For a control batch: True commit, False abort, None another kind of control record."""
    for record in records_of(data, header):
        if record.key is None or len(record.key) < _CONTROL_KEY.size:
            return None
        _, kind = _CONTROL_KEY.unpack_from(record.key)
        return {0: False, 1: True}.get(kind)
    return None


def marker_epoch(data: Buffer, header: Header) -> int:
    """For a marker: the epoch of the coordinator that had it written; -1 if it does not say."""
    for record in records_of(data, header):
        if record.value is not None and len(record.value) >= _CONTROL_VALUE.size:
            return int(_CONTROL_VALUE.unpack_from(record.value)[1])
    return -1


def place(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Gives a batch its offset and epoch, in place; the CRC does not cover them."""
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, leader_epoch)


def sign(
    batch: bytearray | memoryview, attributes: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Writes whose batch it is, in place, CRC renewed."""
    struct.pack_into(">h", batch, 21, attributes)
    struct.pack_into(">qhi", batch, 43, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))


def stamp(batch: bytearray | memoryview, attributes: int, timestamp: int) -> None:
    """Sets the broker's own time on a batch (message.timestamp.type=LogAppendTime), in place, CRC renewed."""
    struct.pack_into(">h", batch, 21, attributes | LOG_APPEND_TIME)
    struct.pack_into(">q", batch, 35, timestamp)
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))
