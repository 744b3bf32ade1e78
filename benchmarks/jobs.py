"""Client work as plain data: what a client process is told to do and what it answers.

A client runs in a process of its own, so that its CPU time and its interpreter lock never mix with the broker's or
with the other client's. A job is one JSON argument, a result is one JSON line: `benchmarks.clients` is the other end.
This module imports no Kafka client, so the parent process stays light. Called by the scenarios and the peers.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

import msgspec

READY = "READY"  # a job that must be in place before something else starts says this line first
Acks = Literal["all", "1"]


class Produce(msgspec.Struct, frozen=True, tag=True):
    """Send `count` messages as fast as the client can, round-robin over `partitions`, every one acknowledged."""

    bootstrap: str
    topic: str
    count: int
    size: int
    acks: Acks = "all"
    partitions: int = 1


class Consume(msgspec.Struct, frozen=True, tag=True):
    """Join a fresh group, read `count` messages from the beginning, commit."""

    bootstrap: str
    topic: str
    count: int


class PacedProduce(msgspec.Struct, frozen=True, tag=True):
    """Send at a fixed rate, each message stamped with the clock just before `produce()`."""

    bootstrap: str
    topic: str
    size: int
    acks: Acks
    rate_per_s: int
    warm_s: float
    measure_s: float


class PacedConsume(msgspec.Struct, frozen=True, tag=True):
    """Read what `PacedProduce` sends (READY once at the end of the log) and compare the stamps with the clock."""

    bootstrap: str
    topic: str
    rate_per_s: int
    warm_s: float
    measure_s: float


class Probe(msgspec.Struct, frozen=True, tag=True):
    """Wait (READY) for the broker's address on stdin, then knock until every partition has answered.

    With `read`, the last message of every partition is fetched as well; the topic must then hold some.
    """

    topic: str
    partitions: int = 1
    read: bool = False
    timeout_s: float = 120.0


class Mock(msgspec.Struct, frozen=True, tag=True):
    """Be librdkafka's mock cluster: print its address, live until stdin closes."""


Job = Produce | Consume | PacedProduce | PacedConsume | Probe | Mock


class Transfer(msgspec.Struct, frozen=True):
    """How long a produce or consume took, from its first message; the client's CPU time includes its own start."""

    count: int
    seconds: float
    client_cpu_s: float


class Latencies(msgspec.Struct, frozen=True):
    """Latencies in milliseconds over the measured part of a paced run."""

    count: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    pace_lag_p99_ms: float = 0.0  # how late the producer itself was: the noise of the machine


class Probed(msgspec.Struct, frozen=True):
    """When (CLOCK_MONOTONIC) the first and the last partition acknowledged, and were read."""

    first_ack: float
    all_acks: float
    first_fetch: float = 0.0
    all_fetches: float = 0.0


Result = TypeVar("Result", Transfer, Latencies, Probed)


class ClientFailed(Exception):
    """A client process ended without an answer; its last words are the message."""


class Client:
    """A running client process."""

    def __init__(self, job: Job) -> None:
        self._job = type(job).__name__
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.clients", msgspec.json.encode(job).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        if self.process.stdout is None or self.process.stdout.readline().strip() != READY:
            self.result(Transfer)  # raises, with what the client wrote to stderr
            raise ClientFailed(f"{self._job}: ended before it was ready")

    def tell(self, line: str) -> None:
        if self.process.stdin is not None:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def result(self, kind: type[Result], timeout_s: float = 900) -> Result:
        out, err = self.process.communicate(timeout=timeout_s)
        lines = out.strip().splitlines()
        if self.process.returncode != 0 or not lines:
            raise ClientFailed(f"{self._job}: exit {self.process.returncode}: {err.strip()[-600:]}")
        return msgspec.json.decode(lines[-1], type=kind)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def started(job: Job) -> Iterator[Client]:
    """A client that is gone when the block is left, however it is left."""
    client = Client(job)
    try:
        yield client
    finally:
        client.end()


def run(job: Job, kind: type[Result]) -> Result:
    with started(job) as client:
        return client.result(kind)
