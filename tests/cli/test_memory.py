"""`waystation serve --memory`: a broker that writes nothing to any disk, says so, and has a bound."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import waystation
from tests.cli.kit import command, environment
from tests.protocols.http.kit import Http
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import WaystationError

MIB = 1024 * 1024


def fill(mq: Any, topic: str) -> None:
    """Publishes more than there is room for."""
    for _ in range(200):
        mq.publish_many(topic, [b"x" * 100_000] * 10)


def test_nothing_is_on_disk_and_nothing_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with Server(tmp_path, memory=True) as server:
        http = Http(server.addresses["http"])
        with waystation.connect(f"waystation://{server.bootstrap}") as mq:
            mq.create_topic("orders", 2)
            mq.publish_many("orders", [b"x" * 1_000] * 1_000)
            jobs = mq.queue("jobs")
            jobs.put_many([b"a", b"b", b"c"])
            message = jobs.get(timeout=5)
            message.ack()
            with mq.transaction("tx") as tx:
                tx.publish("orders", b"committed")
            with mq.subscribe("orders", group="g", start="earliest") as subscription:
                wait_for(lambda: subscription.poll(timeout=0.5, max=1), "the first")
        shown = http("GET", "/v1/overview").json
        assert (shown["broker"]["persistent"], shown["broker"]["data"]) == (False, ":memory:")
        assert shown["resources"]["disk_total_bytes"] == 512 * MIB
        banner = server.tail()
    assert "in memory only, at most 512.0 MiB" in banner
    assert "nothing survives a restart" in banner
    assert {path.name for path in tmp_path.iterdir()} == {"server.log", "temporary"}
    assert list(temporary.iterdir()) == []
    with Server(tmp_path, memory=True) as server, waystation.connect(f"waystation://{server.bootstrap}") as mq:
        assert mq.topics() == []


def test_memory_for_data_is_bounded_and_frees_itself(tmp_path: Path) -> None:
    with Server(tmp_path, memory=True, settings={"waystation.memory.data.max.bytes": 32 * MIB}) as server:
        http = Http(server.addresses["http"])
        with waystation.connect(f"waystation://{server.bootstrap}") as mq:
            mq.create_topic("t", 1)
            with pytest.raises(WaystationError):
                fill(mq, "t")
            resources = http("GET", "/v1/overview").json["resources"]
            assert resources["disk_total_bytes"] == 32 * MIB
            assert resources["data_bytes"] <= 32 * MIB
            wait_for(lambda: http("GET", "/healthz").json["status"] == "failing", "it says so")
            reasons = http("GET", "/healthz").json["reasons"]
            assert any("memory for data" in reason["what"] for reason in reasons)
            mq.delete_topic("t")
            wait_for(lambda: http("GET", "/healthz").json["status"] == "ok", "there is room again")
            mq.publish("other", b"x")


def test_memory_of_an_embedded_broker_is_bounded() -> None:
    bound = 8 * MIB
    with waystation.open(":memory:", settings={"waystation.memory.data.max.bytes": bound}) as broker:
        with pytest.raises(WaystationError):
            fill(broker, "t")
        resources = broker.view("overview")["resources"]
        assert resources["disk_total_bytes"] == bound
        assert resources["data_bytes"] <= bound


def test_a_data_folder_and_memory_are_refused_together(tmp_path: Path) -> None:
    for option in ("--data", "--pipelines"):
        words = ("serve", "--memory", option, str(tmp_path), "--kafka", "127.0.0.1:0", "--amqp", "off", "--http", "off")
        done = subprocess.run(command(*words), env=environment(), capture_output=True, timeout=60, check=False)
        assert done.returncode != 0
        assert f"--memory and {option}" in done.stderr.decode()
