"""etcd is put back from a backup, which knows less than the logs: nothing is truncated, and an operator decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import kit
from tests.support.cluster import RealCluster
from tests.support.names import unique
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)


def test_a_partition_that_is_ahead_of_etcd_is_led_again_when_an_operator_says_so(tmp_path: Path) -> None:
    with RealCluster(tmp_path / "cluster") as cluster:
        topic = cluster.create(unique("ahead"), 1)
        kit.produce(cluster.bootstrap, topic, [b"early"])
        backup = cluster.copy_etcd()
        cluster.wait_whole()
        before = cluster.leader(topic)
        order = sorted(cluster.nodes, key=lambda number: number == before)
        moved = ",".join(map(str, order))
        cluster.run("cluster", "reassign", topic, "--partition", "0", "--replicas", moved, "--wait")
        wait_for(lambda: cluster.leader(topic) == order[0], "another one leads", within_s=60)
        values = kit.numbered(100)
        kit.produce(cluster.bootstrap, topic, values)
        for number in cluster.nodes:
            cluster.kill(number)
        cluster.restore_etcd(backup)
        for node in cluster.nodes.values():
            node.launch()
        for node in cluster.nodes.values():
            node.wait_ready()
            wait_for(lambda node=node: "partition.store_went_back" in node.log(), "it is told")  # type: ignore[misc]
        for asked in cluster.nodes:
            told = cluster.status(asked)
            (shown,) = [one for one in told["partitions"] if one["topic"] == topic]
            assert shown["leader"] is None
            assert shown["log_end"] == 101
            assert told["offline"] >= 1
            assert topic in cluster.run("cluster", "status", "--which", "offline", asked=asked, code=1)
        chosen = order[1]
        cluster.run("cluster", "elect", topic, "--partition", "0", "--unclean", "--yes", asked=chosen)
        cluster.wait_in_sync(topic)
        assert [one.value() for one in kit.read_all(cluster.bootstrap, topic)] == [b"early", *values]
        kit.produce(cluster.bootstrap, topic, [b"late"])
