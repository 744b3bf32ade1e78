"""Whether the records of a batch are records: the check that a producer's batch passes before it is stored.

A batch that passes is read by every client: the records follow each other to the last byte, there are as many as the
header says, their offsets count up from 0, and the fields of each add up to its length. What `batch.parse_records`
refuses is refused here too; and besides it what Java's client or librdkafka would stop at: a length of more than five
bytes, one below -1, offsets with gaps (only the broker itself makes gaps).

It stands on the produce path, so it looks at the records where they are, without a copy, and has three speeds. What the
faster ones cannot say for sure is left to the slower (figures per record of 100 bytes, CPython 3.11):

- runs of records of one size and one shape are compared column by column: 0.01 µs, 0.02 µs where caches are shared;
- records of one shape whose sizes differ are hopped over, with tables instead of arithmetic: 0.3 µs, and 0.2 µs more
  for each header;
- all others are gone through one by one: 0.8 to 1.7 µs, and 0.8 µs more for each header.

The shape of a record is how many bytes its numbers take, and the names of its headers. It is taken from the first of
some records, if its lengths add up, and everything that it says is compared with each of them.

Pure, any thread.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import NamedTuple

from waystation.errors import InvalidRecord
from waystation.log.batches.batch import LOG_APPEND_TIME, Header

MAX_BATCH_RECORDS = 131_072
"""The most records in a batch. More do not fit into Kafka's usual `max.message.bytes` without compression; and a reader
that wants one of them should not have to go through millions."""

Body = bytes | bytearray

_FEW = 16
"""Fewer records than this are not worth a look at their shape."""
_FIRST_RUN = 1024
"""Records that are compared at first; then eight times as many. What is compared in vain costs less than one by one."""
_MOST_HOPS = 1024
"""After as many records of different sizes we look whether they have become alike."""
_MOST_ONE_BY_ONE = 4096
_MOST_NAMES, _MOST_NAMES_BYTES = 64, 2048
"""Of headers that records may have in common."""
_MOST_FIXED = 64
"""Columns that a run may be compared in; records with more of them (many headers) are faster one by one."""

_SANE_TIME = 2**62
"""Times below this have room for any difference of five bytes: no need to add them up."""

_TWO, _THREE = 64, 8192
"""The first offsets whose zigzag varints take two bytes, and three."""
_NEVER = 1 << 40
"""The length of what has none: behind the end of any batch."""

# The large tables take 2.8 MiB together and a millisecond each: the first batch that needs one makes it.


@cache
def _columns() -> tuple[tuple[bytes, ...], ...]:
    """By how many bytes offsets have: those of the offsets 0, 1, 2, … as zigzag varints, by column."""
    times, long_times = MAX_BATCH_RECORDS // _TWO, MAX_BATCH_RECORDS // _THREE
    low = bytes(2 * i for i in range(64)) * times
    low_goes_on = bytes(2 * i | 0x80 for i in range(64)) * times
    middle = b"".join(bytes((i,)) * 64 for i in range(128)) * long_times
    middle_goes_on = b"".join(bytes((i | 0x80,)) * 64 for i in range(128)) * long_times
    high = b"".join(bytes((i,)) * _THREE for i in range(long_times))
    return (), (low,), (low_goes_on, middle), (low_goes_on, middle_goes_on, high)


@cache
def _first_two(width: int) -> array[int]:
    """The first two bytes of them (the only one up to 63) as numbers, for any 8,192 in a row that begin at a multiple
    of it."""
    columns = _columns()[width]
    if width == 1:
        return array("H", list(columns[0][:_TWO]))
    pairs = zip(columns[0][:_THREE], columns[1][:_THREE], strict=True)
    return array("H", (low | middle << 8 for low, middle in pairs))


def _lengths_of_two_bytes() -> list[int]:
    """By the number that two bytes are: how long is what has this length, with the length itself."""
    table = [_NEVER] * (1 << 16)
    for second in range(128):
        table[second << 8 | 0x80 : (second + 1) << 8 : 2] = range(2 + 64 * second, 2 + 64 * (second + 1))
    return table


@cache
def _fields() -> tuple[int, ...]:
    """The same where the length may have one byte too, and where it may be -1."""
    table = _lengths_of_two_bytes()
    for first in range(0, 128, 2):
        table[first::256] = [1 + (first >> 1)] * 256
    table[1::256] = [1] * 256
    return tuple(table)


@cache
def _sizes(width: int) -> tuple[int, ...]:
    """How long a record is whose length has one byte, or two, by the number that they are."""
    if width == 1:
        return tuple(_NEVER if i & 0x81 else 1 + (i >> 1) for i in range(256))
    return tuple(_lengths_of_two_bytes())


_KEYS = tuple(0 if i == 1 else _NEVER if i & 0x81 else i >> 1 for i in range(256))
"""The length of a key by its one byte."""


@cache
def _keys_behind_three() -> tuple[int, ...]:
    """The same behind offsets of three bytes: by their last one (which is made 0) and the key's."""
    return tuple(chain.from_iterable((length, *[_NEVER] * 255) for length in _KEYS))


_MOST_SIZE_WIDTH = _MOST_TIME_WIDTH = 2
_HEADS = {
    (size, time, offset): struct.Struct("<" + " BH"[size] + "x" + " BH"[time] + ("", "BB", "HB", "HH")[offset])
    for size in (1, 2)
    for time in (1, 2)
    for offset in (1, 2, 3)
}
"""The numbers in front of the key by their widths: of the record, of its time, of its offset, of the key (and the third
byte of the offset, where it has one)."""

_U16 = struct.Struct("<H")
_KEY_AND_VALUE = (0, 1)
_BYTES = tuple(bytes((i,)) for i in range(256))

# Tables for `bytes.translate`: 1 for the bytes that a column must not have.
_ENDS = bytes(i < 0x80 for i in range(256))
_GOES_ON = bytes(i >= 0x80 for i in range(256))


class _Shape(NamedTuple):
    """Of a record. `size` and `fixed` are that of its run alone."""

    size: int
    size_width: int
    time_width: int
    offset_width: int
    fixed: tuple[tuple[int, bytes], ...]
    """(place, byte): the lengths, the names of headers. None if they are too many."""
    names: tuple[bytes, ...]
    """Of its headers, with the length of each; in front of the first, how many there are."""


def check_records(body: Body, header: Header, start: int = 0, end: int | None = None) -> None:
    """InvalidRecord unless `body`, from `start` to `end`, is exactly the records that the header says, uncompressed."""
    count = header.record_count
    if count > MAX_BATCH_RECORDS:
        raise InvalidRecord(f"{count} records in a batch; at most {MAX_BATCH_RECORDS} are taken")
    base = None if header.attributes & LOG_APPEND_TIME else header.base_timestamp
    end = len(body) if end is None else end
    try:
        position = _Check(body, end, count, base).run(start)
    except IndexError as error:
        raise InvalidRecord("the last record ends in the middle") from error
    if position != end:
        raise InvalidRecord("the batch has bytes after its last record")


class _Check:
    """One batch's. `base`: what times are added to; None if they do not count.

    What is behind `end` may be read, but no record that passes ends there.
    """

    __slots__ = ("_base", "_body", "_count", "_end", "_plain")

    def __init__(self, body: Body, end: int, count: int, base: int | None) -> None:
        self._body = body
        self._end = end
        self._count = count
        self._base = base
        self._plain = base is None or -_SANE_TIME < base < _SANE_TIME

    def run(self, position: int) -> int:
        """The position behind the last record."""
        count = self._count
        delta = 0
        patience = _FEW if self._plain else count
        shape: _Shape | None = None
        while delta < count:
            before, stop = delta, _of_same_width(delta, count)
            if stop - delta > _FEW and self._plain:
                if shape is None:
                    shape = _shape(self._body, position, delta)
                if shape is not None:
                    position, delta = self._regular(position, delta, stop, shape)
                    shape = _next(shape, delta) if delta == stop else None
            if delta - before >= _FEW:
                patience = _FEW
                continue
            # Of no regular kind: it is tried again when some are behind us.
            shape = None
            stop = min(count, delta + patience)
            position = self._one_by_one(position, delta, stop)
            delta = stop
            patience = min(_MOST_ONE_BY_ONE, patience * 2)
        return position

    def _regular(self, position: int, delta: int, stop: int, shape: _Shape) -> tuple[int, int]:
        """As far as the records are of this shape, but not beyond `stop`: the position and the offset there."""
        before, most = delta, _FIRST_RUN
        while shape.fixed:
            found = self._run(position, delta, min(stop, delta + most), shape)
            position += found * shape.size
            delta += found
            if found < most:
                break
            most *= 8
        return (position, delta) if delta - before >= _FEW else self._hops(position, delta, stop, shape)

    # -- column by column ---------------------------------------------------------------------------------------------

    def _run(self, position: int, delta: int, stop: int, shape: _Shape) -> int:
        """How many of the records from `position` on are of this shape and size.

        What is not alike is seen in the first columns, and the others are as much shorter.
        """
        body, stride = self._body, shape.size
        count = min(stop - delta, (self._end - position) // stride)
        for at, byte in shape.fixed:
            if not count:
                return 0
            column = body[position + at : position + count * stride : stride]
            if column != byte * count:
                count -= len(column.lstrip(byte))
        end = position + count * stride
        position += shape.size_width + 1
        last = position + shape.time_width - 1
        column = body[last:end:stride]
        if not column.isascii():
            count = _only(column, _GOES_ON, count)
        for at in range(position, last):
            count = _only(body[at:end:stride], _ENDS, count)
        for at, expected in enumerate(_columns()[shape.offset_width], last + 1):
            if body[at:end:stride][:count] != expected[delta : delta + count]:
                return 0
        return count

    # -- hopping ------------------------------------------------------------------------------------------------------

    def _hops(self, position: int, delta: int, stop: int, shape: _Shape) -> tuple[int, int]:
        """As `_regular`, of whatever size they are, and not very many of them."""
        if shape.size_width > _MOST_SIZE_WIDTH or shape.time_width > _MOST_TIME_WIDTH:
            return position, delta
        stop = min(stop, delta + _MOST_HOPS)
        hop = self._hop_with_headers if len(shape.names) > 1 or shape.names[0] != b"\0" else self._hop
        position, found = hop(position, delta, stop, shape)
        if position > self._end:
            raise InvalidRecord("a record is longer than its batch")
        return position, delta + found

    def _hop(self, position: int, delta: int, stop: int, shape: _Shape) -> tuple[int, int]:
        """The position behind as many of the records as are of this shape, and how many. None of them has headers."""
        body, two_bytes, fields, sizes = self._body, _U16.unpack_from, _fields(), _sizes(shape.size_width)
        head, key_at, keys, third, mask, right = _tables(shape, delta)
        numbers = _numbers(shape, delta, stop)
        number = 0
        try:
            for number in numbers:
                size, time, offset, key = head(body, position)
                end = position + sizes[size]
                if offset != number or time & mask != right:
                    return position, bisect_left(numbers, number)
                at = position + key_at + keys[key ^ third]
                at += fields[two_bytes(body, at)[0]]
                if at + 1 != end or body[at]:
                    return position, bisect_left(numbers, number)
                position = end
        except (struct.error, IndexError):  # they end here, or what is here is no record
            return position, bisect_left(numbers, number)
        return position, stop - delta

    def _hop_with_headers(self, position: int, delta: int, stop: int, shape: _Shape) -> tuple[int, int]:
        """As `_hop`, of records that have the same headers with whatever values."""
        body, two_bytes, fields, sizes = self._body, _U16.unpack_from, _fields(), _sizes(shape.size_width)
        head, key_at, keys, third, mask, right = _tables(shape, delta)
        numbers = _numbers(shape, delta, stop)
        names = [(name, len(name)) for name in shape.names]
        number = 0
        try:
            for number in numbers:
                size, time, offset, key = head(body, position)
                if offset != number or time & mask != right:
                    return position, bisect_left(numbers, number)
                at = position + key_at + keys[key ^ third]
                at += fields[two_bytes(body, at)[0]]
                for name, width in names:
                    if body[at : at + width] != name:
                        return position, bisect_left(numbers, number)
                    at += width
                    at += fields[two_bytes(body, at)[0]]
                if at != position + sizes[size]:
                    return position, bisect_left(numbers, number)
                position = at
        except (struct.error, IndexError):
            return position, bisect_left(numbers, number)
        return position, stop - delta

    # -- one by one ---------------------------------------------------------------------------------------------------

    def _one_by_one(self, position: int, delta: int, stop: int) -> int:
        """The position behind records `delta` to `stop`; raises at the first that is none."""
        body, plain, room = self._body, self._plain, self._end
        for expected in range(2 * delta, 2 * stop, 2):  # offsets, as zigzag numbers
            number = body[position]
            if number < 0x80:
                position += 1
            elif body[position + 1] < 0x80:
                number = number & 0x7F | body[position + 1] << 7
                position += 2
            else:
                number, position = _number(body, position)
            end = position + (number >> 1)
            if number & 1 or end > room:
                raise InvalidRecord("a record is longer than its batch")
            position += 1
            if plain and body[position] < 0x80:
                position += 1
            elif plain and body[position + 1] < 0x80:
                position += 2
            else:
                position = self._time(position)
            number = body[position]
            if number < 0x80:
                position += 1
            elif body[position + 1] < 0x80:
                number = number & 0x7F | body[position + 1] << 7
                position += 2
            else:
                number, position = _number(body, position)
            if number != expected:
                raise InvalidRecord("the offsets of the records do not count up from 0 by one")
            for _ in _KEY_AND_VALUE:
                number = body[position]
                if number < 0x80:
                    position += 1
                elif body[position + 1] < 0x80:
                    number = number & 0x7F | body[position + 1] << 7
                    position += 2
                else:
                    number, position = _number(body, position)
                if not number & 1:
                    position += number >> 1
                elif number != 1:
                    raise InvalidRecord("a record's field has a length below -1")
            if position + 1 == end and not body[position]:
                position = end
            else:
                position = _headers(body, position, end)
        return position

    def _time(self, position: int) -> int:
        number, position = _number(self._body, position, 10)
        delta = (number >> 1) ^ -(number & 1)
        if self._base is not None and not -(2**63) <= self._base + delta < 2**63:
            raise InvalidRecord("a record's timestamp has more than 64 bits")
        return position


def _number(body: Body, position: int, most: int = 5) -> tuple[int, int]:
    """A varint as it is written, without the zigzag."""
    result = shift = 0
    for _ in range(most):
        byte = body[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result >= 1 << (32 if most == 5 else 64):
                break
            return result, position
        shift += 7
    raise InvalidRecord("a number in a record is too long")


def _field(body: Body, position: int) -> int:
    """The position behind a field that may be none."""
    number, position = _number(body, position)
    if number == 1:
        return position
    if number & 1:
        raise InvalidRecord("a record's field has a length below -1")
    return position + (number >> 1)


def _headers(body: Body, position: int, end: int) -> int:
    """`end`, if the record's headers end there."""
    count, position = _number(body, position)
    if count & 1 or count >> 1 > end - position:
        raise InvalidRecord("a record has an impossible number of headers")
    for _ in range(count >> 1):
        size, position = _number(body, position)
        after = position + (size >> 1)
        if size & 1 or after > end:
            raise InvalidRecord("a record header has no name")
        name = body[position:after]
        if not name.isascii():
            _check_text(name)
        position = _field(body, after)
        if position > end:
            break
    if position != end:
        raise InvalidRecord("a record's length does not match its content")
    return end


def _check_text(name: Body) -> None:
    try:
        name.decode()
    except UnicodeDecodeError as error:
        raise InvalidRecord("a record header has a name that is not text") from error


# -- shapes ------------------------------------------------------------------------------------------------------------


def _of_same_width(delta: int, count: int) -> int:
    """Up to where the offsets from `delta` on are written in as many bytes, of which the third is the same."""
    return min(count, _TWO if delta < _TWO else (delta // _THREE + 1) * _THREE)


def _shape(body: Body, start: int, delta: int) -> _Shape | None:
    """Of the record at `start`: its lengths add up, its time and offset are not looked at. None if it is one that is
    better looked at alone."""
    size, attributes_at = _number(body, start)
    end = attributes_at + (size >> 1)
    time_at = attributes_at + 1
    offset_at = _behind(body, time_at)
    key_at = _behind(body, offset_at)
    size_width, time_width, offset_width = attributes_at - start, offset_at - time_at, key_at - offset_at
    if size & 1 or time_width > 5 or offset_width != _width(delta):
        return None
    value_at = _field(body, key_at)
    headers_at = _field(body, value_at)
    places = [*range(start, attributes_at), *range(key_at, _behind(body, key_at))]
    places += range(value_at, _behind(body, value_at))
    names: tuple[bytes, ...] = (b"\0",)
    if headers_at + 1 == end and not body[headers_at]:
        places.append(headers_at)
    elif headers_at < end:
        names = _names(body, headers_at, end, places)
    if headers_at >= end or not names:
        return None
    fixed = tuple([(at - start, _BYTES[body[at]]) for at in places]) if len(places) <= _MOST_FIXED else ()
    return _Shape(end - start, size_width, time_width, offset_width, fixed, names)


def _names(body: Body, start: int, end: int, places: list[int]) -> tuple[bytes, ...]:
    """Of the headers from `start` to `end`; what stays the same in records with these is added to `places`. None if
    that is much."""
    count, position = _number(body, start)
    if count > 2 * _MOST_NAMES:
        return ()
    _headers(body, start, end)
    names = []
    for _ in range(count >> 1):
        value_at = _field(body, position)
        if len(places) + value_at - start > _MOST_NAMES_BYTES:
            return ()
        position = _field(body, value_at)
        names.append(bytes(body[start:value_at]))
        places += range(start, _behind(body, value_at))
        start = position
    return tuple(names)


def _next(shape: _Shape, delta: int) -> _Shape | None:
    """That of the record with this offset, if it is like the one before it: the offset may be a byte longer."""
    if shape.offset_width == _width(delta):
        return shape
    number = 2 * (shape.size + 1 - shape.size_width)
    size = bytes(number >> 7 * i & 0x7F | (0x80 if i + 1 < shape.size_width else 0) for i in range(shape.size_width))
    if number >> 7 * shape.size_width:
        return None
    fixed = [(i, size[i : i + 1]) for i in range(shape.size_width)]
    fixed += [(at + 1, byte) for at, byte in shape.fixed[shape.size_width :]]
    return shape._replace(
        size=shape.size + 1, offset_width=shape.offset_width + 1, fixed=tuple(fixed) if shape.fixed else ()
    )


def _width(delta: int) -> int:
    """How many bytes an offset has."""
    return 1 if delta < _TWO else 2 if delta < _THREE else 3


def _behind(body: Body, position: int) -> int:
    """The position behind a number."""
    for at in range(position, position + 10):
        if body[at] < 0x80:
            return at + 1
    raise InvalidRecord("a number in a record is too long")


class _Tables(NamedTuple):
    """What the numbers in front of a record's key are read with."""

    head: Callable[[Body, int], tuple[int, ...]]
    key_at: int
    keys: tuple[int, ...]
    third: int
    mask: int
    right: int


def _tables(shape: _Shape, delta: int) -> _Tables:
    head = _HEADS[shape.size_width, shape.time_width, shape.offset_width]
    key_at = shape.size_width + 1 + shape.time_width + shape.offset_width + 1
    mask, right = (0x80, 0) if shape.time_width == 1 else (0x8080, 0x0080)
    if shape.offset_width < 3:
        return _Tables(head.unpack_from, key_at, _KEYS, 0, mask, right)
    return _Tables(head.unpack_from, key_at, _keys_behind_three(), delta // _THREE, mask, right)


def _numbers(shape: _Shape, delta: int, stop: int) -> array[int]:
    """What the offsets are read as, but for the third byte."""
    first = delta % _THREE
    return _first_two(shape.offset_width)[first : first + stop - delta]


def _only(column: Body, others: bytes, fits: int) -> int:
    """How many rows have none of `others`: a table that has 1 for those."""
    found = column.translate(others).find(1)
    return fits if found < 0 else min(fits, found)
