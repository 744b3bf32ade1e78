"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.kit import environment
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


def test_a_stranger_gets_a_fresh_broker_per_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "waystation.pytest_plugin"]
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        env={**environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
