"""Which nodes get the replicas of a new topic: spread over racks, even over nodes and leaders. Pure.

The same nodes, loads and `start` give the same placement. Called by whoever creates a topic or adds partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from waystation.cluster.state import PartitionState

DEFAULT_FACTOR = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may get replicas: it lives, and is not drained."""

    node_id: int
    rack: str = ""
    replicas: int = 0  # that it has already, of all topics
    leads: int = 0  # for how many of them it is the preferred leader


def place(partitions: int, factor: int, nodes: Sequence[Candidate], start: int = 0) -> list[tuple[int, ...]]:
    """The replicas of each partition, the preferred leader first.

    `start` (random, or round robin) says at which node it begins, so that small topics do not all begin at the same.
    InvalidReplicationFactor.
    """
    raise NotImplementedError


def default_factor(nodes: int) -> int:
    """Where nobody says how many replicas a topic has."""
    return max(1, min(DEFAULT_FACTOR, nodes))


def check_assignment(replicas: Sequence[int], nodes: Collection[int]) -> None:
    """Of an assignment that somebody has made by hand. InvalidReplicaAssignment."""
    raise NotImplementedError


def first_state(replicas: tuple[int, ...]) -> PartitionState:
    """Of a new partition: all replicas are in sync, as there is nothing yet, and the preferred one leads."""
    return PartitionState(replicas, replicas[0], 0, tuple(sorted(replicas)))
