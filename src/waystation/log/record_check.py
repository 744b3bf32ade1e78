"""Whether the records of a batch are records: the check that a producer's batch passes before it is stored.

A batch that passes is read by every client: the records follow each other to the last byte, there are as many as the
header says, their offsets count up from 0, and the fields of each add up to its length. What `log.batch.parse_records`
refuses is refused here too; and besides it what Java's client or librdkafka would stop at: a length of more than five
bytes, one below -1, offsets with gaps (only the broker itself makes gaps).

It stands on the produce path, so it has three speeds, and what the faster ones cannot say for sure is left to the
slower (figures per record of 100 bytes, CPython 3.11):

- runs of records of one size and one layout are compared column by column: 0.01 to 0.02 µs;
- records without headers whose sizes differ are hopped over, and their first bytes compared as columns: 0.2 µs;
- all others are gone through one by one: 0.6 µs.

Pure, any thread.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from waystation.errors import InvalidRecord
from waystation.log.batch import LOG_APPEND_TIME, Header

MAX_BATCH_RECORDS = 131_072
"""The most records in a batch. More do not fit into Kafka's usual `max.message.bytes` without compression; and a reader
that wants one of them should not have to go through millions."""

_FIRST_RUN = 64
_FIRST_WINDOW, _WINDOW = 32, 512
_FEW = 16
_MOST_ONE_BY_ONE = 4096
_MOST_FIXED = 64
"""Columns that a run may be compared in; records with more of them (many headers) are faster one by one."""

_SANE_TIME = 2**62
"""Times below this have room for any difference of five bytes: no need to add them up."""

# The bytes of the offsets 0, 1, 2, … as zigzag varints, by column. One byte up to 63, two up to 8,191, then three.
_TWO, _THREE = 64, 8192
_LOW = bytes(2 * i for i in range(64)) * (MAX_BATCH_RECORDS // 64)
_LOW_GOES_ON = bytes(2 * i | 0x80 for i in range(64)) * (MAX_BATCH_RECORDS // 64)
_MIDDLE = b"".join(bytes((i,)) * 64 for i in range(128)) * (MAX_BATCH_RECORDS // 8192)
_MIDDLE_GOES_ON = b"".join(bytes((i | 0x80,)) * 64 for i in range(128)) * (MAX_BATCH_RECORDS // 8192)
_HIGH = b"".join(bytes((i,)) * 8192 for i in range(MAX_BATCH_RECORDS // 8192))
_OFFSETS = ((), (_LOW,), (_LOW_GOES_ON, _MIDDLE), (_LOW_GOES_ON, _MIDDLE_GOES_ON, _HIGH))

# Tables for `bytes.translate`: 1 for the bytes that a column must not have.
_ENDS = bytes(i < 0x80 for i in range(256))
_GOES_ON = bytes(i >= 0x80 for i in range(256))
_ODD_OR_ENDS = bytes(i < 0x80 or i & 1 for i in range(256))
_ODD_OR_GOES_ON = bytes(i >= 0x80 or i & 1 for i in range(256))
_STRIPPED = bytes(i & 0x7F for i in range(256))

_U16 = struct.Struct("<H")


def _hop(number: int) -> int:
    """The bytes of a record whose first two bytes are `number`; 1 where the length has more than two, or is none."""
    first, second = number & 0xFF, number >> 8
    if first < 0x80:
        return 1 if first & 1 else 1 + (first >> 1)
    return 1 if second >= 0x80 or first & 1 else 2 + ((first & 0x7F | second << 7) >> 1)


_HOPS = tuple(_hop(number) for number in range(1 << 16))


class _Layout(NamedTuple):
    """Where the fields of a record are, from its first byte on. What records of the same layout have in common."""

    size: int
    size_width: int
    time_width: int
    offset_width: int
    key_end: int
    value_width: int  # of the length of the value; 0: it has none
    headers: bool
    fixed: tuple[tuple[int, int], ...]  # (place, byte): the lengths, the names of headers


def check_records(body: bytes, header: Header) -> None:
    """InvalidRecord unless `body` is exactly the records that the header says, uncompressed."""
    count = header.record_count
    if count > MAX_BATCH_RECORDS:
        raise InvalidRecord(f"{count} records in a batch; at most {MAX_BATCH_RECORDS} are taken")
    base = None if header.attributes & LOG_APPEND_TIME else header.base_timestamp
    try:
        position = _Check(body, count, base).run()
    except IndexError as error:
        raise InvalidRecord("the last record ends in the middle") from error
    if position != len(body):
        raise InvalidRecord("the batch has bytes after its last record")


class _Check:
    """One batch's. `base`: what times are added to; None if they do not count."""

    __slots__ = ("_base", "_body", "_count", "_plain")

    def __init__(self, body: bytes, count: int, base: int | None) -> None:
        self._body = body
        self._count = count
        self._base = base
        self._plain = base is None or -_SANE_TIME < base < _SANE_TIME

    def run(self) -> int:
        """The position behind the last record."""
        count = self._count
        position = delta = 0
        patience = _FEW
        while delta < count:
            start = position
            position = self._one_by_one(position, delta, delta + 1)
            delta += 1
            alike = _of_same_width(delta, count)
            layout = _layout(self._body, start, delta - 1) if self._plain and alike >= _FEW else None
            if layout is not None:
                before = delta
                position, delta = self._regular(start, position, delta, alike, layout)
                if delta - before >= _FIRST_WINDOW:
                    patience = _FEW
                    continue
            # Of no regular kind: it is tried again when some are behind us.
            stop = min(count, delta + patience)
            position = self._one_by_one(position, delta, stop)
            delta = stop
            patience = min(_MOST_ONE_BY_ONE, patience * 2)
        return position

    def _regular(self, start: int, position: int, delta: int, alike: int, layout: _Layout) -> tuple[int, int]:
        """As far as the records from `position` on are like the one at `start`: the position and the offset there."""
        before, end = delta, delta + alike
        some = _FIRST_RUN
        if _seem_alike(self._body, start, layout):
            while True:
                some = min(some, end - delta, (len(self._body) - position) // layout.size)
                if some >= _FEW and self._is_run(position, delta, some, layout):
                    position += some * layout.size
                    delta += some
                    some *= 4
                elif some < 4 * _FEW:
                    break
                else:
                    some //= 4
        if delta > before or layout.headers or not layout.value_width:
            return position, delta
        some = _FIRST_WINDOW
        while end - delta >= _FEW:
            some = min(some, end - delta)
            position, found = self._window(position, delta, some, layout)
            delta += found
            if found < some:
                break
            some = min(_WINDOW, some * 4)
        return position, delta

    # -- column by column ---------------------------------------------------------------------------------------------

    def _is_run(self, position: int, delta: int, count: int, layout: _Layout) -> bool:
        """Whether the next `count` records are all of this layout and size."""
        body, stride = self._body, layout.size
        end = position + count * stride
        for at, byte in layout.fixed:
            if body[position + at : end : stride] != bytes((byte,)) * count:
                return False
        at = position + layout.size_width + 1
        if _varints([body[at + i : end : stride] for i in range(layout.time_width)], count) < count:
            return False
        at += layout.time_width
        return all(
            body[at + i : end : stride] == expected[delta : delta + count]
            for i, expected in enumerate(_OFFSETS[layout.offset_width])
        )

    def _window(self, position: int, delta: int, count: int, layout: _Layout) -> tuple[int, int]:
        """How many of the next `count` records are of this layout but for their sizes, and the position behind them.

        Each record's first bytes are taken with the byte before them, which is the last record's number of headers.
        """
        body, hops, two_bytes = self._body, _HOPS, _U16.unpack_from
        if layout.size_width > 2 or layout.value_width > 2 or layout.key_end > _MOST_FIXED:
            return position, 0
        start, ahead = position, layout.key_end + layout.value_width
        heads: list[bytes] = []
        add = heads.append
        try:
            for _ in range(count):
                add(body[position - 1 : position + ahead])
                position += hops[two_bytes(body, position)[0]]
        except struct.error:  # there are fewer, or what is there are none
            return start, 0
        if position > len(body):
            return start, 0
        add(body[position - 1 : position] + bytes(ahead))  # for the number of headers of the last one
        found = _alike(b"".join(heads), delta, count, layout)
        if found < count:
            position = start
            for _ in range(found):
                position += hops[two_bytes(body, position)[0]]
        return position, found

    # -- one by one ---------------------------------------------------------------------------------------------------

    def _one_by_one(self, position: int, delta: int, stop: int) -> int:
        """The position behind records `delta` to `stop`; raises at the first that is none."""
        body, plain = self._body, self._plain
        room = len(body)
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
            if body[position] == 1:
                position += 1
            else:
                position = _field(body, position)
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


def _number(body: bytes, position: int, most: int = 5) -> tuple[int, int]:
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


def _field(body: bytes, position: int) -> int:
    """The position behind a field that may be none."""
    number, position = _number(body, position)
    if number == 1:
        return position
    if number & 1:
        raise InvalidRecord("a record's field has a length below -1")
    return position + (number >> 1)


def _headers(body: bytes, position: int, end: int) -> int:
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


def _check_text(name: bytes) -> None:
    try:
        name.decode()
    except UnicodeDecodeError as error:
        raise InvalidRecord("a record header has a name that is not text") from error


# -- layouts -----------------------------------------------------------------------------------------------------------


def _of_same_width(delta: int, count: int) -> int:
    """How many of the offsets from `delta` on are written in as many bytes."""
    return (min(count, _TWO) if delta < _TWO else min(count, _THREE) if delta < _THREE else count) - delta


def _seem_alike(body: bytes, start: int, layout: _Layout) -> bool:
    """Whether the two records behind this one seem to be as long."""
    size, stride = body[start : start + layout.size_width], layout.size
    second = start + stride
    third = second + stride
    return size == body[second : second + layout.size_width] == body[third : third + layout.size_width]


def _layout(body: bytes, start: int, delta: int) -> _Layout | None:
    """Of the record at `start`, which has been checked; None if it is one that is better looked at alone."""
    fixed: list[tuple[int, int]] = []

    def number(position: int) -> tuple[int, int]:
        found, after = _number(body, position)
        fixed.extend((at - start, body[at]) for at in range(position, after))
        return found, after

    size, position = number(start)
    size_width = position - start
    end = position + (size >> 1)
    _, after = _number(body, position + 1, 10)
    time_width = after - position - 1
    _, position = _number(body, after)
    offset_width = position - after
    if time_width > 5 or offset_width != (1 if delta < _TWO else 2 if delta < _THREE else 3):
        return None
    length, position = number(position)
    key_end = position + (0 if length == 1 else length >> 1) - start
    length, position = number(start + key_end)
    value_width = 0 if length == 1 else position - start - key_end
    position += 0 if length == 1 else length >> 1
    count, position = number(position)
    if count > _MOST_FIXED:
        return None
    for _ in range(count >> 1):
        length, after = number(position)
        position = after + (length >> 1)
        fixed.extend((at - start, body[at]) for at in range(after, position))
        length, position = number(position)
        position += 0 if length == 1 else length >> 1
    if len(fixed) > _MOST_FIXED:
        return None
    return _Layout(end - start, size_width, time_width, offset_width, key_end, value_width, count > 0, tuple(fixed))


# -- columns -----------------------------------------------------------------------------------------------------------


def _alike(heads: bytes, delta: int, count: int, layout: _Layout) -> int:
    """Of how many records, from the first on, these are the first bytes: one layout, sizes that fit, offsets in order.

    A row is a record's first bytes behind the last byte of the record before it; one more row has only that.
    """
    width = 1 + layout.key_end + layout.value_width
    if len(heads) != width * (count + 1):
        return 0
    fits = count
    ends = heads[width::width]
    if ends.strip(b"\0"):
        fits = len(ends) - len(ends.lstrip(b"\0"))
    heads = heads[: fits * width]
    at = 1 + layout.size_width + 1
    times = [heads[at + i :: width] for i in range(layout.time_width)]
    at += layout.time_width
    for i, expected in enumerate(_OFFSETS[layout.offset_width]):
        fits = _equal(heads[at + i :: width], expected[delta : delta + fits], fits)
    at += layout.offset_width
    for place, byte in layout.fixed:
        if at <= place + 1 <= layout.key_end:
            fits = _equal(heads[place + 1 :: width], bytes((byte,)) * fits, fits)
    sizes = [heads[1 + i :: width] for i in range(layout.size_width)]
    values = [heads[1 + layout.key_end + i :: width] for i in range(layout.value_width)]
    fits = _sizes(sizes, _sizes(values, _varints(times, fits)))
    # What is in a record beside its value is the same for all of them: the sizes differ as the values do.
    beside = 2 * (layout.key_end - layout.size_width + layout.value_width + 1)
    ones = int.from_bytes(b"\1\0\0\0" * len(sizes[0]), "little")
    return _first(_lanes(sizes) ^ (_lanes(values) + beside * ones), 32, fits)


def _first(differences: int, bits: int, fits: int) -> int:
    """The number of the first lane with a difference; `fits` if there is none before that."""
    return min(fits, ((differences & -differences).bit_length() - 1) // bits) if differences else fits


def _equal(column: bytes, expected: bytes, fits: int) -> int:
    column = column[:fits]
    if column == expected[:fits]:
        return fits
    return _first(int.from_bytes(column, "little") ^ int.from_bytes(expected[:fits], "little"), 8, fits)


def _only(column: bytes, others: bytes, fits: int) -> int:
    """How many rows have none of `others`: a table that has 1 for those."""
    found = column.translate(others).find(1)
    return fits if found < 0 else min(fits, found)


def _varints(columns: list[bytes], fits: int) -> int:
    """How many rows are one number, of as many bytes as there are columns."""
    for column in columns[:-1]:
        fits = _only(column, _ENDS, fits)
    return fits if columns[-1].isascii() else _only(columns[-1], _GOES_ON, fits)


def _sizes(columns: list[bytes], fits: int) -> int:
    """How many rows are one number that is not negative."""
    if len(columns) == 1:
        return _only(columns[0], _ODD_OR_GOES_ON, fits)
    return _only(columns[1], _GOES_ON, _only(columns[0], _ODD_OR_ENDS, fits))


def _lanes(columns: list[bytes]) -> int:
    """Rows of numbers as one number with 32 bits for each: they are compared and added all at once."""
    total = 0
    for i, column in enumerate(columns):
        lanes = bytearray(4 * len(column))
        lanes[::4] = column.translate(_STRIPPED)
        total += int.from_bytes(lanes, "little") << 7 * i
    return total
