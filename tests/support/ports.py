"""A port nobody listens on, for servers that cannot choose one themselves."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now. It may be taken before it is used: prefer port 0 where possible."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def split_address(address: str) -> tuple[str, int]:
    """`host:port` in its two parts."""
    host, _, port = address.rpartition(":")
    return host, int(port)
