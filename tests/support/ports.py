"""A port nobody listens on, for servers that cannot choose one themselves."""

from __future__ import annotations

from waystation.cli.cluster.free_ports import free_ports


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now. It may be taken before it is used: prefer port 0 where possible."""
    return free_ports(1)[0]


def split_address(address: str) -> tuple[str, int]:
    """`host:port` in its two parts."""
    host, _, port = address.rpartition(":")
    return host, int(port)
