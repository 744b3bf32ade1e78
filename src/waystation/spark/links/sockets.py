"""Reading from a blocking socket: all that was asked for, or ConnectionError. For the links of tasks and drivers."""

from __future__ import annotations

import socket


def receive_all(source: socket.socket, into: bytearray | memoryview) -> None:
    """Fills `into`, without a copy."""
    view = memoryview(into)
    got = 0
    while got < len(view):
        count = source.recv_into(view[got:])
        if not count:
            raise ConnectionError("the broker closed the connection")
        got += count
