"""A whole file, sealed in pieces: for snapshots, which are written piece by piece and read at once or in parts.

    magic "WSX1" · pieces: u32 length of what follows, then sealed bytes

Each piece is bound to its place in the file (associated data): pieces cannot be left out in the middle, or change
places. That the end is there is for the content to tell; a snapshot has an end piece.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from waystation.encryption.key_ring import OVERHEAD, PREFIX_SIZE, DataKey, KeyRing, NotOpened

if TYPE_CHECKING:
    from waystation.world.disk import File

MAGIC = b"WSX1"
PIECE_BYTES = 1024 * 1024
"""Of a file that is there whole when it is sealed."""
LARGEST_PIECE = 2**31
_LENGTH = struct.Struct(">I")


def _associated(number: int) -> bytes:
    return b"waystation: piece %d of a file" % number


class SealedWriter:
    """Of one file, from its beginning."""

    def __init__(self, keys: KeyRing) -> None:
        self._key: DataKey = keys.new_data_key()
        self._count = 0

    def piece(self, parts: Sequence[bytes]) -> list[bytes]:
        """What to write, behind all before it."""
        prefix, sealed = self._key.seal(b"".join(parts), _associated(self._count))
        begin = [] if self._count else [MAGIC]
        self._count += 1
        return [*begin, _LENGTH.pack(PREFIX_SIZE + len(sealed)), prefix, sealed]


def sealed_whole(keys: KeyRing, data: bytes) -> bytes:
    writer = SealedWriter(keys)
    starts = range(0, max(1, len(data)), PIECE_BYTES)
    return b"".join(b"".join(writer.piece([data[start : start + PIECE_BYTES]])) for start in starts)


def is_sealed(data: bytes) -> bool:
    return data[: len(MAGIC)] == MAGIC


def opened_whole(keys: KeyRing | None, data: bytes) -> bytes:
    """The content of a file; one that is not sealed is what it is. NotOpened, UnknownKey."""
    if not is_sealed(data):
        return data
    if keys is None:
        raise NotOpened("it is encrypted, and there is no key")
    view = memoryview(data)
    found: list[bytes] = []
    position = len(MAGIC)
    while position < len(data):
        if position + _LENGTH.size > len(data):
            raise NotOpened("it ends in the middle")
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        found.append(keys.open(view[position : position + length], _associated(len(found))))
        position += length
    return b"".join(found)


def read_opened(keys: KeyRing | None, file: File, size: int, position: int) -> tuple[int, bytes]:
    """(how large the content is, the bytes from `position` on), of a file that may be sealed. Only the pieces that are
    asked for are read. NotOpened, UnknownKey."""
    if file.read(len(MAGIC), 0) != MAGIC:
        return file.size(), file.read(size, position)
    if keys is None:
        raise NotOpened("it is encrypted, and there is no key")
    found: list[bytes] = []
    begin = 0
    for number, (at, length) in enumerate(_pieces(file)):
        end = begin + length - OVERHEAD
        if begin < position + size and position < end:
            opened = keys.open(file.read(length, at), _associated(number))
            found.append(opened[max(0, position - begin) : position + size - begin])
        begin = end
    return begin, b"".join(found)


def _pieces(file: File) -> Iterator[tuple[int, int]]:
    position, end = len(MAGIC), file.size()
    while position < end:
        head = file.read(_LENGTH.size, position)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
        if not OVERHEAD <= length <= min(LARGEST_PIECE, end - position - _LENGTH.size):
            raise NotOpened("it ends in the middle")
        yield position + _LENGTH.size, length
        position += _LENGTH.size + length
