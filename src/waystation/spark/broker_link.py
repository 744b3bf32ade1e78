"""The connection of a Spark process to the broker, for writing: one client per process and address.

Spark's Python workers live on from task to task, so what is kept here is used again. A process that was forked makes
its own. `patiently` tries again while the broker is away, and says so. For the sink.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from waystation.client.sync.client import Client
from waystation.client.sync.connecting import connect
from waystation.errors import ConnectionLost, Unavailable
from waystation.spark import retrying

T = TypeVar("T")

Address = tuple[str, int]

QUIET_S = 1.0

_clients: dict[tuple[int, tuple[Address, ...]], Client] = {}


def client_at(servers: tuple[Address, ...], retry_s: float) -> Client:
    """The client of this process, connected; the first of the servers that answers."""
    here = (os.getpid(), servers)
    client = _clients.get(here)
    if client is None or client.closed:
        client = _clients[here] = patiently(lambda: connect_once(servers), servers, retry_s)
    return client


def connect_once(servers: tuple[Address, ...]) -> Client:
    """A client that the caller closes: of the first of the servers that answers, or ConnectionLost at once."""
    refused: ConnectionLost | None = None
    for host, port in servers:
        try:
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            return connect(f"waystation://{place}", name=f"spark-{os.getpid()}", timeout=60)
        except ConnectionLost as error:
            refused = error
    raise refused or ConnectionLost("no servers were given")


def patiently(ask: Callable[[], T], servers: tuple[Address, ...], retry_s: float) -> T:
    """Does it, again and again if need be. The client reconnects by itself, so a short wait is not worth a word."""
    return retrying.patiently(ask, servers, retry_s, away=(Unavailable,), quiet_s=QUIET_S)
