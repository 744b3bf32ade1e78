"""Where a connection's bytes arrive, before anybody knows what they mean. Used by both framings' engines.

The buffer grows with what has really arrived, and shrinks when it is empty. Where more than a megabyte is announced
(`expected`), it has room for all of it at once, in memory that is taken as it arrives (`world/large_buffers.py`). One
that a read has filled is twice as large for the next read, up to what every connection has for nothing: who sends many
small requests without waiting gets more of them dealt with as one (of 1 KiB: 60 in a turn of the loop, not 15).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable

from waystation.protocols.budget import FREE_BYTES
from waystation.world.large_buffers import LARGE_BYTES, Buffer, buffer_of

FIRST_BUFFER = 16 * 1024
LARGEST_STEP = 1024 * 1024
KEPT_BUFFER = 1024 * 1024
"""A buffer that grew beyond this is given back when it is empty."""


class Intake:
    """Bytes in by `buffer` and `received`, out by `view` and `drop`. A view is valid until `buffer` is called again."""

    __slots__ = ("_buffer", "_end", "_start", "expected")

    def __init__(self) -> None:
        self._buffer: Buffer = bytearray(FIRST_BUFFER)
        self._start = 0
        self._end = 0
        self.expected = 0  # bytes that are unread when what is arriving has come; 0: nobody knows

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        size = len(self._buffer)
        if self._start == self._end:
            filled = self._end == size
            self._start = self._end = 0
            if size > KEPT_BUFFER:
                self._buffer = bytearray(FIRST_BUFFER)
            elif filled and size < FREE_BYTES:
                self._buffer = bytearray(2 * size)
        elif self._end == size:
            self._make_room()
        return memoryview(self._buffer)[self._end :]

    def received(self, size: int) -> None:
        self._end += size

    def feed(self, data: bytes) -> None:
        """Bytes that came another way than by `buffer`."""
        rest = memoryview(data)
        while rest:
            room = self.buffer()
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            self.received(size)
            rest = rest[size:]

    @property
    def kept(self) -> int:
        """The size of the buffer, however much of it is in use."""
        return len(self._buffer)

    def shrink(self) -> bool:
        """Gives back a buffer that nothing is in. Whether there is nothing in it."""
        if self._start != self._end:
            return False
        self._start = self._end = 0
        self._buffer = bytearray(FIRST_BUFFER)
        return True

    def let_go(self) -> Iterable[mmap.mmap]:
        """The connection is over; what is to be given back a part at a time."""
        former, self._buffer = self._buffer, bytearray(FIRST_BUFFER)
        self._start = self._end = 0
        return (former,) if isinstance(former, mmap.mmap) else ()

    @property
    def unread(self) -> int:
        return self._end - self._start

    def view(self, start: int = 0, size: int | None = None) -> memoryview:
        """Unread bytes from `start` on."""
        begin = self._start + start
        return memoryview(self._buffer)[begin : self._end if size is None else begin + size]

    def find(self, byte: bytes, start: int = 0) -> int:
        """Where in the unread bytes it is, or -1."""
        at = self._buffer.find(byte, self._start + start, self._end)
        return at if at < 0 else at - self._start

    def drop(self, size: int) -> None:
        """The first bytes are read."""
        self._start += size

    def _make_room(self) -> None:
        """Moves what is unread to the front, of a larger buffer if it fills most of this one, or this one is small.
        What has begun to arrive and has room here stays: another buffer would be filled with zeros first."""
        unread = self._end - self._start
        size = len(self._buffer)
        if size < FREE_BYTES and self.expected <= LARGE_BYTES:
            size *= 2
        elif unread > size // 2 and not (self._start and unread < self.expected <= size):
            size += min(size, max(LARGEST_STEP, size // 2))
            if self.expected > LARGE_BYTES:
                size = max(unread + LARGEST_STEP, self.expected)
        target = self._buffer if size == len(self._buffer) else buffer_of(size)
        # By views: what is not a view is copied on its way into a bytearray.
        memoryview(target)[:unread] = memoryview(self._buffer)[self._start : self._end]
        self._buffer = target
        self._start, self._end = 0, unread
