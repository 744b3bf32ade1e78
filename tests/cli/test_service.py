"""Waystation as a service: what systemd is told, and the unit that comes with it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cli.kit import command, environment
from tests.support.server import ROOT
from tests.support.waiting import DEADLINE_S
from waystation.cli.server.config_file import check_config
from waystation.cli.server.service import tell_service_manager

FOLDER = ROOT / "deploy" / "systemd"
UNIT = FOLDER / "waystation.service"


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_when_it_is_ready_and_when_it_stops(tmp_path: Path, abstract: bool) -> None:
    name = f"@waystation-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(DEADLINE_S)
        words = [word for listener in ("kafka", "amqp", "http") for word in (f"--{listener}", "127.0.0.1:0")]
        process = subprocess.Popen(
            command("serve", "--data", str(tmp_path / "data"), *words),
            env=environment({"NOTIFY_SOCKET": name}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            said = manager.recv(4096).decode().splitlines()
            assert said[0] == "READY=1"
            address = re.search(r"kafka (127\.0\.0\.1):(\d+)", said[1])
            assert address is not None, said
            socket.create_connection((address[1], int(address[2])), timeout=DEADLINE_S).close()
            process.send_signal(signal.SIGTERM)
            assert manager.recv(4096) == b"STOPPING=1"
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            process.communicate()


def test_nobody_who_listens_is_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not tell_service_manager("READY=1")
    for address in (str(tmp_path / "gone"), "not-a-path", "@" + "x" * 500):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert not tell_service_manager("READY=1")


def unit_here(folder: Path) -> Path:
    """The unit with a program that is there: systemd looks whether it is."""
    program = folder / "waystation"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = folder / "waystation.service"
    path.write_text(UNIT.read_text().replace("/opt/waystation/bin/waystation", str(program)))
    return path


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit_here(tmp_path))], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "waystation.service" in line]
    assert complaints == []
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_gives_away_little(tmp_path: Path) -> None:
    """systemd's own measure of what a service could do to the machine: 0 nothing, 10 anything."""
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit_here(tmp_path))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "offline" in done.stderr and done.returncode:
        pytest.skip("this systemd-analyze cannot look at a unit that is not installed")
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= 2.0


def test_the_units_files_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "operations" / "running-as-a-service.md").read_text()
    for path in re.findall(r"/(?:etc|var|opt)/\S*waystation[^\s=]*", UNIT.read_text()):
        assert path.rstrip(".,") in page


def test_the_config_file_of_the_service_is_right() -> None:
    config = check_config(str(FOLDER / "waystation.toml"))
    assert config.mistakes == []
    assert config.options["data"].text == "/var/lib/waystation"
