"""The connection of a Spark process to the broker, for writing: one client per process and address.

Spark's Python workers live on from task to task, so what is kept here is used again. A process that was forked makes
its own. `patiently` tries again while the broker is away, and says so. For the sink.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TypeVar

from waystation.client.sync.client import Client
from waystation.client.sync.connecting import connect
from waystation.errors import ConnectionLost, Unavailable

T = TypeVar("T")

log = logging.getLogger("waystation.spark")

Address = tuple[str, int]

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
SAY_AGAIN_S = 10.0

_clients: dict[tuple[int, tuple[Address, ...]], Client] = {}


def client_at(servers: tuple[Address, ...], retry_s: float) -> Client:
    """The client of this process, connected; the first of the servers that answers."""
    here = (os.getpid(), servers)
    client = _clients.get(here)
    if client is None or client.closed:
        client = _clients[here] = patiently(lambda: _connect(servers), servers, retry_s)
    return client


def _connect(servers: tuple[Address, ...]) -> Client:
    refused: ConnectionLost | None = None
    for host, port in servers:
        try:
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            return connect(f"waystation://{place}", name=f"spark-{os.getpid()}", timeout=60)
        except ConnectionLost as error:
            refused = error
    raise refused or ConnectionLost("no servers were given")


def patiently(ask: Callable[[], T], servers: tuple[Address, ...], retry_s: float) -> T:
    """Does it, again and again if need be; what is asked may be done twice. Raises ConnectionLost when time is up."""
    began = time.monotonic()
    said = -SAY_AGAIN_S
    pause_s = FIRST_PAUSE_S
    name = ",".join(f"{host}:{port}" for host, port in servers)
    while True:
        try:
            result = ask()
        except (ConnectionLost, Unavailable) as error:
            gone_s = time.monotonic() - began
            if gone_s >= retry_s:
                raise ConnectionLost(
                    f"the broker at {name} cannot be reached or is not ready ({error}), and {retry_s:.0f} s of trying "
                    "are over; start it, or check the option servers (the option retryTimeout says how long to try)"
                ) from None
            if gone_s >= 1 and gone_s - said >= SAY_AGAIN_S:
                said = gone_s
                log.warning("the broker at %s: %s; trying again for %.0f s", name, error, retry_s - gone_s)
            time.sleep(min(pause_s, max(0.0, retry_s - gone_s)))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            continue
        if said >= 0:
            log.warning("the broker at %s answers again after %.1f s", name, time.monotonic() - began)
        return result
