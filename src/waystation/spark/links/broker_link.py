"""The connection of a Spark process to the broker, for writing: one client per process and address.

Spark's Python workers live on from task to task, so what is kept here is used again. A process that was forked makes
its own. `patiently` tries again while the broker is away, and says so. For the sink.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from waystation.client.sync.client import Client
from waystation.client.sync.connecting import connect_to
from waystation.errors import ConnectionLost, NotAuthenticated, Unavailable
from waystation.spark.links import retrying
from waystation.spark.links.native_link import NativeLink
from waystation.spark.links.servers import Servers

T = TypeVar("T")

CONNECT_S = 60.0
QUIET_S = 1.0

_clients: dict[tuple[int, Servers], Client] = {}


def client_at(servers: Servers, retry_s: float) -> Client:
    """The client of this process, connected; the first of the servers that answers."""
    here = (os.getpid(), servers)
    client = _clients.get(here)
    if client is None or client.closed:
        client = _clients[here] = patiently(lambda: connect_once(servers), servers, retry_s)
    return client


def connect_once(servers: Servers, name: str | None = None) -> Client:
    """A client that the caller closes: of the first of the servers that answers, or ConnectionLost at once.
    NotAuthenticated, with what to do, if the broker does not let this client in, or is not to be trusted."""
    try:
        return connect_to(
            servers.for_client, credentials=servers.login, name=name or f"spark-{os.getpid()}", timeout=CONNECT_S
        )
    except NotAuthenticated as error:
        raise servers.refused(servers.addresses[0], str(error)) from None
    except ConnectionLost:
        _explain(servers)
        raise


def _explain(servers: Servers) -> None:
    """Raises NotAuthenticated where it is TLS that keeps broker and client apart: then waiting does not help. The small
    link finds that out."""
    for address in servers.addresses:
        try:
            NativeLink(servers, address, "spark").close()
        except OSError:
            continue


def patiently(ask: Callable[[], T], servers: Servers, retry_s: float) -> T:
    """Does it, again and again if need be. The client reconnects by itself, so a short wait is not worth a word."""
    return retrying.patiently(ask, servers, retry_s, away=(Unavailable,), quiet_s=QUIET_S)
