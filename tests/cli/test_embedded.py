"""`waystation.open`: the broker inside a Python process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import waystation
from tests.cli.kit import Cli, environment
from tests.support.waiting import DEADLINE_S
from waystation.world.disk import OsFile


def publish(address: str, topic: str, value: bytes) -> None:
    with waystation.connect(address) as mq:
        mq.publish(topic, value)


def test_it_runs_beside_the_caller_and_other_processes_reach_it(tmp_path: Path) -> None:
    with waystation.open(tmp_path / "data") as broker:
        publish(broker.kafka, "t", b"from inside")
        assert Cli(broker.kafka)("consume", "t").lines == ["from inside"]
        assert broker.data == str(tmp_path / "data")


def test_data_is_kept_and_the_folder_is_free_after_close(tmp_path: Path) -> None:
    for _ in range(2):
        with waystation.open(tmp_path) as broker:
            publish(broker.kafka, "t", b"x")
    with waystation.open(tmp_path) as broker:
        assert Cli(broker.kafka)("consume", "t").lines == ["x", "x"]


def test_after_close_nothing_is_left(tmp_path: Path) -> None:
    before = threading.active_count()
    broker = waystation.open(tmp_path)
    broker.close()
    broker.close()
    assert threading.active_count() == before
    with pytest.raises(waystation.errors.ConnectionLost, match="no server answers"):
        waystation.connect(broker.kafka)


def test_a_folder_in_use_is_refused_in_the_caller(tmp_path: Path) -> None:
    before = threading.active_count()
    with waystation.open(tmp_path) as first:
        running = threading.active_count()
        with pytest.raises(waystation.errors.DataInUse, match="pid"):
            waystation.open(tmp_path)
        assert threading.active_count() == running
        publish(first.kafka, "t", b"x")
    assert threading.active_count() == before


def test_several_brokers_live_in_one_process(tmp_path: Path) -> None:
    with waystation.open(tmp_path / "a") as one, waystation.open(tmp_path / "b") as other:
        publish(one.kafka, "only-in-a", b"x")
        with waystation.connect(other.kafka) as mq:
            assert "only-in-a" not in [topic.topic for topic in mq.topics()]


def test_settings_hold_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    with waystation.open(tmp_path, settings={"num.partitions": "3"}) as broker:
        publish(broker.kafka, "t", b"x")
        assert len(broker.describe_topic("t").partitions) == 3
    with pytest.raises(waystation.errors.InvalidSetting, match=r"num\.partitions"):
        waystation.open(tmp_path, settings={"num.partition": "3"})


def test_only_this_machine_can_be_served(tmp_path: Path) -> None:
    with pytest.raises(waystation.errors.Invalid, match="this machine only"):
        waystation.open(tmp_path, kafka="0.0.0.0:0")


def test_a_taken_port_is_refused_and_the_folder_given_back(tmp_path: Path) -> None:
    with waystation.open(tmp_path / "a") as broker:
        with pytest.raises(waystation.errors.Unavailable, match="cannot listen"):
            waystation.open(tmp_path / "b", kafka=broker.kafka)
        waystation.open(tmp_path / "b").close()


def test_memory_has_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with waystation.open(":memory:") as broker:
        publish(broker.kafka, "t", b"x")
        assert broker.data == ":memory:"
        assert broker.view("overview")["broker"]["persistent"] is False
        assert list(tmp_path.iterdir()) == []
    with waystation.open(":memory:") as broker:
        assert broker.topics() == []
    with waystation.open(tmp_path / "data") as broker:
        assert broker.view("overview")["broker"]["persistent"] is True


FORGETFUL = """
import sys, waystation
broker = waystation.open(sys.argv[1])
print(broker.kafka)
"""


def test_a_process_that_forgets_to_close_ends_cleanly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    waystation.open(tmp_path).close()


def test_offsets_in_memory_are_committed_without_waiting_for_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed offsets wait for a sync in every flush mode; where nothing is to survive, a sync does nothing."""
    synced: list[OsFile] = []
    monkeypatch.setattr(OsFile, "sync", synced.append)
    with waystation.open(":memory:") as broker:
        publish(broker.kafka, "t", b"x")
        consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "readers"})
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        [found] = consumer.committed([TopicPartition("t", 0)], timeout=30)
        consumer.close()
        assert found.offset == 1
    assert synced == []
