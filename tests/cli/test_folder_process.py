"""A process that belongs to a folder: one at a time, found by whoever looks, however it ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_for
from waystation.cli.cluster.folder_process import FolderProcess, stop_all
from waystation.errors import Conflict

POLITE = "import time; print('started', flush=True); time.sleep(1000)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {POLITE}"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[FolderProcess]:
    made = FolderProcess(tmp_path / "it", "log")
    yield made
    made.signal(signal.SIGKILL)


def start(process: FolderProcess, program: str = POLITE) -> int:
    pid = process.start([sys.executable, "-c", program], os.environ)
    wait_for(lambda: "started" in process.tail(), "it has started")
    return pid


def test_another_command_finds_it_and_cannot_start_a_second(process: FolderProcess) -> None:
    other = FolderProcess(process.folder, "log")
    assert other.pid() is None
    pid = start(process)
    assert process.pid() == other.pid() == pid
    with pytest.raises(Conflict, match=f"process {pid} runs already"):
        other.start(["true"], os.environ)
    assert stop_all([other]) == []
    assert process.pid() is None
    assert start(other) != pid


def test_after_kill_9_it_does_not_run_though_its_pid_is_in_the_file(process: FolderProcess) -> None:
    pid = start(process)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: process.pid() is None, "it has ended")
    assert process.exit_code(pid) == -signal.SIGKILL
    assert FolderProcess(process.folder, "log").pid() is None
    assert start(process) == process.pid()


def test_one_that_does_not_stop_is_killed_and_named_and_one_that_was_paused_is_stopped(
    process: FolderProcess, tmp_path: Path
) -> None:
    paused = FolderProcess(tmp_path / "paused", "log")
    start(process, STUBBORN)
    pid = start(paused)
    os.kill(pid, signal.SIGSTOP)
    assert stop_all([process, paused], within_s=2) == [process]
    assert process.pid() is None
    assert paused.exit_code(pid) == -signal.SIGTERM
