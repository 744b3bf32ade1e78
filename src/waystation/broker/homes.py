"""What has its state in a partition of the broker's own topics, and moves with it: groups, transactions, share groups
and queue shards. In a cluster, leadership calls this (`cluster.leadership.Homes`); a broker alone leads all of them at
its start."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from waystation.errors import WaystationError
from waystation.topics.partitions.partition import Partition
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.topics.partitions.state_log import PartitionStateLog
from waystation.topics.topics import OFFSETS_TOPIC, QUEUES_TOPIC, SHARE_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from waystation.broker.broker import Broker

MOVING = frozenset({OFFSETS_TOPIC, QUEUES_TOPIC, SHARE_TOPIC, TRANSACTIONS_TOPIC})


class Homes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def has(self, topic: str) -> bool:
        return topic in MOVING

    def follow(self, partition: ReplicatedPartition) -> None:
        if partition.topic.name == QUEUES_TOPIC:
            self._broker.shards.follow(partition)

    async def catch_up(self, partition: Partition) -> None:
        if partition.topic.name == QUEUES_TOPIC:
            await self._broker.shards.catch_up(partition)

    def forget(self, partition: Partition) -> None:
        if partition.topic.name == QUEUES_TOPIC:
            self._broker.shards.unfollow(partition.index)

    async def lead(self, partition: Partition) -> None:
        broker, topic = self._broker, partition.topic.name
        if topic == OFFSETS_TOPIC:
            broker.groups.lead(self._state_log(partition))
        elif topic == TRANSACTIONS_TOPIC:
            await broker.transactions.lead(broker.transaction_log(partition.index))
            with contextlib.suppress(WaystationError):  # else their timeouts end them
                await broker.transacting.undo_left_over(partition.index)
        elif topic == SHARE_TOPIC:
            broker.shared.lead(partition)
        elif topic == QUEUES_TOPIC:
            broker.shards.lead(partition)

    def drop(self, partition: Partition) -> None:
        broker, topic = self._broker, partition.topic.name
        if topic == OFFSETS_TOPIC:
            broker.groups.drop(partition.index)
        elif topic == TRANSACTIONS_TOPIC:
            broker.transactions.drop(partition.index)
        elif topic == SHARE_TOPIC:
            broker.shared.drop(partition.index)
        elif topic == QUEUES_TOPIC:
            broker.shards.drop(partition.index)

    def _state_log(self, partition: Partition) -> PartitionStateLog:
        return PartitionStateLog(partition, self._broker.commit, self._broker.world.clock)
