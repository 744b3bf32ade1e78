"""Server-sent events: one answer that does not end, for clients that cannot do WebSockets.

Each event is one message as JSON. It is acknowledged by POST, with its ack id. A comment every few seconds
shows that the line is alive, to whoever is in between as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waystation.errors import Unavailable, WaystationError
from waystation.protocols.http.transport.problems import problem_of
from waystation.protocols.http.transport.replies import encode_json, stream_head
from waystation.protocols.http.transport.wire import Session, Wire

COMMENT_EVERY_S = 15.0
MAX_STUCK_S = 60.0
"""A client that reads nothing for so long is given up, and what is in flight to it goes to others."""


class EventStream:
    """Takes over a connection, until either side ends it."""

    def __init__(self, session: Session, wire: Wire, date: str) -> None:
        self._session = session
        self._wire = wire
        self._date = date
        self._open = True
        self._whole = True  # no message is half said
        self._said_s = 0.0
        self._read_s = 0.0

    def begin(self) -> None:
        self._wire.write(stream_head(self._date))
        self._session.begin(self)

    @property
    def writable(self) -> bool:
        return self._open and self._wire.writable

    def deliver(self, messages: Sequence[dict[str, Any]]) -> None:
        if self._open:
            parts: list[bytes] = []
            for message in messages:
                parts += (b"event: message\ndata: ", encode_json(message), b"\n\n")
            self._wire.write(b"".join(parts))

    def deliver_part(self, part: bytes, *, first: bool, last: bool) -> None:
        if self._open:
            self._whole = last
            self._wire.write(b"".join((b"event: message\ndata: " if first else b"", part, b"\n\n" if last else b"")))

    def tell(self, kind: str, data: bytes) -> None:
        if self._open:
            self._wire.write(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))

    def finish(self, error: WaystationError) -> None:
        if self._open:
            if self._whole:  # else the client forgets what it has of a message
                self._wire.write(b"event: ceased\ndata: " + encode_json(problem_of(error)) + b"\n\n")
            self._wire.close()

    def received(self, data: bytes) -> bytes:
        """The client has nothing more to say on this connection."""
        return b""

    def filled(self) -> None:
        self._session.filled()

    def drained(self) -> None:
        self._session.drained()

    def lost(self) -> None:
        if self._open:
            self._open = False
            self._session.end()

    def shut(self) -> None:
        self.finish(Unavailable("the broker is stopping; reconnect"))

    def tick(self, now_s: float) -> None:
        if self._wire.writable:
            self._read_s = now_s
            if self._whole and now_s - self._said_s >= COMMENT_EVERY_S:
                self._said_s = now_s
                self._wire.write(b": still here\n\n")
        elif now_s - self._read_s > MAX_STUCK_S:
            self._wire.abort()  # it has stopped reading, or has disconnected without a word
