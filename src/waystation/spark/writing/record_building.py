"""Columns of rows as Kafka record batches: the hot path of the sink.

Rows are encoded by Arrow itself, column by column: a record is the concatenation of a few pieces (lengths as varints,
key, value, headers), and Arrow puts binary columns together in C; where keys and values have one length each, numpy
does, in a third of the time. Measured: 150 ns for a row of 100 bytes and a key, against 1.5 µs for
`batches.encode_records`. Headers alone are put together row by row, where a row has some.

Offsets in a batch count from 0, sizes stay below a limit (one row that is larger alone is a batch alone). Pure; for
this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waystation.errors import Invalid
from waystation.log.batches.batch import HEADER_SIZE, MAGIC, NO_PRODUCER, Header, assemble, write_header, write_varint
from waystation.message import Message, check_message
from waystation.spark.writing.sink_columns import OF_MESSAGES, Rows
from waystation.topics.records.crossing import TAKEN_AT, HeaderPair, headers_of, message_of

BATCH_BYTES = 512 * 1024
"""Of a record batch: half of what a topic takes unless it says otherwise, and far above where frames cost more."""
_ROW_BYTES = 24
"""The most that a record has besides its key, value and headers."""
_TABLE_SIZE = 1 << 16
_OFFSETS_END = (1 << 6, 1 << 13, _TABLE_SIZE)
"""Where offsets in a batch begin to have one byte more; the last is where a batch ends."""
_NO_ATTRIBUTES = b"\0"
_NO_HEADERS = b"\0"


@lru_cache(8192)
def _varint(number: int) -> bytes:
    out = bytearray()
    write_varint(out, number)
    return bytes(out)


Numbers = npt.NDArray[np.integer[Any]]
Letters = npt.NDArray[np.uint8]


def _varint_table() -> pa.Array:
    """The varints of the numbers from -1 on."""
    numbers = np.arange(-1, _TABLE_SIZE)
    zigzag = (numbers << 1) ^ (numbers >> 63)
    sizes = _varint_sizes(numbers)
    places = np.arange(3)
    letters = zigzag[:, None] >> 7 * places & 0x7F | np.where(places + 1 < sizes[:, None], 0x80, 0)
    bounds = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    data = letters.astype(np.uint8)[places < sizes[:, None]]
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _varint_sizes(numbers: Numbers) -> Numbers:
    """Of numbers that the table has: from -1 on, and below where they have four bytes."""
    sizes: Numbers = 1 + (numbers >= 1 << 6).astype(np.int64) + (numbers >= 1 << 13)
    return sizes


_VARINTS = _varint_table()
"""Of every number that is common: lengths, and offsets in a batch."""

Piece: TypeAlias = "bytes | Numbers | pa.Array"
"""A part of each record: the same bytes in all of them, a number that is written as a varint, or a column's bytes."""


def build_batches(rows: Rows, now_ms: int, limit_bytes: int = BATCH_BYTES) -> Iterator[bytearray]:
    """The rows, all for one partition, as record batches of at most so many bytes, in order."""
    headers = None
    if not rows.bare:
        headers = pa.array([_block(pairs) for pairs in header_pairs(rows, now_ms, topic=True)], pa.binary())
    for start, count in _pieces(rows, headers, limit_bytes):
        some = None if headers is None else headers.slice(start, count)
        yield _batch(rows.slice(start, count), some, now_ms)


def _pieces(rows: Rows, headers: pa.Array | None, limit_bytes: int) -> Iterator[tuple[int, int]]:
    """(first row, how many) of each batch."""
    ends = np.arange(1, rows.count + 1) * _ROW_BYTES
    for column in (rows.column("key"), rows.column("value"), headers):
        if column is not None:
            ends += _bounds(column)[1:] - _bounds(column)[0]
    start, used = 0, 0
    room = limit_bytes - HEADER_SIZE
    while start < rows.count:
        end = int(np.searchsorted(ends, used + room, side="right"))
        end = min(max(end, start + 1), start + _TABLE_SIZE)
        yield start, end - start
        start, used = end, int(ends[end - 1])


def _batch(rows: Rows, headers: pa.Array | None, now_ms: int) -> bytearray:
    count = rows.count
    times = rows.column("timestamp")
    base_ms = highest_ms = now_ms
    at: Piece = _varint(0)  # no time of its own
    if times is not None:
        times = pc.fill_null(times, now_ms)
        bounds = pc.min_max(times).as_py()
        base_ms, highest_ms = bounds["min"], bounds["max"]
        if base_ms < 0:
            raise Invalid("column 'timestamp': a row has a time before 1970, which a topic cannot keep")
        at = _numbers(times.to_numpy() - base_ms)
    header = Header(0, 0, -1, MAGIC, 0, 0, count - 1, base_ms, highest_ms, NO_PRODUCER, -1, -1, count)
    if headers is None and isinstance(at, bytes):
        alike = _alike_batch(header, at, rows.column("key"), rows.column("value"))
        if alike is not None:
            return alike
    pieces: list[Piece] = [_NO_ATTRIBUTES, at, np.arange(count)]
    pieces += _field(rows.column("key"))
    pieces += _field(rows.column("value"))
    pieces.append(_NO_HEADERS if headers is None else headers)
    lengths: Numbers = np.zeros(count, np.int64)
    for piece in pieces:
        lengths += len(piece) if isinstance(piece, bytes) else _lengths(piece)
    return assemble(header, _joined([_numbers(lengths), *pieces], count))  # type: ignore[arg-type]


# -- records of one size -----------------------------------------------------------------------------------------------


def _alike_batch(header: Header, at: bytes, keys: pa.Array | None, values: pa.Array | None) -> bytearray | None:
    """A batch whose keys are all of one length, and its values too; None if they are not.

    Its records differ in length by that of their offsets alone, which have one byte up to 63 and two up to 8191: in
    each of these stretches every field has its place in every so many bytes. Measured: 30 ns a row with a key and 100
    bytes; 125 by pieces.
    """
    key, value = _Fixed.of(keys), _Fixed.of(values)
    if key is None or value is None:
        return None
    stretches, size, first = [], HEADER_SIZE, 0
    for offset_size, end in enumerate(_OFFSETS_END, 1):
        last = min(header.record_count, end)
        if last <= first:
            break
        before, behind = _NO_ATTRIBUTES + at, bytes(offset_size) + key.blank + value.blank + _NO_HEADERS
        before = _varint(len(before) + len(behind)) + before
        stretches.append((first, last, offset_size, len(before), before + behind))
        size += (last - first) * len(before + behind)
        first = last
    batch, position = bytearray(size), HEADER_SIZE
    for first, last, offset_size, place, blank in stretches:
        records, step = last - first, len(blank)
        _put(batch, position, step, records, np.frombuffer(blank, np.uint8).reshape(1, step))
        _put(batch, position + place, step, records, _offset_letters(offset_size)[:records])
        place += offset_size
        for field in (key, value):
            place += len(field.blank)
            _put(batch, position + place - field.size, step, records, field.letters[first:last])
        position += records * step
    write_header(batch, header)
    return batch


def _put(batch: bytearray, position: int, step: int, count: int, letters: Letters) -> None:
    """The first row's bytes there, the next one's so many bytes behind it, and so on; or one row's every time."""
    size = letters.shape[1]
    if size:
        kind = np.dtype(f"V{size}")  # a row as one value of numpy's: a third of the time of a matrix
        np.ndarray((count,), kind, batch, position, (step,))[:] = letters.reshape(-1).view(kind)


@lru_cache(len(_OFFSETS_END))
def _offset_letters(size: int) -> Letters:
    """The varints of all offsets that have so many bytes, a row each."""
    numbers = np.arange((0, *_OFFSETS_END)[size - 1], _OFFSETS_END[size - 1])
    places = np.arange(size)
    more = np.where(places < size - 1, 0x80, 0)
    letters: Letters = ((numbers[:, None] << 1) >> 7 * places & 0x7F | more).astype(np.uint8)
    return letters


class _Fixed(NamedTuple):
    """A key or a value of one length in all rows, or of none."""

    blank: bytes
    """The length as it is written, and room for the bytes."""
    size: int
    letters: Letters
    """A row's bytes are a row."""

    @staticmethod
    def of(column: pa.Array | None) -> _Fixed | None:
        if column is None:
            return _Fixed(_varint(-1), 0, np.empty((_TABLE_SIZE, 0), np.uint8))
        if column.null_count:
            return None
        bounds = _bounds(column)
        size = int(bounds[1] - bounds[0])
        if (np.diff(bounds) != size).any():
            return None
        data = column.buffers()[2]
        flat = np.frombuffer(b"" if data is None else data, np.uint8)[bounds[0] : bounds[-1]]
        return _Fixed(_varint(size) + bytes(size), size, flat.reshape(len(column), size))


# -- records of any size -----------------------------------------------------------------------------------------------


def _field(column: pa.Array | None) -> list[Piece]:
    """The length and the bytes of a key or a value; a null has the length -1."""
    if column is None:
        return [_varint(-1)]
    if not column.null_count:
        return [_numbers(_lengths(column)), column]
    filled = pc.fill_null(column, b"")
    return [_numbers(np.where(column.is_null(), -1, _lengths(filled))), filled]


def _numbers(numbers: Numbers) -> Piece:
    """Numbers from -1 on; where they are equal, one stands for all."""
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest == highest:
        return _varint(lowest)
    if highest < _TABLE_SIZE:
        return numbers
    return pa.array([_varint(number) for number in numbers.tolist()], pa.binary())


def _lengths(piece: Numbers | pa.Array) -> Numbers:
    """Of binary values, none of which is null, or of the varints of numbers."""
    if isinstance(piece, pa.Array):
        return np.diff(_bounds(piece))
    return _varint_sizes(piece)


def _bounds(column: pa.Array) -> Numbers:
    """Where binary values begin in their buffer, and where the last one ends."""
    bounds: Numbers = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return bounds


def _joined(pieces: Sequence[Piece], count: int) -> memoryview:
    """All pieces of the first record, of the second, and so on.

    They are put into one array behind one another, and taken from there in the order in which they are wanted: half
    the time of `binary_join_element_wise`.
    """
    pieces = list(_merged(pieces))
    numbers = [int(piece.max()) for piece in pieces if isinstance(piece, np.ndarray)]
    sources = [_VARINTS.slice(0, max(numbers) + 2)] if numbers else []
    at = len(sources[0]) if sources else 0
    wanted = np.empty((count, len(pieces)), np.int32)
    for number, piece in enumerate(pieces):
        if isinstance(piece, np.ndarray):
            wanted[:, number] = piece + 1
            continue
        wanted[:, number] = at if isinstance(piece, bytes) else np.arange(at, at + count)
        sources.append(pa.array([piece], pa.binary()) if isinstance(piece, bytes) else piece)
        at += len(sources[-1])
    joined = pc.take(pa.concat_arrays(sources), pa.array(wanted.reshape(-1)), boundscheck=False)
    bounds = _bounds(joined)
    return memoryview(joined.buffers()[2])[int(bounds[0]) : int(bounds[-1])]


def _merged(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The same with bytes that follow one another in one."""
    for same, some in groupby(pieces, lambda piece: isinstance(piece, bytes)):
        if same:
            yield b"".join(cast("Iterator[bytes]", some))
        else:
            yield from some


# -- headers -----------------------------------------------------------------------------------------------------------


def _block(pairs: Sequence[HeaderPair]) -> bytes:
    """The headers of a record with their count."""
    if not pairs:
        return _NO_HEADERS
    parts = [_varint(len(pairs))]
    for name, content in pairs:
        parts.append(_encoded_name(name))
        parts += (b"\x01",) if content is None else (_varint(len(content)), content)
    return b"".join(parts)


@lru_cache(1024)
def _encoded_name(name: str) -> bytes:
    encoded = name.encode()
    return _varint(len(encoded)) + encoded


def header_pairs(rows: Rows, now_ms: int, *, topic: bool) -> Iterator[list[HeaderPair]]:
    """The headers of each row: what the columns say, then the row's own but those."""
    if not any(rows.column(name) is not None for name in OF_MESSAGES if name != "headers"):
        yield from map(_own, _list(rows, "headers"))
        return
    columns = ("headers", "id", "priority", "delayMs", "ttlMs", "contentType", "timestamp")
    for given, id, priority, delay_ms, ttl_ms, content_type, said_ms in zip(
        *(_list(rows, name) for name in columns), strict=True
    ):
        message = Message(
            b"",
            id=id,
            priority=priority or 0,
            delay_ms=delay_ms or 0,
            ttl_ms=ttl_ms,
            content_type=content_type,
        )
        try:
            check_message(message)
        except Invalid as error:
            raise Invalid(f"column {_column_of(str(error))}") from None
        if delay_ms and topic:
            raise Invalid(
                "column 'delayMs': a row for a topic cannot be delayed; send it to a queue, or leave the column out"
            )
        pairs = headers_of(message)
        if topic and ttl_ms is not None and said_ms is not None:
            pairs.append((TAKEN_AT, b"%d" % now_ms))  # a time to live counts from when it was taken in
        names = {name for name, _ in pairs}
        yield pairs + [pair for pair in _own(given) if pair[0] not in names]


def _own(given: Any) -> list[HeaderPair]:
    """A row's headers, as a list of structs or of pairs."""
    found: list[HeaderPair] = []
    if not given:
        return found
    for each in given:
        name, value = (each["key"], each["value"]) if isinstance(each, dict) else each
        if name is None:
            raise Invalid("column 'headers': a header has no key; give it one, or filter it out")
        found.append((name, value.encode() if isinstance(value, str) else value))
    return found


def _column_of(said: str) -> str:
    """What is wrong, with a column's name in place of a field's."""
    name, _, rest = said.partition(":")
    return f"{ {'delay_ms': 'delayMs', 'ttl_ms': 'ttlMs'}.get(name, name)!r}:{rest}"


def _list(rows: Rows, name: str) -> list[Any]:
    column = rows.column(name)
    return [None] * rows.count if column is None else column.to_pylist()


# -- rows as messages of a queue ---------------------------------------------------------------------------------------


def messages_of(rows: Rows, now_ms: int) -> Iterator[Message]:
    """The rows as a queue takes them: by the same table as records that cross into one."""
    keys, values, times = (_list(rows, name) for name in ("key", "value", "timestamp"))
    bare = rows.bare
    pairs = iter(()) if bare else header_pairs(rows, now_ms, topic=False)
    for key, value, said_ms in zip(keys, values, times, strict=True):
        if value is None:
            raise Invalid("column 'value': a row for a queue has none; a queue keeps no tombstones, so filter it out")
        if bare:
            yield Message(value, key=key, timestamp_ms=said_ms)
        else:
            yield message_of(key, value, next(pairs), said_ms)
