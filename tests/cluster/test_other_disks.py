"""A node comes back with a disk that did not make its promises: empty, older, or another node's. Or its disk is full.

Each is recognised, and none makes the cluster lose what it acknowledged, not even if that node is the first to come
back after all of them were killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import kit
from tests.clients.crash_load import PARTITIONS, Writing, wait_for_progress
from tests.support.cluster import RealCluster, SmallDisk, why_no_small_disk
from tests.support.names import unique
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RealCluster]:
    with RealCluster(tmp_path / "cluster") as cluster:
        yield cluster


def write_some(cluster: RealCluster, topic: str, goal: int) -> Writing:
    writing = Writing(cluster.bootstrap, topic)
    writing.start()
    wait_for_progress({writing: goal})
    writing.stop()
    return writing


KINDS = ["older", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("another node's", "empty"))]


@pytest.mark.parametrize("kind", KINDS)
def test_another_disk_leads_nothing_though_it_is_the_first_to_come_back(own: RealCluster, kind: str) -> None:
    topic = own.create(unique("disk"))
    victim = own.leader(topic)
    other = next(number for number in own.nodes if number != victim)
    copied = {"older": victim, "another node's": other}.get(kind)
    backup: Path | None = None
    if copied is not None:
        own.stop(copied)
        backup = own.copy_disk(copied)
        own.start_node(copied)
        own.wait_in_sync(topic)
    writing = write_some(own, topic, 500)
    for number in own.nodes:
        own.kill(number)
    if backup is None:
        own.empty_disk(victim)
    else:
        own.replace_disk(victim, backup)
    own.start_node(victim)
    told = [one for one in own.status(asked=victim)["partitions"] if one["topic"] == topic]
    assert len(told) == PARTITIONS
    for one in told:
        assert one["leader"] != victim
        assert victim not in one["isr"]
    assert ("node.other_disk" in own.nodes[victim].log()) == (backup is not None)
    for number in own.nodes:
        if number != victim:
            own.start_node(number)
    own.wait_in_sync(topic)
    writing.check(kit.read_all(own.bootstrap, topic))
    own.kill(other)  # what the victim has copied is as good as what it had
    writing.check(kit.read_all(own.bootstrap, topic))


def test_a_full_disk_of_one_node_is_no_obstacle(tmp_path: Path) -> None:
    reason = why_no_small_disk(tmp_path)
    if reason is not None:
        pytest.skip(reason)
    settings = {"min.insync.replicas": 2, "waystation.disk.free.min.bytes": 0, "log.segment.bytes": 1024 * 1024}
    with RealCluster(tmp_path / "cluster", settings, nodes=2) as cluster:
        cluster.add(3)
        disk = cluster.small_disk(3, 200 * 1024 * 1024)
        cluster.start_node(3)
        topic = cluster.create(unique("full"))
        assert 3 in {cluster.leader(topic, partition) for partition in range(PARTITIONS)}
        writing = Writing(cluster.bootstrap, topic)
        writing.start()
        wait_for_progress({writing: 500})
        _fill_and_free(cluster, topic, writing, disk)
        writing.stop()
        writing.check(kit.read_all(cluster.bootstrap, topic))


def _fill_and_free(cluster: RealCluster, topic: str, writing: Writing, disk: SmallDisk) -> None:
    disk.fill()

    def without_it() -> bool:
        told = [one for one in cluster.status(asked=1)["partitions"] if one["topic"] == topic]
        return all(one["leader"] in (1, 2) and 3 not in one["isr"] for one in told)

    wait_for(without_it, "the others go on without it", within_s=60, every_s=0.2)
    wait_for_progress({writing: 3500})  # more than a producer keeps waiting: all partitions go on
    disk.free()
    cluster.wait_in_sync(topic)
    wait_for_progress({writing: 3500})
