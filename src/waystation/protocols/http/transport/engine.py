"""HTTP/1.1 requests without sockets: bytes in, events out.

`Engine.receive` turns what came from a client into whole requests, one after another, and keeps three bounds whatever
the client sends: the size of a request's head, of its target and of its body. What breaks a bound or the protocol
becomes one `Broken` event with the status that says so, and nothing after it is read.

llhttp (through httptools) does the parsing. The connection calls this; nobody else.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable

import httptools
import msgspec

from waystation.world.large_buffers import Body

MAX_TARGET_BYTES = 16 * 1024
"""A percent-encoded queue name of 255 bytes takes 765; a filter expression in a query takes some kilobytes."""
MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
"""A body is in memory as a whole before it is looked at, for every connection at once."""


class Request(msgspec.Struct):
    """A whole request. Header names are in lower case; of a repeated header the values are joined by a comma."""

    method: str
    target: bytes
    headers: dict[str, str]
    keep_alive: bool = True
    chunks: bool = True  # its client understands an answer in chunks: HTTP/1.1
    body: bytes = b""
    websocket: bool = False  # it asks to become one; `rest` is what came behind its head
    rest: bytes = b""


class Expects(msgspec.Struct, frozen=True):
    """The client waits for a word before it sends the body (`Expect: 100-continue`)."""


class Broken(msgspec.Struct, frozen=True):
    """The client cannot be understood: answer with this status, then close."""

    status: int
    detail: str


Event = Request | Expects | Broken


class _Refused(Exception):
    """Ends the parsing from inside one of its callbacks."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.broken = Broken(status, detail)


class _Head(msgspec.Struct):
    target: bytes = b""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    size: int = 0


class Engine:
    """One connection's half that reads."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._events: list[Event] = []
        self._head = _Head()
        self._request: Request | None = None
        self._body = Body(0)  # not its pieces: one of two bytes would cost fifty
        self._begun = False
        self._head_fed = 0
        self._broken = False
        self.awaited = 0
        """Bytes of the body that is arriving, as its head says; as many as there may be where it does not."""

    @property
    def between_requests(self) -> bool:
        """Whether no part of a further request has come yet."""
        return not self._begun

    @property
    def left(self) -> int:
        """Bytes that are still to come of a body whose length was said; 0 where there is none, or it was not."""
        request = self._request
        if request is None or "transfer-encoding" in request.headers:
            return 0
        return self.awaited - len(self._body)

    def let_go(self) -> Iterable[mmap.mmap]:
        """The connection is over; what is to be given back a part at a time."""
        former, self._body = self._body, Body(0)
        return former.large

    def receive(self, data: bytes) -> list[Event]:
        """What these bytes complete, in order."""
        if self._broken:
            return []
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._broken = True
            cause = error.__context__
            if isinstance(cause, _Refused):
                self._events.append(cause.broken)
            else:
                self._events.append(Broken(400, f"this is not HTTP/1.1: {error}"))
        events, self._events = self._events, []
        return events

    def _feed(self, data: bytes) -> None:
        while data:
            if self._begun and self._request is None:
                self._head_fed += len(data)  # a header that never ends is not shown to `on_header`
                if self._head_fed > MAX_HEAD_BYTES:
                    raise _too_long_head()
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                last = self._events[-1] if self._events else None
                if isinstance(last, Request) and last.websocket:
                    last.rest = rest
                    self._broken = True  # what follows is for the WebSocket
                    return
                if isinstance(last, Request) and _has_body(last.headers):
                    self._begin_again(last)
                data = rest  # an offer of another protocol (h2c) that we let pass
                continue
            break

    def _begin_again(self, request: Request) -> None:
        """The parser takes the body behind an offer of another protocol for that protocol's bytes, so that it would be
        read as further requests: it gets the head again, without the offer."""
        self._events.pop()
        lines = [f"{request.method} {request.target.decode('latin-1')} HTTP/1.{int(request.chunks)}"]
        lines += [f"{name}: {value}" for name, value in request.headers.items() if name not in ("upgrade", "expect")]
        self._parser.feed_data("\r\n".join([*lines, "", ""]).encode("latin-1"))

    # -- what the parser calls ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._head = _Head()
        self._begun = True
        self._head_fed = 0

    def on_url(self, part: bytes) -> None:
        head = self._head
        head.target += part
        if len(head.target) > MAX_TARGET_BYTES:
            raise _Refused(414, f"the request's target is longer than {MAX_TARGET_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        head = self._head
        head.size += len(name) + len(value) + 4
        if head.size > MAX_HEAD_BYTES:
            raise _Refused(431, f"the request's headers are larger than {MAX_HEAD_BYTES} bytes")
        if self._request is not None:
            return  # a trailer: nothing here means anything behind a body
        known = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        present = head.headers.get(known)
        head.headers[known] = text if present is None else f"{present}, {text}"

    def on_headers_complete(self) -> None:
        if self._parser.get_http_version() not in ("1.0", "1.1"):
            raise _Refused(505, "HTTP/1.1 is spoken here")
        headers = self._head.headers
        if self._parser.get_method() == b"CONNECT" and _has_body(headers):
            raise _Refused(400, "a CONNECT has no body")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > MAX_BODY_BYTES:
            raise _too_large_body()
        self.awaited = int(length) if length.isdecimal() else MAX_BODY_BYTES if "transfer-encoding" in headers else 0
        self._body = Body(self.awaited)
        self._request = Request(
            method=self._parser.get_method().decode("latin-1"),
            target=self._head.target,
            headers=headers,
            keep_alive=self._parser.should_keep_alive(),
            chunks=self._parser.get_http_version() == "1.1",
            websocket=self._parser.should_upgrade() and "websocket" in headers.get("upgrade", "").lower(),
        )
        if headers.get("expect", "").lower() == "100-continue" and self._request.chunks:
            self._events.append(Expects())

    def on_body(self, part: bytes) -> None:
        if len(self._body) + len(part) > MAX_BODY_BYTES:
            raise _too_large_body()
        self._body.add(part)

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        self._begun = False
        self.awaited = 0
        if request is not None:
            request.body = self._body.whole()
            self._body = Body(0)
            self._events.append(request)


def _has_body(headers: dict[str, str]) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _too_large_body() -> _Refused:
    return _Refused(413, f"the request's body is larger than {MAX_BODY_BYTES} bytes; send smaller batches")


def _too_long_head() -> httptools.HttpParserError:
    error = httptools.HttpParserError("head too long")
    error.__context__ = _Refused(431, f"the request's headers are larger than {MAX_HEAD_BYTES} bytes")
    return error
