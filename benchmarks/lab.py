"""The bench that every scenario works at: folders, brokers that are gone afterwards, clients under watch, the report.

A scenario asks for a broker and gets a fresh one on its own folder; whatever happens, broker and folder are gone when
the block is left. Called by the scenarios.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import figures, jobs, procfs
from benchmarks.peers import Peer, Running, start

SETTLE_S = 0.5  # work that the broker still does after the last answer belongs to the sample too


def size_name(size: int) -> str:
    return f"{size // 1024} KiB" if size % 1024 == 0 else f"{size} B"


class Lab:
    """One part of the report: `part` says which."""

    def __init__(self, work: Path, report: figures.Report, part: figures.Part) -> None:
        self._work, self._report, self._part = work, report, part

    def add(self, peer: Peer, work: str, unit: str, value: float) -> None:
        self._report.add(peer.name, work, unit, value, self._part)

    def leave_out(self, peer: Peer, what: str, reason: str) -> None:
        self._report.skipped[f"{peer.name}, {what}"] = reason

    @contextmanager
    def folder(self, peer: Peer) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix=f"{peer.name}-", dir=self._work))
        try:
            peer.prepare(folder)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def broker(self, peer: Peer, probe: jobs.Probe | jobs.Knock, *, record: bool = True) -> Iterator[Running]:
        """A fresh broker; how long it took to its first acknowledgement is a figure too."""
        with self.folder(peer) as folder:
            broker, probed, began = start(peer, folder, probe)
            try:
                if record:
                    self.add(peer, "start to first ack", figures.SECONDS, probed.first_ack - began)
                yield broker
                broker.stop()
            finally:
                broker.kill()

    def idle(self, peer: Peer, broker: Running, idle_s: float) -> None:
        time.sleep(idle_s)
        self.add(peer, "idle memory", figures.MEMORY, procfs.resident_mib(broker.pid))

    def transfer(self, peer: Peer, broker: Running, work: str, job: jobs.Job, size: int = 0) -> None:
        """Rate and the broker's CPU of a job that moves messages; with their size, the volume too."""
        done, cpu = self.watched(peer, broker, job)
        self.add(peer, work, figures.RATE, done.count / done.seconds)
        if size:
            self.add(peer, work, figures.VOLUME, done.count * size / done.seconds / 1e6)
        self.add(peer, work, figures.CPU, cpu / done.count * 1e6)

    def watched(self, peer: Peer, broker: Running, job: jobs.Job) -> tuple[jobs.Transfer, float]:
        """Run the job; also the broker's CPU seconds for it. Records how much of the machine others took meanwhile."""
        cpu, busy, began = procfs.cpu_seconds(broker.pid), procfs.machine_busy_seconds(), time.monotonic()
        done = jobs.run(job, jobs.Transfer)
        time.sleep(SETTLE_S)
        cpu = procfs.cpu_seconds(broker.pid) - cpu
        others = procfs.machine_busy_seconds() - busy - cpu - done.client_cpu_s
        self.add(peer, *figures.OTHER_LOAD, max(0.0, others / (time.monotonic() - began)))
        return done, cpu

    def latencies(self, peer: Peer, work: str, seen: jobs.Latencies) -> None:
        self.add(peer, work, "p50 ms", seen.p50_ms)
        self.add(peer, work, "p99 ms", seen.p99_ms)
        self.add(peer, work, "p99.9 ms", seen.p999_ms)
