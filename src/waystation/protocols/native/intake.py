"""Where a connection's bytes arrive, before anybody knows what they mean. Used by both framings' engines.

The buffer grows with what has really arrived, never with what a length field claims, and shrinks when it is empty.
"""

from __future__ import annotations

FIRST_BUFFER = 16 * 1024
LARGEST_STEP = 1024 * 1024
KEPT_BUFFER = 1024 * 1024
"""A buffer that grew beyond this is given back when it is empty."""


class Intake:
    """Bytes in by `buffer` and `received`, out by `view` and `drop`. A view is valid until `buffer` is called again."""

    __slots__ = ("_buffer", "_end", "_start")

    def __init__(self) -> None:
        self._buffer = bytearray(FIRST_BUFFER)
        self._start = 0
        self._end = 0

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEPT_BUFFER:
                self._buffer = bytearray(FIRST_BUFFER)
        if self._end == len(self._buffer):
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
        """Moves what is unread to the front, of a larger buffer if it fills most of this one.

        A large one grows where it is, if it can: to copy what has come of a line of 8 MiB, again and again, took
        milliseconds each time.
        """
        unread = self._end - self._start
        size = len(self._buffer)
        if not self._start and size >= LARGEST_STEP and self._grow():
            return
        if unread > size // 2:
            size += min(size, max(LARGEST_STEP, size // 2))
        larger = bytearray(size)
        larger[:unread] = memoryview(self._buffer)[self._start : self._end]
        self._buffer = larger
        self._start, self._end = 0, unread

    def _grow(self) -> bool:
        """False: somebody has a view of it still."""
        try:
            self._buffer += bytes(LARGEST_STEP)
        except BufferError:
            return False
        return True
