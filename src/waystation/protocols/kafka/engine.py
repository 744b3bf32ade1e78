"""The Kafka protocol's framing, sans I/O: bytes in, requests out, answers in order.

The peer's bytes are received straight into the engine's buffer (`buffer`, `received`), so a large produce request is
copied once, by the kernel. The buffer grows with what has really arrived; a request that says it has more than a
megabyte gets room for all of it at once, in memory that is taken as it arrives (`world/large_buffers.py`).
A request that `next_request` returns is a view into the buffer and is valid until the next call of `received`.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from typing import NamedTuple

from waystation.wire.kafka_types import Malformed, Reader
from waystation.world.large_buffers import LARGE_BYTES, Buffer, buffer_of

FIRST_BUFFER = 8 * 1024
KEPT_BUFFER = 4 * 1024 * 1024
"""A buffer that grew beyond this is given back when it is empty."""

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")
_CORRELATION = struct.Struct(">ii")


class Request(NamedTuple):
    """One frame, its header opened."""

    api_key: int
    version: int
    correlation_id: int
    frame: memoryview  # behind the eight bytes that are above
    end: int  # where the frame ends in the buffer that it is a view into

    def body(self, flexible: bool) -> tuple[str | None, memoryview]:
        """(client id, body): what follows the header depends on whether the version is a flexible one."""
        reader = Reader(self.frame, compact=False)
        client_id = reader.nullable_string()
        if flexible:
            reader.compact = True
            reader.tags()
        return client_id, self.frame[reader.position :]


_OTHER_PROTOCOLS = {
    **dict.fromkeys((b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"PATC", b"OPTI"), "HTTP"),
    b"AMQP": "AMQP",
}


def _other_protocol(first: bytes) -> str:
    """What a client speaks that came to the wrong port, by its first bytes, which would be the size of a request."""
    if first[:2] == b"\x16\x03":
        return "the client speaks TLS; this listener does not: have it connect with security.protocol=PLAINTEXT"
    name = _OTHER_PROTOCOLS.get(first)
    return f"the client speaks {name}, not Kafka's protocol: have it connect to the {name} listener" if name else ""


class Engine:
    """One connection's."""

    __slots__ = ("_buffer", "_end", "_max_request", "_start", "awaited", "blocked")

    def __init__(self, max_request: int) -> None:
        self._max_request = max_request
        self._buffer: Buffer = bytearray(FIRST_BUFFER)
        self._start = 0
        self._end = 0
        self.awaited = 0  # bytes of the request that has begun to arrive, as it says itself
        self.blocked = False  # the next request is here, and is not the one that may be looked at

    def allow(self, max_request: int) -> None:
        """From now on requests may be this large."""
        self._max_request = max_request

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

    def _make_room(self) -> None:
        """Moves what is unread to the front, of a buffer twice as large if it already fills this one."""
        unread = self._end - self._start
        size = len(self._buffer)
        if unread > size // 2:
            size *= 2
            if self.awaited > LARGE_BYTES:
                size = max(self.awaited, len(self._buffer) + FIRST_BUFFER)
            elif unread >= 4:
                size = min(size, max(self._frame_size() + 4, len(self._buffer) + FIRST_BUFFER))
        larger = buffer_of(size)
        larger[:unread] = memoryview(self._buffer)[self._start : self._end]
        self._buffer = larger
        self._start, self._end = 0, unread

    def _frame_size(self) -> int:
        return int(_SIZE.unpack_from(self._buffer, self._start)[0])

    def next_request(self, only: int | None = None) -> Request | None:
        """The next whole request, or None until more bytes come. Malformed if this is not the Kafka protocol.

        `only`: of this API alone; one of another stays where it is (`blocked`)."""
        self.awaited = 0
        self.blocked = False
        unread = self._end - self._start
        if unread < 4:
            return None
        size = self._frame_size()
        if not 8 <= size <= self._max_request:
            raise Malformed(
                _other_protocol(bytes(self._buffer[self._start : self._start + 4]))
                or f"a request of {size} bytes; 8 to {self._max_request} are allowed (socket.request.max.bytes). Does"
                " the client speak Kafka's protocol?"
            )
        if unread < 4 + size:
            self.awaited = 4 + size
            return None
        start = self._start + 4
        api_key, version, correlation_id = _HEADER.unpack_from(self._buffer, start)
        if only is not None and api_key != only:
            self.blocked = True
            return None
        self._start = start + size
        return Request(
            api_key, version, correlation_id, memoryview(self._buffer)[start + 8 : start + size], start + size
        )

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


def response_head(correlation_id: int, flexible: bool, body_size: int) -> bytes:
    """Size, correlation id, and the empty tagged fields of a flexible header."""
    if flexible:
        return _CORRELATION.pack(body_size + 5, correlation_id) + b"\0"
    return _CORRELATION.pack(body_size + 4, correlation_id)
