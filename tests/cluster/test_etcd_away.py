"""etcd is away for longer than a lease, under load: what runs goes on, and what had to wait is done when it is back."""

from __future__ import annotations

import pytest

from tests.clients import kit
from tests.clients.crash_load import Writing, wait_for_progress
from tests.cluster.client_loads import ConfluentReading
from tests.support.cluster import ClusterOfThree
from tests.support.names import unique
from tests.support.waiting import wait_for
from waystation.cluster.membership import LEASE_S

pytestmark = pytest.mark.timeout(300)


def leaders(cluster: ClusterOfThree, topic: str) -> list[tuple[int, int]]:
    told = cluster.status()["partitions"]
    return [(one["leader"], one["epoch"]) for one in told if one["topic"] == topic]


def test_what_runs_goes_on_while_etcd_hangs_and_when_it_comes_back(cluster: ClusterOfThree) -> None:
    topic = cluster.create(unique("hangs"))
    cluster.wait_whole()
    before = leaders(cluster, topic)
    writing, reading = Writing(cluster.bootstrap, topic), ConfluentReading(cluster.bootstrap, topic, unique("g"))
    goals = {writing: 3500, reading: 500}
    for load in goals:
        load.start()
    wait_for_progress(goals)
    cluster.etcd.pause()
    try:
        for _ in range(round(1.5 * LEASE_S)):  # about a second each
            wait_for_progress(goals)
    finally:
        cluster.etcd.resume()
    cluster.wait_whole()
    wait_for_progress(goals)
    assert leaders(cluster, topic) == before
    writing.stop()
    wait_for(lambda: reading.progress >= writing.sent, "everything is read")
    reading.stop()
    writing.check(kit.read_all(cluster.bootstrap, topic))
    reading.check(writing.acknowledged)


def test_a_leader_that_is_killed_while_etcd_is_down_is_replaced_when_it_is_back(cluster: ClusterOfThree) -> None:
    topic = cluster.create(unique("down"))
    writing = Writing(cluster.bootstrap, topic)
    writing.start()
    wait_for_progress({writing: 500})
    killed = cluster.leader(topic)
    cluster.etcd.kill()
    cluster.kill(killed)
    cluster.etcd.start()
    wait_for_progress({writing: 3500})  # more than a producer keeps waiting: all partitions go on
    assert cluster.leader(topic) != killed
    cluster.start_node(killed)
    cluster.wait_in_sync(topic)
    writing.stop()
    writing.check(kit.read_all(cluster.bootstrap, topic))
