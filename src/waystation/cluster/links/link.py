"""The link to another node: what replication and the parts that move ask it, and what they hear.

`Links` is handed in to the broker: over sockets in production (`socket_link.py`), and without them in simulations and
tests of several brokers in one process. What a caller has to expect of every question: LinkLost, if there was no
answer; what was asked may have been done. PeerRefused says more: nobody listens there, so that the process is dead.
"""

from __future__ import annotations

from typing import Protocol

from waystation.cluster.links.peer import Answer, Request
from waystation.errors import Unavailable


class LinkLost(Unavailable):
    """Another node of the cluster gave no answer."""


class PeerRefused(LinkLost):
    """Another node of the cluster refuses connections: its process is not there."""


class NodeLink(Protocol):
    """To one node. On the loop's thread only; questions may be asked at the same time."""

    async def ask(self, request: Request, timeout_s: float) -> Answer:
        """LinkLost, PeerRefused."""


class Links(Protocol):
    def to(self, node_id: int) -> NodeLink:
        """The same one each time. Nothing is connected before something is asked."""

    async def close(self) -> None: ...


class Answering(Protocol):
    """What a node does with the questions of others."""

    async def answer(self, request: Request, connection: str = "") -> Answer:
        """Never raises what a peer should hear: that is `PeerRefusal`. `connection`: the name of that by which it
        came."""

    def disconnected(self, connection: str) -> None:
        """A connection has ended that questions may have come by."""
