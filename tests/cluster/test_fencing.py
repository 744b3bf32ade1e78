"""A node leads only what is its own to lead: no log that is being cut, and nothing once its id is another process's."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from tests.broker.kit import run
from tests.cluster.in_process import Cluster, cluster_of, until
from tests.cluster.test_queues_in_a_cluster import lead
from tests.cluster.test_replication import everything, publish
from waystation.broker.broker import Broker
from waystation.cluster.decisions.state import DiskState, disk_key, encode, partition_key
from waystation.cluster.member import ClusterMember
from waystation.errors import NodeIdTaken
from waystation.topics.topics import QUEUES_TOPIC


@dataclass(frozen=True)
class Orders:
    """A topic of one partition, and a node that follows it."""

    cluster: Cluster
    leader: int
    follower: int

    @property
    def member(self) -> ClusterMember:
        return member_of(self.cluster.brokers[self.follower])

    def hand_over(self) -> None:
        """Says to the store what the leader would say: the follower leads the next epoch."""
        topic = self.cluster.brokers[self.leader].topics.get("orders")
        known = self.member.view.partition(topic.id, 0)
        assert known is not None
        state = msgspec.structs.replace(known.state, leader=self.follower, epoch=known.state.epoch + 1)
        store = self.cluster.brokers[self.leader].catalog
        store.write({partition_key(topic.id, 0): encode(state)}, {known.key: known.revision})


def member_of(broker: Broker) -> ClusterMember:
    assert broker.member is not None
    return broker.member


async def orders_of(cluster: Cluster) -> Orders:
    await cluster.brokers[1].topics.create("orders", 1)
    leader = await cluster.leader("orders")
    await cluster.in_sync("orders", {1, 2, 3})
    return Orders(cluster, leader, next(one for one in cluster.brokers if one != leader))


def test_a_log_that_is_being_truncated_is_led_when_that_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            orders = await orders_of(cluster)
            partition = cluster.partition(orders.follower, "orders")
            leadership = orders.member.leadership
            key = (partition.topic.id, 0)
            leadership._cutting.add(key)  # as a fetcher does while it truncates
            orders.hand_over()
            await until(lambda: orders.member.view.placed(*key).leader == orders.follower)  # type: ignore[union-attr]
            assert not partition.leads, "followers would promise what is about to be cut off"
            leadership._cutting.discard(key)
            leadership._learn(key)
            assert partition.leads

    run(main())


def test_a_copy_of_the_folder_of_a_node_that_runs_is_refused(tmp_path: Path) -> None:
    """It has not what the living one has acknowledged since it was made, and would lead in its place."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            orders = await orders_of(cluster)
            shutil.copytree(tmp_path / str(orders.leader), tmp_path / "copy")
            await publish(cluster, orders.leader, "orders", b"acknowledged")
            living = cluster.brokers[orders.leader]
            with pytest.raises(NodeIdTaken, match="from a copy of this data folder"):
                await cluster.start(orders.leader, folder="copy")
            cluster.faces[orders.leader] = living.catalog  # type: ignore[assignment]
            assert everything(cluster, orders.follower, "orders") == [b"acknowledged"]
            assert cluster.partition(orders.leader, "orders").leads

    run(main())


def test_a_process_leads_nothing_once_another_has_started_under_its_id(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            orders = await orders_of(cluster)
            fenced: list[bool] = []
            old = cluster.brokers[orders.leader]
            membership = member_of(old).membership
            membership.on_fenced = lambda: fenced.append(True)
            disk = membership.identity.disk
            successor = DiskState(disk.state.folder, disk.state.incarnation + 1)
            old.catalog.write({disk_key(orders.leader): encode(successor)}, {disk.key: disk.revision})
            await until(lambda: bool(fenced))
            assert not cluster.partition(orders.leader, "orders").leads
            assert not member_of(old).leadership.led()

    run(main())


def test_a_mistake_in_what_is_dropped_keeps_nobody_from_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers are told, by whatever protocol they came. What that raises must not leave the node leading, there or in
    partitions that the same write of the store has moved."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            for index in range(2):
                await lead(cluster, QUEUES_TOPIC, index, 1)
            topic = cluster.brokers[1].topics.get(QUEUES_TOPIC)
            broker = cluster.brokers[1]
            await until(lambda: broker.shards.find(0) and broker.shards.find(1))
            monkeypatch.setattr(broker.shards, "drop", mistake)
            known = [member_of(broker).view.partition(topic.id, index) for index in range(2)]
            moved = {
                one.key: encode(msgspec.structs.replace(one.state, leader=2, epoch=one.state.epoch + 1))
                for one in known
                if one is not None
            }
            cluster.store.write(moved)
            for index in range(2):
                led = cluster.partition(2, QUEUES_TOPIC, index)
                await until(lambda led=led: led.leads)  # type: ignore[misc]
                former = cluster.partition(1, QUEUES_TOPIC, index)
                await until(lambda former=former: not former.leads, 5)  # type: ignore[misc]
                assert former.leader == 2
            monkeypatch.undo()

    run(main())


def mistake(*_: object) -> None:
    raise RuntimeError("a consumer cannot be told")
