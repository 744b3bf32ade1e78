"""Queues in a cluster: dead letters are moved by the node that leads the shard, and others say which one that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.broker.queue_kit import consumer
from tests.cluster.in_process import Cluster, cluster_of, until
from waystation.errors import NotLeader
from waystation.message import Message
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.topics.topics import QUEUES_TOPIC, TRANSACTIONS_TOPIC

pytestmark = pytest.mark.timeout(120)


async def lead(cluster: Cluster, topic: str, index: int, node: int) -> None:
    """The partition is led by that node from now on."""
    topic_id = cluster.brokers[1].topics.get(topic).id
    await cluster.in_sync(topic, {1, 2, 3}, index)
    order = [node, *(one for one in (1, 2, 3) if one != node)]
    await cluster.brokers[1].operations.reassign(topic_id, index, order)
    if await cluster.leader(topic, index) != node:
        await cluster.brokers[1].operations.elect_preferred(topic_id, index)
    await until(lambda: cluster.partition(node, topic, index).leads)


async def coordinate(cluster: Cluster, name: str, elsewhere: int, node: int) -> None:
    """The state log of that id is led elsewhere, another one by the node itself."""
    coordinator = cluster.brokers[node].transactions
    index = coordinator.partition_of(name)
    await lead(cluster, TRANSACTIONS_TOPIC, index, elsewhere)
    await lead(cluster, TRANSACTIONS_TOPIC, (index + 1) % 3, node)
    await until(lambda: index not in coordinator._led and (index + 1) % 3 in coordinator._led)


@pytest.mark.parametrize("far", [False, True], ids=["on the same shard", "on another shard"])
def test_they_are_moved_though_another_node_coordinates_the_transactions_of_that_name(
    tmp_path: Path, far: bool
) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            for index in range(3):
                await lead(cluster, QUEUES_TOPIC, index, 1)
            await coordinate(cluster, "__waystation.dead-letters", 2, 1)
            broker = cluster.brokers[1]
            await until(lambda: len(broker.shards) == 3)
            names = [f"dead{number}" for number in range(20)]
            home = broker.shards.of("jobs")
            target = next(name for name in names if (broker.shards.of(name) is not home) == far)
            await broker.queues.declare(target)
            await broker.queues.declare("jobs", QueueSettings(dead_letter=target))
            shard, queue = broker.queues.get("jobs")
            await broker.durable(shard.put(queue, [Message(b"1")]).receipt)
            async with consumer(broker, "jobs") as inbox:
                await until(lambda: bool(inbox.got))
                await inbox.settle(Verdict.KILL, *inbox.got)
            _, letters = broker.queues.get(target)
            await until(lambda: letters.ledger is not None and letters.ledger.ready == 1)
            assert not queue.deaths

    run(main())


def test_who_asks_for_a_queue_of_another_node_is_told_where_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            for index in range(3):
                await lead(cluster, QUEUES_TOPIC, index, 2)
            with pytest.raises(NotLeader, match=r"queue 'jobs' is on node 2 of this cluster.*127\.0\.0\.1:9002"):
                await cluster.brokers[1].queues.declare("jobs")

    run(main())
