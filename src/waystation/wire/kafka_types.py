"""Kafka's primitive types, read by hand for the two hot APIs. Both encodings: classic, and compact (KIP-482)."""

from __future__ import annotations

import struct
from uuid import UUID

from waystation.errors import Invalid

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")

MAX_ARRAY = 200_000
"""No request has more elements than this; a larger count is a mistake or an attack, and is refused before any work."""


MAX_TAGS = 100
"""Tagged fields of one structure. The protocol has a handful of them in all."""


class Malformed(Invalid):
    """The peer sent bytes that are not a message of the protocol: the connection cannot go on."""


class Reader:
    """Walks through a request's bytes. Every method raises Malformed rather than read beyond the end.

    `most`: elements of all arrays together, and tagged fields, each of which costs more than its bytes. An answer of a
    broker that is trusted has no such limit.
    """

    __slots__ = ("_data", "_elements", "_most", "compact", "position")

    def __init__(self, data: bytes | memoryview, compact: bool, most: int | None = None) -> None:
        self._data = memoryview(data)
        self._most = most
        self._elements = 0
        self.compact = compact
        self.position = 0

    def i8(self) -> int:
        return self._unpack(_I8)

    def i16(self) -> int:
        return self._unpack(_I16)

    def i32(self) -> int:
        return self._unpack(_I32)

    def i64(self) -> int:
        return self._unpack(_I64)

    def _unpack(self, kind: struct.Struct) -> int:
        position = self.position
        self.position = position + kind.size
        try:
            return int(kind.unpack_from(self._data, position)[0])
        except struct.error:
            raise Malformed("the request ends in the middle of a number") from None

    def unpack(self, kind: struct.Struct) -> tuple[int, ...]:
        """Several numbers at once."""
        position = self.position
        self.position = position + kind.size
        try:
            return kind.unpack_from(self._data, position)
        except struct.error:
            raise Malformed("the request ends in the middle of a number") from None

    def uvarint(self) -> int:
        result = shift = 0
        data = self._data
        while True:
            if self.position >= len(data) or shift > 28:
                raise Malformed("a variable-length number does not end")
            byte = data[self.position]
            self.position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7

    def size(self, short: bool) -> int:
        """A length or a count: -1 for null. Classic strings count in 16 bits, all else in 32."""
        if self.compact:
            return self.uvarint() - 1
        return self.i16() if short else self.i32()

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return len(self._data) - self.position

    def take(self, size: int) -> memoryview:
        start = self.position
        end = start + size
        if size < 0 or end > len(self._data):
            raise Malformed("a field is longer than its request")
        self.position = end
        return self._data[start:end]

    def nullable_string(self) -> str | None:
        size = self.size(short=True)
        if size < 0:
            return None
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise Malformed("a string is not UTF-8") from None

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise Malformed("a string that must be there is null")
        return value

    def nullable_bytes(self) -> memoryview | None:
        size = self.size(short=False)
        return None if size < 0 else self.take(size)

    def array(self) -> int:
        """How many elements follow; a null array counts as empty."""
        count = self.size(short=False)
        if count > MAX_ARRAY or count > len(self._data) - self.position:
            raise Malformed(f"an array of {count} elements in a request of {len(self._data)} bytes")
        return self._counted(max(0, count))

    def _counted(self, count: int) -> int:
        self._elements += count
        if self._most is not None and self._elements > self._most:
            raise Malformed(f"more than {self._most} elements in a request of {len(self._data)} bytes")
        return count

    def uuid(self) -> UUID:
        return UUID(bytes=bytes(self.take(16)))

    def tags(self) -> None:
        """Skips tagged fields; we use none in the hot requests."""
        if self.compact:
            for _ in range(self.tag_count()):
                self.uvarint()
                self.take(self.uvarint())

    def tag_count(self) -> int:
        """How many tagged fields follow."""
        count = self.uvarint()
        if count > MAX_TAGS:
            raise Malformed(f"{count} tagged fields in one structure")
        return self._counted(count)


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def write_array(out: bytearray, count: int, compact: bool) -> None:
    if compact:
        write_uvarint(out, count + 1)
    else:
        out += _I32.pack(count)


def write_string(out: bytearray, value: str, compact: bool) -> None:
    data = value.encode()
    if compact:
        write_uvarint(out, len(data) + 1)
    else:
        out += _I16.pack(len(data))
    out += data


def write_nullable_string(out: bytearray, value: str | None, compact: bool) -> None:
    if value is not None:
        write_string(out, value, compact)
    elif compact:
        out.append(0)
    else:
        out += b"\xff\xff"
