"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.kit import environment
from tests.support import etcd
from tests.support.waiting import DEADLINE_S

TESTS = """
import json
import queue
import urllib.request

import pytest
import waystation as ws

SEEN = []


@pytest.fixture
def waystation_settings():
    return {"num.partitions": "3"}


@pytest.mark.parametrize("round", [1, 2])
def test_each_test_has_a_broker_of_its_own(waystation, round):
    assert waystation.queues() == []
    cluster = waystation.view("overview")["broker"]["cluster_id"]
    assert cluster not in SEEN
    SEEN.append(cluster)
    waystation.queue("jobs").put("x")


def test_settings_can_be_chosen(waystation):
    assert waystation.publish("t", b"").partition in range(3)
    assert len(waystation.describe_topic("t").partitions) == 3


def test_all_doors_are_open(waystation, waystation_client):
    waystation_client.queue("jobs").put({"n": 1})
    with waystation.queue("jobs").get(timeout=30) as message:
        assert message.json() == {"n": 1}
    with urllib.request.urlopen(f"http://{waystation.http}/openapi.json") as answer:
        assert json.load(answer)["openapi"]
    with ws.connect(waystation.url) as program:
        assert program.ping() >= 0


def test_handlers_are_called(waystation):
    got = queue.Queue()
    waystation.on("events.*")(lambda message: got.put(message.text()))
    waystation.publish("events.login", "anna")
    assert got.get(timeout=30) == "anna"
"""


CLUSTER_TESTS = """
import pytest
from confluent_kafka import Producer


@pytest.fixture
def waystation_settings():
    return {"num.partitions": "3"}


def publish(cluster, count):
    producer = Producer({"bootstrap.servers": cluster.kafka, "acks": "all", "log_level": 0})
    lost = []
    for number in range(count):
        producer.produce("orders", b"%d" % number, on_delivery=lambda error, _: lost.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not lost


def test_work_goes_on_without_a_node(waystation_cluster):
    publish(waystation_cluster, 10)
    killed = waystation_cluster.leader("orders")
    killed.kill()
    assert killed.pid is None
    publish(waystation_cluster, 10)
    killed.start()
    waystation_cluster.wait_until_whole()
    stopped = waystation_cluster.leader("orders", 2)
    stopped.stop()
    publish(waystation_cluster, 10)
    print("PIDS", *(node.pid for node in waystation_cluster.nodes.values() if node.pid))
"""


def test_a_stranger_gets_a_fresh_broker_per_test(tmp_path: Path) -> None:
    assert "5 passed" in _run(tmp_path, TESTS)


@pytest.mark.timeout(300)
def test_a_stranger_gets_a_cluster_whose_nodes_it_can_kill(tmp_path: Path) -> None:
    etcd.need()
    told = _run(tmp_path, CLUSTER_TESTS, "-s")
    assert "1 passed" in told
    (pids,) = re.findall("PIDS (.*)", told)
    assert len(pids.split()) == 2
    assert not any(Path("/proc", pid).exists() for pid in pids.split())


def test_a_stranger_without_etcd_is_told_why_the_test_is_skipped(tmp_path: Path) -> None:
    told = _run(tmp_path, CLUSTER_TESTS, "-rs", PATH="")
    assert "1 skipped" in told
    assert "there is no etcd on this machine" in told


def _run(folder: Path, tests: str, *options: str, **variables: str) -> str:
    """What pytest prints of tests that pass."""
    (folder / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "waystation.pytest_plugin"]
    done = subprocess.run(
        [*command, *options, str(folder)],
        cwd=folder,
        env={**environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables},
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
