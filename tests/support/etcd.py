"""An etcd of a test's own: Debian's `etcd-server`, a private folder, a free port. Ended by its own pid."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from types import TracebackType

import pytest

from tests.support.waiting import wait_for
from waystation.cli.cluster.etcd_process import EtcdProcess


def need() -> None:
    if shutil.which("etcd") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("etcd is missing (Debian: etcd-server)")
        pytest.skip("etcd is not installed (Debian: etcd-server)")


class Etcd(EtcdProcess):
    """With what tests do to it."""

    def __enter__(self) -> Etcd:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def url(self, prefix: str, options: str = "", user: str = "") -> str:
        return f"etcd://{user}{self.address}/{prefix}{options}"

    def pause(self) -> None:
        """Returns when all of its threads have stopped."""
        self.process.signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid()}/task")
        wait_for(lambda: all(_state(task) == "T" for task in tasks.iterdir()), "etcd has stopped", every_s=0.005)

    def resume(self) -> None:
        self.process.signal(signal.SIGCONT)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:  # it has ended
        return "T"
