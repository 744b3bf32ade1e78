"""What operators do to a cluster: move replicas, elect leaders, remove nodes.

Each is one compared write to the store, decided from what this node knows (`elections.py`, `reassignment.py`), so any
node can be asked. What follows from it (copying, catching up, the next step of a reassignment) is the work of those who
lead and follow. If somebody else changed the entry first, it is decided again from what that one has written.

A broker alone has nothing to move (`alone.py`). Called by `Access.placement`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from waystation.catalog import ABSENT
from waystation.catalog.follower import CatalogFollower
from waystation.cluster.decisions import elections, reassignment
from waystation.cluster.decisions.replica_fetch import NO_EPOCH
from waystation.cluster.decisions.state import NOBODY, PartitionState, node_key, partition_key
from waystation.cluster.decisions.writes import StoreEntry, Write
from waystation.cluster.min_in_sync import min_in_sync
from waystation.cluster.replication.led import history
from waystation.cluster.store_view import StoreView
from waystation.config import BrokerSettings
from waystation.errors import (
    Conflict,
    ElectionNotNeeded,
    NoEligibleLeader,
    NoSuchNode,
    RevisionConflict,
    UnknownTopic,
)
from waystation.topics.topics import Topics

ATTEMPTS = 5
"""How often somebody else may be first before it is given up."""


class Operations(Protocol):
    """On the loop's thread only. What they change is in force here when they return."""

    async def reassign(self, topic_id: UUID, index: int, replicas: Sequence[int]) -> None:
        """Begins to move a partition to these nodes, the preferred leader first. InvalidReplicaAssignment, Conflict."""

    async def cancel_reassignment(self, topic_id: UUID, index: int) -> None:
        """The partition stays where it was. NoReassignment, Conflict."""

    async def elect_preferred(self, topic_id: UUID, index: int) -> None:
        """ElectionNotNeeded, NoPreferredLeader."""

    async def elect_unclean(self, topic_id: UUID, index: int) -> None:
        """Makes the first living replica the leader, though it may lack acknowledged records: what it lacks is lost.
        Where this node's log is ahead of the store, which was put back from a backup, it is this node that leads.
        ElectionNotNeeded: one that lacks nothing can lead. NoEligibleLeader: no replica lives."""

    async def unregister(self, node_id: int) -> None:
        """The cluster forgets a node that does not live and has no replicas. NoSuchNode, Conflict."""


Decide = Callable[[StoreEntry[PartitionState]], Write | None]


class ClusterOperations:
    """Of a node in a cluster."""

    def __init__(self, view: StoreView, follower: CatalogFollower, topics: Topics, settings: BrokerSettings) -> None:
        self._view = view
        self._follower = follower
        self._topics = topics
        self._settings = settings

    def _min_in_sync(self, topic_id: UUID, partition: StoreEntry[PartitionState]) -> int:
        return min_in_sync(self._settings, self._topics.by_id(topic_id), partition.state)

    async def reassign(self, topic_id: UUID, index: int, replicas: Sequence[int]) -> None:
        def decide(partition: StoreEntry[PartitionState]) -> Write | None:
            return reassignment.begin(partition, replicas, self._view.living, self._min_in_sync(topic_id, partition))

        await self._change(topic_id, index, decide)

    async def cancel_reassignment(self, topic_id: UUID, index: int) -> None:
        def decide(partition: StoreEntry[PartitionState]) -> Write | None:
            return reassignment.cancel(partition, self._min_in_sync(topic_id, partition))

        await self._change(topic_id, index, decide)

    async def elect_preferred(self, topic_id: UUID, index: int) -> None:
        await self._change(topic_id, index, self._prefer)

    def _prefer(self, partition: StoreEntry[PartitionState]) -> Write | None:
        """Whoever is asked writes it, and the leader hears of it: as in a takeover, it is safe because the new leader
        is in the in-sync set at the revision that is compared. That it has caught up as well is a matter of speed."""
        state, nodes = partition.state, self._view.living
        to = elections.elect_preferred(partition, nodes, state.in_sync)
        expected = {partition.key: partition.revision, node_key(to): nodes[to].revision}
        return Write({partition.key: elections.led(state, to)}, expected)

    async def elect_unclean(self, topic_id: UUID, index: int) -> None:
        replica = self._topics.by_id(topic_id).partitions[index]
        log_epoch = history(replica).last_epoch if replica.here else NO_EPOCH
        await self._change(topic_id, index, lambda partition: self._choose(partition, log_epoch))

    def _choose(self, partition: StoreEntry[PartitionState], log_epoch: int) -> Write | None:
        state, living, own = partition.state, self._view.living, self._view.node_id
        if elections.store_went_back(state, log_epoch):
            return elections.elect_unclean(partition, own, living, self._view.disks.get(own), log_epoch)
        if state.leader in living:
            raise ElectionNotNeeded(f"node {state.leader} leads {partition.key}, and lives")
        node_id = next((one for one in state.replicas if one in living), NOBODY)
        if node_id == NOBODY:
            raise NoEligibleLeader(
                f"no replica of {partition.key} lives, of {list(state.replicas)}; start one of these nodes"
            )
        return elections.elect_unclean(partition, node_id, living, self._view.disks.get(node_id), state.epoch)

    async def unregister(self, node_id: int) -> None:
        disk = self._view.disks.get(node_id)
        if disk is None:
            raise NoSuchNode(f"there is no node {node_id} in this cluster")
        if node_id in self._view.living:
            raise Conflict(f"node {node_id} runs; stop it first, or wait until its lease has run out")
        left = [
            known.key
            for key, known in self._view.partitions()
            if node_id in known.state.replicas and self._is_used(*key)
        ]
        if left:
            raise Conflict(
                f"node {node_id} has replicas of {len(left)} partitions still ({left[0]} is one); reassign them first"
            )
        await self._follower.change({disk.key: None}, {disk.key: disk.revision, node_key(node_id): ABSENT})

    def _is_used(self, topic_id: UUID, index: int) -> bool:
        """Whether a topic has this partition: its entry may be left of one that was not made, or not removed."""
        topic = self._topics.find_id(topic_id)
        return topic is not None and index < len(topic.partitions)

    async def _change(self, topic_id: UUID, index: int, decide: Decide) -> None:
        """Writes what is decided, from what is known; again if that was not what the store has."""
        for _ in range(ATTEMPTS):
            partition = self._view.partition(topic_id, index)
            if partition is None:
                raise UnknownTopic(f"there is no entry {partition_key(topic_id, index)}: the topic was deleted")
            write = decide(partition)
            if write is None:
                return
            try:
                await self._follower.change(write.encoded(), write.expected)
            except RevisionConflict:
                await self._follower.catch_up()
            else:
                return
        raise Conflict(f"{partition_key(topic_id, index)} is changed by others all the time; try again")
