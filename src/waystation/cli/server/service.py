"""What a service manager wants to hear: that the broker is ready, and that it is about to stop (sd_notify of systemd).

A datagram to the socket that NOTIFY_SOCKET names. Where there is none, or nobody listens, nothing happens: a broker
does not fail because of it. `serve` alone calls this.
"""

from __future__ import annotations

import os
import socket

VARIABLE = "NOTIFY_SOCKET"


def tell_service_manager(*states: str) -> bool:
    """Sends `READY=1`, `STOPPING=1`, `STATUS=…`; False if nobody wanted to know."""
    address = os.environ.get(VARIABLE, "")
    if address[:1] not in ("/", "@"):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]  # a name in the kernel's own space
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.connect(address)
            to.sendall("\n".join(states).encode())
    except OSError:
        return False
    return True
