"""A broker that was alone becomes three nodes and then two, under load: no client meets an error, nothing is lost,
doubled or reordered. `tests/cli/test_cluster.py` does it without load."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.clients import kit
from tests.clients.crash_load import PARTITIONS, Writing, wait_for_progress
from tests.cluster.client_loads import ConfluentReading
from tests.support.cluster import PROGRAM, RealCluster, environment
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)


@pytest.mark.soak
def test_from_one_adopted_broker_to_three_nodes_and_to_two_under_load(tmp_path: Path) -> None:
    topic = "grown"
    with Server(tmp_path / "alone") as alone:
        _run("topics", "create", topic, "--partitions", str(PARTITIONS), "--server", alone.bootstrap)
        early = [(one.partition() or 0, one.offset() or 0, one.value() or b"") for one in _write_early(alone, topic)]
    cluster = RealCluster(tmp_path / "cluster", {"min.insync.replicas": 1}, nodes=0)
    with cluster:
        first = cluster.add(1)
        shutil.copytree(alone.data, first.data)
        _run("cluster", "adopt", "--data", str(first.data), "--node", "1", "--cluster", cluster.url)
        cluster.start_node(1)
        writing = Writing(cluster.bootstrap, topic)
        reading = ConfluentReading(cluster.bootstrap, topic, unique("g"))
        goals = {writing: 300, reading: 300}
        for load in goals:
            load.start()
        wait_for_progress(goals)
        for number in (2, 3):
            cluster.add(number)
            cluster.start_node(number)
        cluster.run("cluster", "reassign", "--replication-factor", "3", "--wait")
        cluster.wait_in_sync(topic)
        wait_for_progress(goals)
        cluster.run("cluster", "remove", "1", "--yes", asked=2, code=1)  # moved away, and told to stop it
        wait_for_progress(goals)
        cluster.stop(1)
        cluster.run("cluster", "remove", "1", "--yes", asked=2)
        assert [node["id"] for node in cluster.status(asked=2)["nodes"]] == [2, 3]
        del cluster.nodes[1]
        cluster.wait_whole()
        wait_for_progress(goals)
        writing.stop()
        total = writing.sent + len(early)
        wait_for(lambda: reading.progress >= total, "everything is read")
        reading.stop()
        everything = {(partition, offset): value for partition, offset, value in early} | writing.acknowledged
        assert len(everything) == total
        for partition in range(PARTITIONS):
            numbers = [int(value) for (one, _), value in sorted(writing.acknowledged.items()) if one == partition]
            assert numbers == list(range(partition, writing.sent, PARTITIONS))
        reading.check(everything)
        found = kit.read_all(cluster.bootstrap, topic)
        assert {(one.partition() or 0, one.offset() or 0): one.value() for one in found} == everything


def _write_early(alone: Server, topic: str) -> list[Message]:
    return [
        one
        for partition in range(PARTITIONS)
        for one in kit.produce(alone.bootstrap, topic, kit.numbered(100), partition=partition)
    ]


def _run(*words: str) -> None:
    done = subprocess.run(
        [*PROGRAM, *words], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
