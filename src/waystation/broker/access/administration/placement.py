"""Where partitions are and who leads them, as operators see and change it. `Access.placement`.

Each verb is about the cluster, not about one topic: moving data and electing leaders costs all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from waystation.broker.access.messaging.family import Family
from waystation.cluster.view import PartitionReplicas


class Reassignment(msgspec.Struct, frozen=True):
    """A partition that is being moved."""

    topic: str
    index: int
    placed: PartitionReplicas


class PlacementAccess(Family):
    """Made by `Access`."""

    __slots__ = ()

    async def reassign(self, topic: str, index: int, replicas: Sequence[int]) -> None:
        """Begins to move a partition to these nodes, the preferred leader first; a move that is under way is replaced.
        InvalidReplicaAssignment."""
        self._ask_cluster("alter")
        found = self._broker.topics.partition(topic, index)
        work = self._broker.operations.reassign(found.topic.id, index, replicas)
        await self._changing("alter", "cluster", topic, work, f"reassign of partition {index}")

    async def cancel_reassignment(self, topic: str, index: int) -> None:
        """The partition stays where it was. NoReassignment if it is not being moved."""
        self._ask_cluster("alter")
        found = self._broker.topics.partition(topic, index)
        work = self._broker.operations.cancel_reassignment(found.topic.id, index)
        await self._changing("alter", "cluster", topic, work, f"cancel_reassignment of partition {index}")

    def reassignments(self, topics: Collection[str] | None = None) -> list[Reassignment]:
        """All that are under way, or those of these topics."""
        self._ask_cluster("describe")
        found = []
        for topic in self._broker.topics:
            if topics is None or topic.name in topics:
                for partition in topic.partitions:
                    placed = self._broker.view.placed(topic.id, partition.index)
                    if placed is not None and (placed.adding or placed.removing):
                        found.append(Reassignment(topic.name, partition.index, placed))
        return found

    def replicas(self, topic: str, index: int) -> tuple[int, ...]:
        """Of a partition, without those that will leave."""
        self._ask_cluster("describe")
        found = self._broker.topics.partition(topic, index)
        placed = self._broker.view.placed(found.topic.id, index)
        return () if placed is None else tuple(one for one in placed.replicas if one not in placed.removing)

    async def elect(self, topic: str, index: int, *, unclean: bool) -> None:
        """Makes the preferred replica the leader; `unclean`: any that lives, and what it lacks is lost.
        ElectionNotNeeded, NoPreferredLeader, NoEligibleLeader."""
        self._ask_cluster("alter")
        found = self._broker.topics.partition(topic, index)
        operations = self._broker.operations
        work = (operations.elect_unclean if unclean else operations.elect_preferred)(found.topic.id, index)
        await self._changing("alter", "cluster", topic, work, f"elect of partition {index}")

    async def unregister(self, node_id: int) -> None:
        """The cluster forgets a node that has stopped and has no replicas. NoSuchNode, Conflict."""
        self._ask_cluster("alter")
        await self._changing("alter", "cluster", f"node {node_id}", self._broker.operations.unregister(node_id))
