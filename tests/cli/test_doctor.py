"""`waystation doctor`: what it finds, what it says of it, and that it leaves nothing behind."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.kit import QuickCli
from tests.support.server import Server
from waystation.broker.broker import LOCK_FILE as BROKERS_LOCK_FILE
from waystation.cli.doctor import disk as doctor_disk
from waystation.cli.doctor.disk import LOCK_FILE, file_system_of, judge_sync
from waystation.cli.doctor.findings import Finding, worst
from waystation.cli.doctor.ports import who_answers
from waystation.cli.doctor.system import judge_clock, look_at_spark, memory
from waystation.client.links.address import Address, parse_address
from waystation.version import __version__

offline = QuickCli("127.0.0.1:1")


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default ports may be somebody's on this machine."""
    for listener in ("KAFKA", "AMQP", "HTTP"):
        monkeypatch.setenv(f"WAYSTATION_{listener}", "127.0.0.1:0")


def checks(done: Any) -> dict[str, Any]:
    return {one["check"]: one for one in done.json["checks"]}


@pytest.mark.usefixtures("anywhere")
def test_it_looks_at_everything_and_leaves_nothing_behind(tmp_path: Path) -> None:
    data = tmp_path / "deep" / "data"
    found = checks(offline("doctor", "--data", str(data), "--json"))
    assert found.keys() >= {
        "python", "waystation", "packages", "uvloop", "kafka port", "amqp port", "http port", "data", "file system",
        "free space", "disk speed", "fsync", "open files", "core files", "memory", "processors", "spark", "clock",
    }  # fmt: skip
    assert found["waystation"]["version"] == __version__
    assert found["fsync"]["count"] >= 1
    assert 0 <= found["fsync"]["median_ms"] <= found["fsync"]["p99_ms"]
    assert found["disk speed"]["bytes_per_s"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("anywhere")
def test_people_get_a_line_for_each(tmp_path: Path) -> None:
    done = offline("doctor", "--data", str(tmp_path), "--no-disk-test")
    assert any(line.startswith("ok       python       CPython") for line in done.lines)
    assert not any("fsync" in line for line in done.lines)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("anywhere")
def test_topics_that_the_catalog_does_not_know_are_warned_of(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found" / "#12345").touch()  # what fsck puts there is not ours
    assert "lost topics" not in checks(offline("doctor", "--data", str(tmp_path), "--no-disk-test", "--json"))
    (tmp_path / "lost+found" / "orders.3f2a9c41").mkdir()
    found = checks(offline("doctor", "--data", str(tmp_path), "--no-disk-test", "--json"))["lost topics"]
    assert (found["state"], found["folders"]) == ("warning", 1)
    assert f"waystation lost list {tmp_path}" in found["advice"]


@pytest.mark.usefixtures("anywhere")
def test_a_folder_that_cannot_be_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = offline("doctor", "--data", str(file), "--no-disk-test", "--json", code=1)
    assert done.json["state"] == "problem"
    assert checks(done)["data"]["advice"]


def test_a_running_broker_is_recognised_at_every_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(tmp_path) as server:
        for listener, address in server.addresses.items():
            assert who_answers(listener, parse_address(address, default_port=0)) == __version__
            monkeypatch.setenv(f"WAYSTATION_{listener.upper()}", address)
        done = offline("doctor", "--data", str(server.data), "--no-disk-test", "--json")
        found = checks(done)
        assert found["kafka port"]["waystation"] == __version__
        assert found["lock"]["pid"] == (server.process.pid if server.process else None)
    after = checks(offline("doctor", "--data", str(server.data), "--no-disk-test", "--json"))
    assert after["lock"]["pid"] is None
    assert after["kafka port"]["free"]


@pytest.fixture
def stranger() -> Iterator[Address]:
    """Somebody who listens and says something else."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Address("127.0.0.1", server.getsockname()[1])


@pytest.mark.usefixtures("anywhere")
def test_a_port_of_somebody_else_is_a_problem(
    stranger: Address, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WAYSTATION_AMQP", str(stranger))
    done = offline("doctor", "--data", str(tmp_path), "--no-disk-test", "--json", code=1)
    found = checks(done)["amqp port"]
    assert (found["state"], found["free"], found["waystation"]) == ("problem", False, None)
    assert str(stranger.port) in found["advice"]


@pytest.mark.usefixtures("anywhere")
def test_an_address_that_others_reach_and_one_that_is_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WAYSTATION_KAFKA", "0.0.0.0:9092")
    monkeypatch.setenv("WAYSTATION_HTTP", "off")
    found = checks(offline("doctor", "--data", str(tmp_path), "--no-disk-test", "--json", code=1))
    assert "--insecure" in found["kafka port"]["says"]
    assert "off" in found["http port"]["says"]


def test_the_lock_is_the_brokers() -> None:
    assert LOCK_FILE == BROKERS_LOCK_FILE


MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /tmp rw - tmpfs tmpfs rw
31 22 0:26 / /mnt/net\040share rw,relatime - nfs4 server:/x rw
32 22 0:27 / /var/lib/docker/overlay rw - overlay overlay rw
40 30 8:2 / /tmp rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/srv/data", "ext4"), ("/tmp/data", "xfs"), ("/mnt/net share/data", "nfs4"), ("/tmpx", "ext4")],
)
def test_the_file_system_is_that_of_the_nearest_mount(folder: str, kind: str) -> None:
    assert file_system_of(Path(folder), MOUNTS) == kind


@pytest.mark.parametrize(("kind", "word"), [("nfs4", "machine"), ("tmpfs", "memory"), ("overlay", "container")])
def test_file_systems_that_keep_little_are_warned_of(
    kind: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_disk, "file_system_of", lambda folder, mounts: kind)
    found = {one.check: one for one in doctor_disk.look_at_folder(str(tmp_path), 0, measure=False)}
    assert found["file system"].state == "warning"
    assert word in found["file system"].says


def test_too_little_room_is_a_problem(tmp_path: Path) -> None:
    found = {one.check: one for one in doctor_disk.look_at_folder(str(tmp_path), 2**62, measure=False)}
    assert found["free space"].state == "problem"


@pytest.mark.parametrize(
    ("times_ms", "state", "word"),
    [([1.0] * 200, "ok", "1.00 ms"), ([0.001] * 200, "warning", "too fast"), ([50.0] * 20, "warning", "faster disk"),
     ([1.0] * 97 + [500.0] * 3, "warning", "500.00")],
)  # fmt: skip
def test_what_times_of_fsync_mean(times_ms: list[float], state: str, word: str) -> None:
    found = judge_sync(times_ms)
    assert found.state == state
    assert word in f"{found.says} {found.advice}"


def test_a_clock_that_jumps_or_was_never_set() -> None:
    assert judge_clock(1_800_000_000, 0.001).state == "ok"
    assert judge_clock(1_800_000_000, -3.0).state == "warning"
    assert judge_clock(0, 0).state == "problem"


def test_memory_is_what_the_group_may_use(tmp_path: Path) -> None:
    system, group = tmp_path / "meminfo", tmp_path / "group"
    assert memory(system, group) == (None, None)
    system.write_text("MemTotal:  1000 kB\nMemAvailable:  600 kB\nHugePages_Total:  0\n")
    assert memory(system, group) == (600 * 1024, 1000 * 1024)
    group.mkdir()
    (group / "memory.max").write_text("max\n")
    assert memory(system, group) == (600 * 1024, 1000 * 1024)
    (group / "memory.max").write_text("102400\n")
    (group / "memory.current").write_text("2400\n")
    assert memory(system, group) == (100_000, 102_400)


def test_spark_is_found_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(sys.modules)
    list(look_at_spark(os.environ))
    assert "pyspark" not in set(sys.modules) - before


def test_the_worst_counts() -> None:
    def found(state: Any) -> Finding:
        return Finding(check="x", state=state, says="y")

    assert worst([]) == "ok"
    assert worst([found("ok"), found("problem"), found("warning")]) == "problem"
