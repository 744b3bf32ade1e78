"""Ports of loopback that nobody listens on, for processes that have to be told one and keep it while they are down.

They lie below the range from which the system takes ports for outgoing connections (`ip_local_port_range`): one of that
range can be taken by any client while a node is restarted.
"""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack

from waystation.errors import Unavailable

PORTS = range(10_000, 30_000)


def free_ports(count: int) -> list[int]:
    """Different ones. Another server may still take one before it is used."""
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.Random().sample(PORTS, len(PORTS)):
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise Unavailable(f"no {count} free ports from {PORTS[0]} to {PORTS[-1]} on 127.0.0.1")


def answers(port: int) -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False
