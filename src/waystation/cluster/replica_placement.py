"""Where the replicas of new partitions go, and what the catalog has to say of them.

Whoever creates a topic, or adds partitions, asks here first (`Topics`), whatever protocol it came by: so a replication
factor is honoured in every one of them. In a cluster each partition has an entry, which is written before the topic's
own: a topic that exists has all of its partitions. A broker alone has no such entries (`alone.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import msgspec

from waystation.cluster.decisions.placement import (
    Candidate,
    check_assignment,
    default_factor,
    first_state,
    place,
)
from waystation.cluster.decisions.state import encode, partition_key
from waystation.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from waystation.world.random import Random

if TYPE_CHECKING:
    from waystation.cluster.store_view import StoreView

Assignment = Sequence[Sequence[int]]


class WantedReplicas(msgspec.Struct, frozen=True):
    """What somebody wants of the replicas of new partitions. Neither is said: three, or as many as there are nodes."""

    factor: int | None = None
    assignment: Assignment | None = None
    """The nodes of each new partition, the preferred leader first."""


BY_DEFAULT = WantedReplicas()


class ReplicaPlacement(Protocol):
    """Handed to `Topics`. On the loop's thread only."""

    def place(self, topic: str, partitions: int, wanted: WantedReplicas) -> list[tuple[int, ...]]:
        """The nodes of each new partition. InvalidReplicationFactor, InvalidReplicaAssignment."""

    def entries(self, topic_id: UUID, first: int, replicas: Sequence[tuple[int, ...]]) -> dict[str, bytes]:
        """What the catalog is to have of new partitions, from the number `first` on, before it has their topic."""

    def factor_of(self, topic_id: UUID) -> int | None:
        """How many replicas the partitions of a topic have; more partitions get as many."""

    def keys(self, topic_id: UUID, partitions: int) -> list[str]:
        """Of those entries: they are deleted after their topic."""


def check_alike(topic: str, partitions: int, assignment: Assignment) -> None:
    """Raises unless each partition has as many replicas as the others."""
    if len(assignment) != partitions:
        raise InvalidReplicaAssignment(f"topic {topic!r}: {partitions} partitions to add, {len(assignment)} assigned")
    sizes = {len(replicas) for replicas in assignment}
    if len(sizes) > 1:
        raise InvalidReplicaAssignment(
            f"topic {topic!r}: partitions were assigned to different numbers of brokers, {min(sizes)} to {max(sizes)}"
        )


class ClusterPlacement:
    """In a cluster: over racks and nodes, evenly (`placement.py`)."""

    def __init__(self, view: StoreView, random: Random) -> None:
        self._view = view
        self._random = random

    def place(self, topic: str, partitions: int, wanted: WantedReplicas) -> list[tuple[int, ...]]:
        if wanted.assignment is not None:
            check_alike(topic, partitions, wanted.assignment)
            for replicas in wanted.assignment:
                check_assignment(replicas, self._view.living)
            return [tuple(replicas) for replicas in wanted.assignment]
        nodes = self._candidates()
        factor = default_factor(len(nodes)) if wanted.factor is None else wanted.factor
        try:
            return place(partitions, factor, nodes, self._random.below(max(1, len(nodes))))
        except InvalidReplicationFactor as error:
            raise InvalidReplicationFactor(f"topic {topic!r}: {error}") from error

    def _candidates(self) -> list[Candidate]:
        replicas: Counter[int] = Counter()
        leads: Counter[int] = Counter()
        for _, known in self._view.partitions():
            replicas.update(known.state.replicas)
            leads.update(known.state.replicas[:1])
        return [
            Candidate(node_id, known.state.rack, replicas[node_id], leads[node_id])
            for node_id, known in self._view.living.items()
            if not known.state.draining
        ]

    def entries(self, topic_id: UUID, first: int, replicas: Sequence[tuple[int, ...]]) -> dict[str, bytes]:
        return {
            partition_key(topic_id, index): encode(first_state(nodes)) for index, nodes in enumerate(replicas, first)
        }

    def factor_of(self, topic_id: UUID) -> int | None:
        known = self._view.partition(topic_id, 0)
        if known is None:
            return None
        return len(known.state.replicas) - len(known.state.removing)

    def keys(self, topic_id: UUID, partitions: int) -> list[str]:
        return [partition_key(topic_id, index) for index in range(partitions)]
