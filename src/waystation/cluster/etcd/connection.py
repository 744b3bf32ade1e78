"""One HTTP/1.1 connection to a member of etcd: a request and its whole answer, or a request and lines without an end.

It knows nothing of etcd. What goes wrong is an OSError (TimeoutError among them); the connection is of no use after
that, and whoever has it closes it. One thread at a time; `close` from any.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httptools

from waystation.cluster.decisions.state import Address

if TYPE_CHECKING:
    import ssl

_RECEIVE = 256 * 1024
_LONGEST = 64 * 1024 * 1024
"""Of an answer, or of a line: etcd has no entry of more than 1.5 MB, and answers are read in pages."""


class Connection:
    """Connects at once."""

    def __init__(self, endpoint: Address, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._host = endpoint.host
        plain = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _notice_dead_peers(plain)
            self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=endpoint.host)
        except BaseException:
            plain.close()
            raise

    def ask(self, path: str, body: bytes, token: str, timeout_s: float) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        deadline = time.monotonic() + timeout_s
        self._send(path, body, token, timeout_s)
        answer = _Answer()
        while not answer.complete:
            self._receive(answer, deadline - time.monotonic())
            if len(answer.body) > _LONGEST:
                raise ConnectionError(f"an answer of more than {_LONGEST} bytes")
        return answer.status, bytes(answer.body)

    def lines(self, path: str, body: bytes, token: str, timeout_s: float, idle_s: float) -> Iterator[bytes | None]:
        """Lines of the answer as they come; None when none has come for a while. Ends when the answer does."""
        self._send(path, body, token, timeout_s)
        answer = _Answer()
        while not answer.complete:
            try:
                self._receive(answer, idle_s)
            except TimeoutError:
                yield None
                continue
            while (end := answer.body.find(b"\n")) >= 0:
                line = bytes(answer.body[:end])
                del answer.body[: end + 1]
                yield line
            if len(answer.body) > _LONGEST:
                raise ConnectionError(f"a line of more than {_LONGEST} bytes")
        if answer.body:
            yield bytes(answer.body)

    def is_usable(self) -> bool:
        """Whether it is open still and nothing has come that nobody asked for. Does not block."""
        self._socket.settimeout(0)
        try:
            self._socket.recv(1)
        except BlockingIOError:
            return True
        except OSError as error:
            import ssl

            return isinstance(error, ssl.SSLWantReadError)
        return False

    def close(self) -> None:
        """Whoever waits for an answer gets an OSError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, path: str, body: bytes, token: str, timeout_s: float) -> None:
        authorization = f"Authorization: {token}\r\n" if token else ""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n{authorization}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._socket.settimeout(timeout_s)
        self._socket.sendall(head.encode() + body)

    def _receive(self, answer: _Answer, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(timeout_s)
        data = self._socket.recv(_RECEIVE)
        if not data:
            raise ConnectionError("the connection was closed before the answer was complete")
        try:
            answer.feed(data)
        except httptools.HttpParserError as error:
            raise ConnectionError(f"the answer is not HTTP: {error}") from error


class _Answer:
    """What httptools tells of an answer."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


def _notice_dead_peers(plain: socket.socket) -> None:
    """A watch is silent for hours: without this, a machine that vanished would never be noticed."""
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not everywhere
            plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
