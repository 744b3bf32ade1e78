"""What makes a broker a node of a cluster: what whoever starts it hands in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from waystation.cluster.decisions.state import NodeState
from waystation.cluster.links.link import Links
from waystation.cluster.membership import LEASE_S, nobody_answers
from waystation.cluster.store import Store
from waystation.cluster.store_view import StoreView


class NodeOptions(msgspec.Struct, frozen=True):
    """The store is the broker's catalog, too."""

    store: Store
    links: Callable[[StoreView], Links]
    """To the other nodes, whose addresses the view has."""
    rack: str = ""
    lease_s: float = LEASE_S
    answers: Callable[[NodeState], Awaitable[bool]] = nobody_answers
    """Whether somebody listens where a node's entry says."""
    restored: bool = False
    """The operator says that the data folder was put back from a copy: what it promised since is not in it."""
