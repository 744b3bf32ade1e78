"""Deduplication of topics by message id, while their partitions get other leaders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.cluster.in_process import Cluster, cluster_of, until
from tests.cluster.test_own_transactions import keep_back
from tests.cluster.test_queues_in_a_cluster import lead
from waystation.log.batches import batch as batches
from waystation.message import Message
from waystation.topics.dedup import DEDUP_SETTING

pytestmark = pytest.mark.timeout(120)
TOPIC = "orders"


async def publish(cluster: Cluster, node: int, message_id: str) -> None:
    broker = cluster.brokers[node]
    broker.messages.publish(TOPIC, [Message(message_id.encode(), id=message_id)])
    partition = cluster.partition(node, TOPIC)
    await until(lambda: partition.visible_offset == partition.end_offset)


def stored(cluster: Cluster, node: int) -> list[bytes | None]:
    data = cluster.partition(node, TOPIC).batches_from(0)
    return [record.value for batch, header in data for record in batches.records_of(batch, header)]


def test_an_id_that_another_leader_has_taken_is_a_duplicate(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create(TOPIC, 1, {DEDUP_SETTING: "600000"})
            for node, message_id in ((1, "a"), (2, "b"), (1, "b"), (1, "c")):
                await lead(cluster, TOPIC, 0, node)
                await publish(cluster, node, message_id)
            assert stored(cluster, 1) == [b"a", b"b", b"c"]

    run(main())


def test_an_id_whose_message_was_truncated_is_free(tmp_path: Path) -> None:
    """Else the repetition of what was never acknowledged would be dropped, and told to be stored."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            topic = await cluster.brokers[1].topics.create(TOPIC, 1, {DEDUP_SETTING: "600000"})
            await lead(cluster, TOPIC, 0, 1)
            await publish(cluster, 1, "a")
            answering = cluster.network.answering[1]
            await keep_back(cluster, 1, (topic.id, 0))
            cluster.brokers[1].messages.publish(TOPIC, [Message(b"b", id="b")])
            await lead(cluster, TOPIC, 0, 2)
            cluster.network.answering[1] = answering
            await until(lambda: stored(cluster, 1) == [b"a"])
            await lead(cluster, TOPIC, 0, 1)
            await publish(cluster, 1, "b")
            assert stored(cluster, 1) == [b"a", b"b"]

    run(main())
