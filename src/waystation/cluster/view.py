"""`ClusterView`: which nodes live, and who has and leads which partition, as one node knows it now.

What must hold: it is knowledge, not truth. It is as old as the last change that this node was told of, so whoever acts
on it must be refused where it is wrong: a leader by its epoch, a write by the revision that it compares with. It never
blocks, and asks nobody.

A broker alone has one, too (`Alone`), so that nobody who uses it needs an `if`. The view of a node in a cluster is
`StoreView`. For the broker, its parts and `Access`; protocols have it through `Access`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from waystation.cluster.decisions.state import NOBODY, Address, PartitionState


class KnownNode(msgspec.Struct, frozen=True):
    """A node that lives, or seems to."""

    id: int
    rack: str = ""
    listeners: Mapping[str, Address] = {}
    """By protocol, what clients are to be told. Not there: the address that the client has reached, if it is this
    node; a broker alone has none of them."""
    version: str = ""
    draining: bool = False  # it hands its leaderships over, and gets no new ones and no new replicas


class PartitionReplicas(msgspec.Struct, frozen=True):
    """Where a partition is."""

    leader: int  # NOBODY: there is none now
    epoch: int
    replicas: tuple[int, ...]  # in the order of preference
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()  # replicas whose nodes do not live
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def has_leader(self) -> bool:
        """Whether a client can be sent to the leader: there is one, and its node lives."""
        return self.leader != NOBODY and self.leader not in self.offline


class ClusterView(Protocol):
    """On the loop's thread only."""

    node_id: int
    """Of this node."""

    def nodes(self) -> Sequence[KnownNode]:
        """Those that live, in the order of their ids."""

    def node(self, node_id: int) -> KnownNode | None:
        """None: there is none of this id, or it does not live."""

    def known(self) -> Sequence[int]:
        """Ids of all nodes of the cluster, those that do not live too, in order."""

    def placed(self, topic_id: UUID, index: int) -> PartitionReplicas | None:
        """None: there is no such partition, or its entry was not told yet."""

    def controller(self) -> int:
        """Whom clients may take for one, since they ask for it: the lowest living id. Every node answers alike."""


def placed(state: PartitionState, living: Callable[[int], bool]) -> PartitionReplicas:
    """What the store says of a partition, with those of its replicas that do not live."""
    members = (*state.replicas, *(one for one in state.adding if one not in state.replicas))
    offline = tuple(one for one in members if not living(one))
    return PartitionReplicas(state.leader, state.epoch, members, state.in_sync, offline, state.adding, state.removing)


def whereabouts(view: ClusterView, topic_id: UUID, index: int) -> str:
    """Who leads a partition, in the words of an error for people who have asked another node."""
    placed = view.placed(topic_id, index)
    node = None if placed is None or not placed.has_leader else view.node(placed.leader)
    if node is None:
        return "led by no node of this cluster at the moment; try again soon"
    if node.id == view.node_id:
        return "about to be led by this node; try again soon"
    at = ", ".join(f"{name} {one.host}:{one.port}" for name, one in sorted(node.listeners.items()))
    return f"on node {node.id} of this cluster; use it there{f' ({at})' if at else ''}"


def closest(view: ClusterView, topic_id: UUID, index: int, rack: str) -> int:
    """From which node a reader in this rack had best read a partition that this node leads: from here, unless another
    rack's is nearer. Only replicas in sync: they have what the leader may show."""
    placed = view.placed(topic_id, index)
    found = [] if placed is None else [one for one in placed.in_sync if _is_in(rack, view.node(one))]
    if not found or view.node_id in found:
        return view.node_id
    return found[index % len(found)]  # partitions spread over the nodes of a rack


def _is_in(rack: str, node: KnownNode | None) -> bool:
    return node is not None and node.rack == rack
