"""Every node is drained, stopped and started in turn, under load: clients see no error, and no record twice or late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients import kit
from tests.clients.crash_load import Writing, wait_for_progress
from tests.cluster.client_loads import READINGS
from tests.support.cluster import ClusterOfThree
from tests.support.names import unique
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfThree]:
    """Of its own: what others have left with one replica is away while its node is restarted."""
    with ClusterOfThree(tmp_path_factory.mktemp("rolling")) as cluster:
        yield cluster


def test_a_drain_ends_though_a_partition_has_no_other_replica(cluster: ClusterOfThree) -> None:
    topic = cluster.create(unique("single"), 3, 1)
    number = cluster.leader(topic)
    told = cluster.run("cluster", "drain", str(number))
    assert f"node {number} leads 1 partition that no other node has" in told
    cluster.run("cluster", "drain", str(number), "--undo")
    cluster.admin.delete_topics([topic])[topic].result(30)


def test_a_rolling_restart_under_load_is_seen_by_no_client(cluster: ClusterOfThree) -> None:
    _restart_all(cluster, 1)


@pytest.mark.soak
def test_ten_rolling_restarts_under_load_are_seen_by_no_client(cluster: ClusterOfThree) -> None:
    _restart_all(cluster, 10)


def _restart_all(cluster: ClusterOfThree, rounds: int) -> None:
    topic = cluster.create(unique("rolling"))
    writing = Writing(cluster.bootstrap, topic)
    readings = [kind(cluster.bootstrap, topic, unique("g")) for kind in READINGS]
    goals = dict.fromkeys((writing, *readings), 300)
    for load in goals:
        load.start()
    for _ in range(rounds):
        for number in cluster.nodes:
            wait_for_progress(goals)
            cluster.run("cluster", "drain", str(number))
            wait_for_progress(goals)
            cluster.stop(number)
            wait_for_progress(goals)
            cluster.start_node(number)
            cluster.wait_whole()
    wait_for_progress(goals)
    writing.stop()
    for reading in readings:
        wait_for(lambda reading=reading: reading.progress >= writing.sent, "everything is read")  # type: ignore[misc]
        reading.stop()
    writing.check(kit.read_all(cluster.bootstrap, topic))
    for reading in readings:
        reading.check(writing.acknowledged)
