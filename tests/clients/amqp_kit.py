"""The AMQP broker under test, and words that the tests of every AMQP client share.

`WAYSTATION_AMQP_ORACLE=host:port` points these tests at another broker that speaks AMQP 0-9-1 and knows guest/guest:
that is how the tests themselves are checked. What only Waystation has, or what kills the broker, is skipped there.
Used by conftest.py and by the tests of AMQP clients; nothing here knows a particular client.
"""

from __future__ import annotations

import os
import socket
import socketserver
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.server import Server

ORACLE = os.environ.get("WAYSTATION_AMQP_ORACLE", "")

ours_only = pytest.mark.skipif(bool(ORACLE), reason="an extension of Waystation, or a test that needs its own broker")

QUORUM = {"x-queue-type": "quorum"}
FRAME_MIN = 4096
"""The smallest frame-max that the protocol allows."""


@dataclass(frozen=True, slots=True)
class AmqpTarget:
    """Where AMQP clients find the broker under test."""

    host: str
    port: int
    ours: bool

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self, vhost: str = "%2F") -> str:
        """As clients that take addresses want it; the virtual host is given as it stands in a URL."""
        return f"amqp://guest:guest@{self.address}/{vhost}"


def target_at(address: str, *, ours: bool) -> AmqpTarget:
    """From `host:port`."""
    host, _, port = address.rpartition(":")
    return AmqpTarget(host, int(port), ours)


def target_of(server: Server) -> AmqpTarget:
    """Of a broker that a test started itself."""
    return target_at(server.addresses["amqp"], ours=True)


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Bodies that tell their own place."""
    return [b"%06d" % n for n in range(start, start + count)]


def death(headers: Mapping[str, Any], nth: int = 0) -> dict[str, Any]:
    """One entry of x-death: what RabbitMQ writes, without the time, which no test can know."""
    entry = dict(headers["x-death"][nth])
    return {name: value for name, value in entry.items() if name not in ("time", "deliveries")}


def free_of_reply(sock: socket.socket) -> bool:
    """Whether the peer has closed this socket: nothing can come any more."""
    sock.setblocking(False)
    try:
        return not sock.recv(65536)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


class Relay:
    """A TCP relay that can cut its connections without a farewell, as a broken network does.

    Clients connect to `port`; `cut()` resets both sides of everything that runs through it. New connections pass again.
    """

    def __init__(self, target: AmqpTarget) -> None:
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        relay = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                relay._serve(self.request, target)

        class Listener(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Listener(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def target(self) -> AmqpTarget:
        return AmqpTarget("127.0.0.1", self.port, ours=not ORACLE)

    def cut(self) -> None:
        """End everything that runs through here now."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _shut(end)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.cut()
        self._thread.join()

    def _serve(self, near: socket.socket, target: AmqpTarget) -> None:
        far = socket.create_connection((target.host, target.port))
        self._pairs.append((near, far))
        back = threading.Thread(target=_copy, args=(far, near), daemon=True)
        back.start()
        _copy(near, far)
        back.join()
        near.close()
        far.close()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    _shut(source)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
