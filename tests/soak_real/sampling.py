"""The broker's memory, files, tasks and connections, seen from outside, and whether they grow.

A sample belongs to a life (from a start to the next kill) and has the life's age. With kills, lives are compared at
equal ages: the first ones with the last ones. Without, the second third of the run is compared with its end.
"""

from __future__ import annotations

import http.client
import json
import signal
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tests.support.ports import split_address
from tests.support.server import Server

WATCHED = Path(__file__).with_name("watched_serve.py")
MIB = 1 << 20
GROWTH = {"rss_mib": (0.10, 6.0), "files": (0.25, 30.0), "tasks": (0.25, 20.0), "connections": (0.25, 10.0)}
"""More than this share and this much, both, is growth: below it is noise of a load that ebbs and flows."""
SETTLED = 0.5
"""Ages below this share of the longest life are a broker that is still filling its caches."""
ENOUGH_LIVES = 8
ENOUGH_MINUTES = 15.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the process. `tasks` is -1 where it did not answer."""

    life: int
    age_s: float
    rss_mib: float
    files: int
    threads: int
    tasks: int
    connections: int
    cpu_s: float


class WatchedServer(Server):
    """A broker that can be asked for its tasks; otherwise the same program with the same arguments."""

    python: Sequence[str] = ()
    window_suffix = "json"

    @property
    def window(self) -> Path:
        return self.folder / f"window.{self.window_suffix}"

    def _command(self, ready: Path) -> list[str]:
        command = super()._command(ready)
        at = command.index("waystation.cli.main")
        return [sys.executable, *self.python, str(WATCHED), str(self.window), *command[at + 1 :]]


class Sampler(threading.Thread):
    """Looks at the broker every so often, whichever process it is by then."""

    def __init__(self, server: WatchedServer, every_s: float) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._every_s = every_s
        self._stopped = threading.Event()
        self._started_at = time.monotonic()
        self.life = 0
        self.samples: list[Sample] = []
        self.views: list[dict[str, object]] = []

    def new_life(self) -> None:
        self.life += 1
        self._started_at = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()
        self.join(30)

    def run(self) -> None:
        while not self._stopped.wait(self._every_s):
            sample = self._look()
            if sample is not None:
                self.samples.append(sample)

    def _look(self) -> Sample | None:
        process, life = self._server.process, self.life
        if process is None or not self._server.addresses:
            return None
        age_s = time.monotonic() - self._started_at
        try:
            told = psutil.Process(process.pid)
            with told.oneshot():
                rss = told.memory_info().rss / MIB
                cpu = told.cpu_times()
                files, threads = told.num_fds(), told.num_threads()
            connections = self._connections()
            tasks = self._tasks(told)
        except (psutil.Error, OSError, http.client.HTTPException, ValueError):
            return None  # killed in this moment
        if life != self.life:
            return None
        return Sample(life, age_s, rss, files, threads, tasks, connections, cpu.user + cpu.system)

    def _connections(self) -> int:
        host, port = split_address(self._server.addresses["http"])
        asking = http.client.HTTPConnection(host, port, timeout=5)
        try:
            asking.request("GET", "/metrics")
            text = asking.getresponse().read().decode()
        finally:
            asking.close()
        found = [line.split()[-1] for line in text.splitlines() if line.startswith("waystation_connections{")]
        return int(sum(map(float, found)))

    def _tasks(self, told: psutil.Process) -> int:
        window = self._server.window
        window.unlink(missing_ok=True)
        told.send_signal(signal.SIGUSR2)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if window.exists():
                view = json.loads(window.read_text())
                self.views.append({"at": time.time(), **view})
                return int(view["tasks"])
            time.sleep(0.02)
        return -1


def table(samples: Sequence[Sample]) -> list[dict[str, float]]:
    """For each minute of age (or ten seconds, where lives are short): the median of all lives."""
    oldest = max((s.age_s for s in samples), default=0.0)
    step = 60.0 if oldest > 150 else 10.0
    rows = []
    for number in range(int(oldest // step) + 1):
        inside = [s for s in samples if number * step <= s.age_s < (number + 1) * step]
        if inside:
            rows.append({"age_s": (number + 1) * step, "samples": len(inside), **_medians(inside)})
    return rows


def by_life(samples: Sequence[Sample]) -> list[dict[str, float]]:
    """For each life, what it had when it was old."""
    rows = []
    oldest = max((s.age_s for s in samples), default=0.0)
    for life in sorted({s.life for s in samples}):
        late = [s for s in samples if s.life == life and s.age_s >= SETTLED * oldest]
        if late:
            rows.append({"life": life, "samples": len(late), **_medians(late)})
    return rows


def growth(samples: Sequence[Sample]) -> list[str]:
    """What grew, said as sentences; empty if all is flat, or the run was too short to tell."""
    lives = by_life(samples)
    if len(lives) >= ENOUGH_LIVES:
        quarter = max(2, len(lives) // 4)
        return _compare(lives[1 : 1 + quarter], lives[-quarter:], "life")
    minutes = [row for row in table(samples) if row["age_s"] >= 60]
    if len(lives) == 1 and minutes and minutes[-1]["age_s"] >= ENOUGH_MINUTES * 60:
        third = len(minutes) // 3
        quarter = max(2, len(minutes) // 4)
        return _compare(minutes[third : third + quarter], minutes[-quarter:], "age_s")
    return []


def _compare(early: list[dict[str, float]], late: list[dict[str, float]], by: str) -> list[str]:
    said = []
    for name, (share, least) in GROWTH.items():
        before = statistics.median(row[name] for row in early)
        after = statistics.median(row[name] for row in late)
        if after - before > least and after > before * (1 + share):
            said.append(f"{name} went from {before:g} ({by} {early[0][by]:g}) to {after:g} ({by} {late[-1][by]:g})")
    return said


def _medians(samples: Sequence[Sample]) -> dict[str, float]:
    rows = [asdict(sample) for sample in samples]
    names = ("rss_mib", "files", "threads", "tasks", "connections")
    return {name: round(statistics.median(row[name] for row in rows), 1) for name in names}


def text_table(rows: Sequence[dict[str, float]]) -> str:
    """Rows under their names."""
    if not rows:
        return "(none)"
    names = list(rows[0])
    lines = ["  ".join(f"{name:>11}" for name in names)]
    lines += ["  ".join(f"{row[name]:>11g}" for name in names) for row in rows]
    return "\n".join(lines)
