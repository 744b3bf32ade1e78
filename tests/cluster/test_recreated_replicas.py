"""After an unclean election: a replica whose log begins behind the end of what its new leader has is copied again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.cluster.in_process import Cluster, cluster_of, until
from tests.cluster.test_replication import everything, publish
from waystation.cluster.leadership import Leadership
from waystation.errors import Corrupt, Unavailable
from waystation.topics.partitions.replicated_partition import ReplicatedPartition

pytestmark = pytest.mark.timeout(120)

TOPIC = "orders"


async def heals(folder: Path, deadline_s: float = 20.0) -> tuple[list[bytes], list[bytes]]:
    """What the leader and a replica have that had more before, and had forgotten its beginning."""
    async with cluster_of(folder) as cluster:
        await cluster.brokers[1].topics.create(TOPIC, 1, {"min.insync.replicas": "1"})
        topic_id = cluster.brokers[1].topics.get(TOPIC).id
        await cluster.in_sync(TOPIC, {1, 2, 3})
        leader = await cluster.leader(TOPIC)
        behind = next(one for one in (3, 2) if one != leader)
        await publish(cluster, leader, TOPIC, b"old")
        await until(lambda: cluster.partition(behind, TOPIC).visible_offset == 1)
        await cluster.kill(behind)
        ahead = [one for one in (1, 2, 3) if one != behind]
        await cluster.in_sync(TOPIC, set(ahead))
        leader = await cluster.leader(TOPIC)
        await publish(cluster, leader, TOPIC, *[b"lost %d" % number for number in range(10)])
        await cluster.partition(leader, TOPIC).delete_records(8)
        await publish(cluster, leader, TOPIC, b"lost too")
        await until(lambda: all(cluster.partition(one, TOPIC).start_offset == 8 for one in ahead))
        for one in ahead:
            await cluster.kill(one)
        await cluster.start(behind)
        await until(lambda: not cluster.view().living.keys() & set(ahead))
        await cluster.brokers[behind].operations.elect_unclean(topic_id, 0)
        assert await cluster.leader(TOPIC) == behind
        await publish(cluster, behind, TOPIC, b"new")
        back = ahead[0]
        await cluster.start(back)
        await until(lambda: _in_sync(cluster, topic_id, back), deadline_s)
        await until(lambda: cluster.partition(back, TOPIC).visible_offset == 2, deadline_s)
        found = everything(cluster, behind, TOPIC), everything(cluster, back, TOPIC)
        await cluster.stop(back)
        await cluster.start(back)  # its files are whole
        await until(lambda: _in_sync(cluster, topic_id, back), deadline_s)
        assert everything(cluster, back, TOPIC) == found[1]
        return found


def _in_sync(cluster: Cluster, topic_id: object, node: int) -> bool:
    known = cluster.view().partition(topic_id, 0)  # type: ignore[arg-type]
    return known is not None and node in known.state.in_sync


def test_a_replica_that_cannot_go_back_is_copied_again(tmp_path: Path) -> None:
    assert run(heals(tmp_path)) == ([b"old", b"new"], [b"old", b"new"])


def test_the_audit_sees_a_replica_that_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck(self: Leadership, partition: ReplicatedPartition) -> None:
        raise Unavailable("its log cannot begin again before its end")

    monkeypatch.setattr(Leadership, "_recreate", stuck)
    with pytest.raises(TimeoutError):
        run(heals(tmp_path, 3.0))


def test_a_node_whose_files_were_taken_away_is_not_told_to_go_on_as_if_nothing_were_missing(tmp_path: Path) -> None:
    """It is in the in-sync set still, and could lead with an empty log."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1)
            leader = await cluster.leader("orders")
            await publish(cluster, leader, "orders", b"1")
            await cluster.in_sync("orders", {1, 2, 3})
            missing = Path(cluster.partition(2, "orders").folder)
            await cluster.stop(2)
            shutil.rmtree(missing)
            with pytest.raises(Corrupt, match=r"mkdir -p .* and start this node once with `serve --restored`"):
                await cluster.start(2)

    run(main())
