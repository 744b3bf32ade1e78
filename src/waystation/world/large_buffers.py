"""Memory for what is large and arrives bit by bit: requests, frames and bodies of megabytes.

The allocator's own memory would be touched as a whole when it is asked for, moved as a whole when it has to grow, and
given back as a whole at a moment of the allocator's choice: of 50 MiB each takes tens of milliseconds of the loop's
time. A large buffer is a mapping of its own. It has the announced size at once and takes memory as far as bytes have
arrived; it never moves; and it can be given back a part at a time.

Fresh memory has its price (about half a millisecond for a megabyte), so what is not large stays with the allocator,
which uses the same memory again.

Used by the engines of protocols, on the loop's thread.
"""

from __future__ import annotations

import mmap
import sys
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waystation.world.long_work import LongWork

LARGE_BYTES = 1024 * 1024
"""What is larger has a mapping of its own."""

FIRST_BYTES = 256 * 1024
"""Of a body have come before it gets such a buffer, whatever it announces: most that announce much are short."""

FREED_AT_ONCE = 2 * 1024 * 1024
"""Bytes that are given back in one step: a quarter of a millisecond."""

Buffer = bytearray | mmap.mmap


def buffer_of(size: int) -> Buffer:
    """Room for so many bytes, all zero."""
    if size <= LARGE_BYTES:
        return bytearray(size)
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Body:
    """Bytes that come piece by piece, `announced` of them at most."""

    __slots__ = ("_announced", "_buffer", "_size")

    def __init__(self, announced: int) -> None:
        self._announced = announced
        self._buffer: Buffer = bytearray()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, piece: bytes) -> None:
        size = self._size + len(piece)
        if isinstance(self._buffer, bytearray) and size > FIRST_BYTES and self._announced > LARGE_BYTES:
            larger = buffer_of(self._announced)
            larger[: self._size] = self._buffer
            self._buffer = larger
        if isinstance(self._buffer, bytearray):
            self._buffer += piece
        else:
            self._buffer[self._size : size] = piece
        self._size = size

    def whole(self) -> bytes:
        """All that has come."""
        return bytes(memoryview(self._buffer)[: self._size])

    @property
    def large(self) -> Iterable[mmap.mmap]:
        """For whoever gives it back."""
        return (self._buffer,) if isinstance(self._buffer, mmap.mmap) else ()


class LettingGo:
    """Gives large buffers back, a part at a time, in the line of long work: a hundred clients that go at once, each
    with megabytes, would stop everybody else otherwise. Constructed once per broker, beside the line."""

    def __init__(self, long_work: LongWork) -> None:
        self._long_work = long_work
        self._left: deque[mmap.mmap] = deque()

    def __len__(self) -> int:
        """Bytes that are still to be given back."""
        return sum(map(len, self._left))

    def add(self, buffers: Iterable[mmap.mmap]) -> None:
        """Nobody needs these any more; the caller drops its own references."""
        waiting = bool(self._left)
        self._left.extend(buffers)
        if self._left and not waiting:
            self._long_work.then(self._step)

    def _step(self) -> None:
        buffer = self._left[0]
        left = len(buffer) - FREED_AT_ONCE
        if left <= 0 or not _cut(buffer, left):
            self._left.popleft()
        if self._left:
            self._long_work.then(self._step)


def _cut(buffer: mmap.mmap, size: int) -> bool:
    """Gives back what is behind `size`. False: somebody has a view of it still, and it goes as a whole with that."""
    try:
        buffer.resize(size)
    except (BufferError, OSError, SystemError):  # or this system has no such call
        return False
    return True
