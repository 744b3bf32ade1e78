"""The queue scenarios: put, take and acknowledge, batched and one at a time, by raw frames and by Python clients.

Every peer gets the same messages, the same number of them in flight and one client a side. A *round* takes one peer
through all of it on a fresh folder. Every broker and client started here is gone when the function returns. Called by
`benchmarks.cli`.
"""

import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks import figures, jobs
from benchmarks.lab import Lab, size_name
from benchmarks.peers import QueuePeer, Running
from benchmarks.plan import Plan

IN_FLIGHT = {"batched": 2_000, "single": 500}  # messages that are not acknowledged yet


class Queues:
    """Takes peers through the queue scenarios and puts what it sees into the report."""

    def __init__(self, plan: Plan, work: Path, report: figures.Report, part: figures.Part = figures.QUEUES) -> None:
        self._plan, self._lab = plan, Lab(work, report, part)

    def round(self, peer: QueuePeer) -> None:
        with self._lab.broker(peer, jobs.Knock(peer.wire, "first")) as broker:
            self._lab.idle(peer, broker, self._plan.idle_s)
            self.warm_up(peer, broker)
            self._paced(peer, broker, "warm-paced", 100)
            for size in self._plan.sizes:
                for how in IN_FLIGHT:
                    self.throughput(peer, broker, size, how, f"{how}-{size}")
            for size in self._plan.sizes:
                acknowledged, received = self._paced(peer, broker, f"latency-{size}", size)
                self._lab.latencies(peer, f"put to receipt {size_name(size)}", received)
                self._lab.latencies(peer, f"put to ack {size_name(size)}", acknowledged)
            self._library(peer, broker, "many at once", self._plan.batch, self._plan.library_messages)
            self._library(peer, broker, "one by one", 1, self._plan.library_messages // 10)
            if peer.library == "waystation":  # the others have no delays
                self._lab.latencies(peer, "delayed message under load, late by", self._delays(broker))

    def warm_up(self, peer: QueuePeer, broker: Running) -> None:
        declare(peer, broker, "warm")
        count, batch = self._plan.queue_messages // 10, self._plan.batch
        jobs.run(jobs.Put(peer.wire, broker.bootstrap, "warm", count, 100, batch, IN_FLIGHT["batched"]), jobs.Transfer)
        jobs.run(jobs.Take(peer.wire, broker.bootstrap, "warm", count, 100, batch, IN_FLIGHT["batched"]), jobs.Transfer)

    def throughput(self, peer: QueuePeer, broker: Running, size: int, how: str, queue: str) -> None:
        batch, count = (1, self._plan.singles) if how == "single" else (self._plan.batch, self._plan.queue_messages)
        name, count = f"{size_name(size)} {how}", count if size <= 100 else count // 2
        declare(peer, broker, queue)
        order = (peer.wire, broker.bootstrap, queue, count, size, batch, IN_FLIGHT[how])
        self._lab.transfer(peer, broker, f"put {name}", jobs.Put(*order), size)
        self._lab.transfer(peer, broker, f"take and ack {name}", jobs.Take(*order), size)

    def _paced(self, peer: QueuePeer, broker: Running, queue: str, size: int) -> tuple[jobs.Latencies, jobs.Latencies]:
        """Latencies to the acknowledgement, and to the receipt by a consumer in another process."""
        plan = self._plan
        declare(peer, broker, queue)
        pace = (plan.rate_per_s, plan.warm_s, plan.measure_s)
        with jobs.started(jobs.PacedTake(peer.wire, broker.bootstrap, queue, *pace)) as consumer:
            consumer.wait_ready()
            acknowledged = jobs.run(jobs.PacedPut(peer.wire, broker.bootstrap, queue, size, *pace), jobs.Latencies)
            return acknowledged, consumer.result(jobs.Latencies)

    def _library(self, peer: QueuePeer, broker: Running, how: str, batch: int, count: int) -> None:
        """By the Python client that people use, 100 B; a client that is not installed leaves its rows out."""
        queue = f"library-{batch}"
        declare(peer, broker, queue)
        order = (peer.library, broker.bootstrap, queue, count)
        try:
            self._lab.transfer(peer, broker, f"Python client, put {how}", jobs.LibraryPut(*order, 100, batch))
            self._lab.transfer(peer, broker, f"Python client, take and ack {how}", jobs.LibraryTake(*order, batch))
        except jobs.ClientFailed as problem:
            if "ModuleNotFoundError" not in str(problem):
                raise
            self._lab.leave_out(peer, "Python client", f"{peer.library} is not installed")

    def _delays(self, broker: Running) -> jobs.Latencies:
        seconds = self._plan.measure_s
        command = [sys.executable, "-m", "benchmarks.delays", broker.bootstrap, str(int(1000 * seconds)), str(seconds)]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        if outcome.returncode:
            raise jobs.ClientFailed(outcome.stderr or outcome.stdout)
        return msgspec.json.decode(outcome.stdout, type=jobs.Latencies)


def declare(peer: QueuePeer, broker: Running, queue: str, count: int = 1) -> jobs.Transfer:
    return jobs.run(jobs.Declare(peer.wire, broker.bootstrap, queue, count), jobs.Transfer)
