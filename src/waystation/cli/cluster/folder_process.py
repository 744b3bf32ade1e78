"""A process that a folder belongs to: who runs it can be found out later, by another command, without guessing.

What must hold: at most one process runs for a folder, and whoever looks knows whether it does. The process inherits a
locked file, so the lock is there as long as the process, however it ends; the file has its pid. A pid that is read
while the lock is taken is that process, never another one that got the same number since.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from waystation.errors import Conflict

STOP_S = 30.0
"""A broker that is told to stop finishes what it does; after this it is killed."""

LOCK = "process"


class FolderProcess:
    """Of a folder. Any command may construct it; only one starts."""

    def __init__(self, folder: Path, log_name: str) -> None:
        self.folder = folder
        self.log = folder / log_name
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Its pid. In a session of its own, so that Ctrl-C in the terminal is for the one who started it. Conflict if
        it runs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _try_lock(lock):
                raise Conflict(f"process {_read_pid(lock)} runs already for {self.folder}")
            os.ftruncate(lock, 0)  # before the process is there: nobody may take the last one's pid for it
            with self.log.open("ab") as log:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(lock,),
                    env=dict(environment),
                )
            os.pwrite(lock, b"%d" % self._child.pid, 0)
            return self._child.pid
        finally:
            os.close(lock)  # the child has it

    def pid(self) -> int | None:
        """None: it does not run."""
        if self._child is not None:
            self._child.poll()  # what has ended is a zombie until somebody asks
        try:
            lock = os.open(self.folder / LOCK, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            while not _try_lock(lock):
                pid = _read_pid(lock)
                if pid is not None:
                    return pid
                time.sleep(0.001)  # it has been started, and its pid is about to be written
            return None
        finally:
            os.close(lock)

    def exit_code(self, pid: int) -> int | None:
        """As Popen has it, if this process was started here and has ended."""
        return None if self._child is None or self._child.pid != pid else self._child.poll()

    def signal(self, number: signal.Signals) -> None:
        pid = self.pid()
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def wait_ended(self, deadline_s: float) -> bool:
        """By the monotonic clock."""
        while self.pid() is not None:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.02)
        return True

    def tail(self, lines: int = 15) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""


def stop_all(processes: Sequence[FolderProcess], within_s: float = STOP_S) -> list[FolderProcess]:
    """Ends all of them at once; those that had to be killed are returned."""
    for process in processes:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # one that was stopped would not see it
    deadline = time.monotonic() + within_s
    late = [process for process in processes if not process.wait_ended(deadline)]
    for process in late:
        process.signal(signal.SIGKILL)
        process.wait_ended(time.monotonic() + within_s)
    return late


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(file: int) -> int | None:
    """None: it is not written yet."""
    text = os.pread(file, 20, 0)
    return int(text) if text.isdigit() else None
