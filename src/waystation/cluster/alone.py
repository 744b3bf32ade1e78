"""What a broker that is no node of a cluster has in the place of one: it is everything that there is.

For each thing that parts of a broker ask about the cluster (`ClusterView`, `ReplicaPlacement`, `Operations`) there is a
class here with the answers of a broker alone. They need no store and nothing else of the cluster: `broker/broker.py`
loads the rest of this package for nodes only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from waystation.cluster.replica_placement import WantedReplicas, check_alike
from waystation.cluster.view import KnownNode, PartitionReplicas
from waystation.errors import (
    Conflict,
    ElectionNotNeeded,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignment,
    NoSuchNode,
)


class Alone:
    """A broker that is no node of a cluster: it has and leads everything."""

    def __init__(self, node_id: int, epoch_of: Callable[[UUID, int], int | None]) -> None:
        """`epoch_of`: the leader epoch of a partition; None: there is none."""
        self.node_id = node_id
        self._epoch_of = epoch_of
        self._myself = KnownNode(node_id)
        self._only = (node_id,)

    def nodes(self) -> Sequence[KnownNode]:
        return (self._myself,)

    def node(self, node_id: int) -> KnownNode | None:
        return self._myself if node_id == self.node_id else None

    def known(self) -> Sequence[int]:
        return self._only

    def placed(self, topic_id: UUID, index: int) -> PartitionReplicas | None:
        epoch = self._epoch_of(topic_id, index)
        return None if epoch is None else PartitionReplicas(self.node_id, epoch, self._only, self._only)

    def controller(self) -> int:
        return self.node_id


class PlacementAlone:
    """A broker by itself has the only replica of everything."""

    def __init__(self, node_id: int) -> None:
        self._only = (node_id,)

    def place(self, topic: str, partitions: int, wanted: WantedReplicas) -> list[tuple[int, ...]]:
        if wanted.factor not in (None, 1):
            raise InvalidReplicationFactor(
                f"topic {topic!r}: {wanted.factor} replicas asked for, but there is 1 broker"
            )
        if wanted.assignment is not None:
            check_alike(topic, partitions, wanted.assignment)
            for replicas in wanted.assignment:
                self.check(replicas)
        return [self._only] * partitions

    def check(self, replicas: Sequence[int]) -> None:
        """Raises unless the partition is to live where it can: on this broker."""
        if not replicas:
            raise InvalidReplicaAssignment("a partition was assigned to no broker")
        if len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(f"a partition was assigned to the same broker twice: {list(replicas)}")
        if tuple(replicas) != self._only:
            raise InvalidReplicaAssignment(
                f"a partition was assigned to brokers {list(replicas)}, but there is only {self._only[0]}"
            )

    def entries(self, topic_id: UUID, first: int, replicas: Sequence[tuple[int, ...]]) -> dict[str, bytes]:
        return {}

    def factor_of(self, topic_id: UUID) -> int | None:
        return None

    def keys(self, topic_id: UUID, partitions: int) -> list[str]:
        return []


class OperationsAlone:
    """Of a broker that is no node of a cluster."""

    def __init__(self, node_id: int, placement: PlacementAlone) -> None:
        self._node_id = node_id
        self._placement = placement

    async def reassign(self, topic_id: UUID, index: int, replicas: Sequence[int]) -> None:
        self._placement.check(replicas)

    async def cancel_reassignment(self, topic_id: UUID, index: int) -> None:
        raise NoReassignment("the partition is not being moved")

    async def elect_preferred(self, topic_id: UUID, index: int) -> None:
        raise ElectionNotNeeded("the partition's leader is the only broker there is")

    async def elect_unclean(self, topic_id: UUID, index: int) -> None:
        raise ElectionNotNeeded("the partition's leader is the only broker there is")

    async def unregister(self, node_id: int) -> None:
        if node_id != self._node_id:
            raise NoSuchNode(f"there is no node {node_id}; this broker is {self._node_id}, and is alone")
        raise Conflict(f"node {node_id} is this broker, and runs")
