"""Where replicas are, and where those of a new topic shall be: what `Topics` has to know of the cluster
(`topics.Replicas`). Asks the view; writes nothing. On the loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from waystation.cluster import placement
from waystation.cluster.placement import Candidate
from waystation.cluster.replication.high_watermarks import HighWatermarks
from waystation.cluster.state import encode, partition_key
from waystation.cluster.store_view import StoreView
from waystation.config import BrokerSettings
from waystation.errors import InvalidReplicaAssignment
from waystation.world import World


class ReplicaPlaces:
    def __init__(
        self, world: World, view: StoreView, high_watermarks: HighWatermarks, settings: BrokerSettings
    ) -> None:
        self._world = world
        self._view = view
        self._high_watermarks = high_watermarks
        self._settings = settings

    def here(self, topic_id: UUID, index: int) -> bool:
        known = self._view.partition(topic_id, index)
        return known is not None and self._view.node_id in known.state.replicas

    def high_watermark(self, topic_id: UUID, index: int) -> int:
        return self._high_watermarks.of(topic_id, index)

    def entries_of(self, topic_id: UUID, count: int) -> list[str]:
        return [partition_key(topic_id, index) for index in range(count)]

    def place(
        self,
        topic_id: UUID,
        indexes: range,
        factor: int | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> Mapping[str, bytes]:
        """The entries of new partitions. InvalidReplicationFactor, InvalidReplicaAssignment."""
        if assignment is not None:
            replicas = self._assigned(indexes, assignment)
        else:
            candidates = self._candidates()
            if factor is None:
                factor = self._default_factor(topic_id, len(candidates))
            start = self._world.random.below(max(1, len(candidates)))
            replicas = placement.place(len(indexes), factor, candidates, start)
        return {
            partition_key(topic_id, index): encode(placement.first_state(nodes))
            for index, nodes in zip(indexes, replicas, strict=True)
        }

    def _assigned(self, indexes: range, assignment: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        if len(assignment) != len(indexes):
            raise InvalidReplicaAssignment(
                f"{len(indexes)} partitions are to be created, but nodes were named for {len(assignment)}"
            )
        living = {node.id for node in self._view.nodes()} | {self._view.node_id}
        for nodes in assignment:
            placement.check_assignment(nodes, living)
        if len({len(nodes) for nodes in assignment}) > 1:
            raise InvalidReplicaAssignment("all partitions of a topic have the same number of replicas")
        return [tuple(nodes) for nodes in assignment]

    def _default_factor(self, topic_id: UUID, nodes: int) -> int:
        """As many as the topic's other partitions have, or the broker's default."""
        first = self._view.partition(topic_id, 0)
        if first is not None:
            return min(len(first.state.replicas) - len(first.state.adding), nodes)
        if self._settings.source("default.replication.factor") != "default":
            return self._settings.integer("default.replication.factor")
        return placement.default_factor(nodes)

    def _candidates(self) -> list[Candidate]:
        replicas: Counter[int] = Counter()
        leads: Counter[int] = Counter()
        for _, known in self._view.partitions():
            replicas.update(known.state.replicas)
            leads[known.state.replicas[0]] += 1
        nodes = [
            Candidate(node.id, node.rack, replicas[node.id], leads[node.id])
            for node in self._view.nodes()
            if not (state := self._view.node_state(node.id)) or not state.draining
        ]
        return nodes or [Candidate(self._view.node_id)]
