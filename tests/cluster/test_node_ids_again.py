"""A node that the cluster has forgotten, and one that comes later under its id."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from tests.broker.kit import run
from tests.cluster.in_process import cluster_of, until
from tests.cluster.test_replication import everything, publish
from waystation.cluster.decisions.state import DiskState, PartitionState, disk_key, encode, partition_key
from waystation.cluster.links.peer import Answer, Fetch, PeerRefusal, Request
from waystation.cluster.replica_placement import WantedReplicas
from waystation.cluster.replication import fetching
from waystation.errors import Conflict


def test_an_id_that_was_forgotten_can_be_given_to_a_new_node(tmp_path: Path) -> None:
    """Which has been started less often than the one before."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            first, view = cluster.brokers[1], cluster.view()
            await first.topics.create("orders", 1, wanted=WantedReplicas(assignment=[[1, 2]]))
            leader = await cluster.leader("orders")
            await publish(cluster, leader, "orders", b"1")
            await cluster.stop(3)
            third = await cluster.start(3)
            assert third.member is not None
            for topic in list(first.topics):
                for partition in topic.partitions:
                    await cluster.in_sync(topic.name, {1, 2} if topic.name == "orders" else {1, 2, 3}, partition.index)
            await third.member.membership.drain(True)  # or the broker's own topics come back to it
            await until(lambda: view.living[3].state.draining)
            for topic in list(first.topics):
                for partition in topic.partitions:
                    await first.operations.reassign(topic.id, partition.index, [1, 2])
            await until(lambda: not any(3 in known.state.replicas for _, known in view.partitions()))
            await cluster.stop(3)
            await until(lambda: 3 not in view.living)
            await first.operations.unregister(3)
            await until(lambda: 3 not in view.disks)
            shutil.rmtree(tmp_path / "3")
            await cluster.start(3)
            await first.operations.reassign(first.topics.get("orders").id, 0, [1, 2, 3])
            await cluster.in_sync("orders", {1, 2, 3})
            await until(lambda: everything(cluster, 3, "orders") == [b"1"])

    run(main())


def test_a_leader_that_refuses_to_be_copied_from_is_not_asked_all_the_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1, wanted=WantedReplicas(assignment=[[1, 2, 3]]))
            await cluster.in_sync("orders", {1, 2, 3})
            answering = cluster.network.answering[1]
            asked = 0

            async def refuse(request: Request, connection: str) -> Answer:
                nonlocal asked
                if isinstance(request, Fetch) and request.node_id == 2:
                    asked += 1
                    return PeerRefusal("InternalError", "a mistake of ours")
                return await answering(request, connection)

            cluster.network.answering[1] = refuse
            await until(lambda: asked >= 3)
            before = asked
            await until(lambda: asked > before)
            count = asked
            await asyncio.sleep(5 * fetching.AGAIN_S)
            assert asked - count <= 8
            cluster.network.answering[1] = answering
            await publish(cluster, 1, "orders", b"1")
            await until(lambda: cluster.partition(2, "orders").visible_offset == 1)

    run(main())


def test_what_is_left_of_a_topic_that_was_never_made_does_not_keep_a_node(tmp_path: Path) -> None:
    """Entries of partitions are written before their topic's own. Where the store gives no answer in between, they
    stay, and nobody could move them: no topic has them."""

    async def main() -> None:
        async with cluster_of(tmp_path, nodes=1) as cluster:
            broker, view = cluster.brokers[1], cluster.view()
            topic = await broker.topics.create("orders", 1)
            left = PartitionState((9, 1), 9, 0, (1, 9))
            keys = [partition_key(UUID(int=1), 0), partition_key(topic.id, 1)]
            cluster.store.write({disk_key(9): encode(DiskState("gone", 1)), **dict.fromkeys(keys, encode(left))})
            await until(lambda: 9 in view.disks)
            await broker.operations.unregister(9)
            await until(lambda: 9 not in view.disks)

            cluster.store.write({disk_key(9): encode(DiskState("gone", 1))})
            cluster.store.write({partition_key(topic.id, 0): encode(PartitionState((1, 9), 1, 0, (1,)))})
            await until(lambda: 9 in view.disks and 9 in view.placed(topic.id, 0).replicas)  # type: ignore[union-attr]
            with pytest.raises(Conflict, match="replicas of 1 partition"):
                await broker.operations.unregister(9)

    run(main())
