"""A broker in this process that believes to be a node of a cluster: its view is what the test says.

It has all logs itself, so that handlers find something; `moved` makes it a follower of a partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from tests.protocols.kafka.admin_kit import Desk
from waystation.catalog.catalog import Change, Update
from waystation.cluster.state import Address, NodeState, PartitionState, encode, node_key, partition_key
from waystation.cluster.store_view import StoreView

RACKS = {1: "a", 2: "b", 3: ""}
ADDRESSES = {number: Address(f"node{number}.test", 9_090 + number) for number in RACKS}


class ClusterDesk(Desk):
    """Node 1 of three, in two racks and in none."""

    def __init__(self, root: Path, settings: Mapping[str, str]) -> None:
        self.known = StoreView(1)
        self._revision = 0
        super().__init__(root, settings, self.known)
        for number in RACKS:
            self.node(number)
        for topic in self.broker.topics:
            for partition in topic.partitions:
                self.placed(topic.id, partition.index)

    def node(self, number: int, listeners: Mapping[str, Address] | None = None) -> None:
        """A node lives, with these listeners or that of Kafka's clients."""
        told = dict(listeners) if listeners is not None else {"kafka": ADDRESSES[number], "http": Address("x", 1)}
        self._tell(node_key(number), encode(NodeState(1, told, RACKS[number], "1.0", f"folder{number}")))

    def dies(self, number: int) -> None:
        self._tell(node_key(number), None)

    def placed(
        self,
        topic_id: UUID,
        index: int,
        *,
        leader: int = 1,
        epoch: int = 0,
        replicas: Sequence[int] = (1, 2, 3),
        in_sync: Sequence[int] = (1, 2, 3),
        adding: Sequence[int] = (),
        removing: Sequence[int] = (),
    ) -> None:
        """The store says this of a partition."""
        state = PartitionState(
            tuple(replicas), leader, epoch, tuple(in_sync), adding=tuple(adding), removing=tuple(removing)
        )
        self._tell(partition_key(topic_id, index), encode(state))

    def moved(self, name: str, index: int, leader: int, epoch: int = 7) -> None:
        """Another node leads a partition, and this one follows."""
        partition = self.broker.topics.get(name).partition(index)
        partition.follow(epoch)
        self.placed(partition.topic.id, index, leader=leader, epoch=epoch)

    def create_placed(self, name: str, partitions: int = 1) -> UUID:
        """A topic that is on all nodes and led here."""
        topic = self.create(name, partitions)
        for index in range(partitions):
            self.placed(topic.id, index)
        return UUID(str(topic.id))

    def _tell(self, key: str, value: bytes | None) -> None:
        self._revision += 1
        self.run(self.known.apply(Update(self._revision, (Change(key, value),))))
