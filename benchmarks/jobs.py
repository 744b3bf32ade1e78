"""Client work as plain data: what a client process is told to do and what it answers.

A client runs in a process of its own, so that its CPU time and its interpreter lock never mix with the broker's or
with the other client's. A job is one JSON argument, a result is one JSON line; the other end is `benchmarks.clients`
(Kafka), `benchmarks.generator` and `benchmarks.floods` (raw frames) or `benchmarks.libraries` (the usual Python clients
of queues). This module imports none of them, so the parent process stays light. Called by the scenarios and the peers.
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


KafkaJob = Produce | Consume | PacedProduce | PacedConsume | Probe | Mock

WireName = Literal["native", "nats", "redis", "amqp", "amqp-quorum", "amqp-classic"]
LibraryName = Literal["waystation", "nats-py", "redis-py", "pika", "aio-pika"]


class Put(msgspec.Struct, frozen=True, tag=True):
    """Put `count` messages into a queue, `batch` a request, at most `in_flight` of them unanswered.

    With `delay`, each comes due at a time of its own, between an hour and a year from now. With several `queues`, all
    numbers are divided among them: a connection each, named as `Declare` names them, all at work at the same time.
    """

    wire: WireName
    address: str
    queue: str
    count: int
    size: int
    batch: int
    in_flight: int
    delay: bool = False
    queues: int = 1


class Take(msgspec.Struct, frozen=True, tag=True):
    """Consume `count` messages of a queue and acknowledge them, `batch` an acknowledgement.

    With several `queues`, they and the messages are divided among as many connections; `in_flight` is that of each.
    """

    wire: WireName
    address: str
    queue: str
    count: int
    size: int
    batch: int
    in_flight: int
    queues: int = 1


class PacedPut(msgspec.Struct, frozen=True, tag=True):
    """Put at a fixed rate, one message a request, each stamped with the clock just before it is sent."""

    wire: WireName
    address: str
    queue: str
    size: int
    rate_per_s: int
    warm_s: float
    measure_s: float


class PacedTake(msgspec.Struct, frozen=True, tag=True):
    """Consume and acknowledge what `PacedPut` sends (READY once consuming), and compare the stamps with the clock."""

    wire: WireName
    address: str
    queue: str
    rate_per_s: int
    warm_s: float
    measure_s: float


class Declare(msgspec.Struct, frozen=True, tag=True):
    """Declare `count` queues, `queue` and a number each (just `queue` if it is one)."""

    wire: WireName
    address: str
    queue: str
    count: int = 1
    in_flight: int = 500


class Scatter(msgspec.Struct, frozen=True, tag=True):
    """Put `count` messages, one a request, into `queues` queues that `Declare` made, one after the other in turn.

    With two queues or more, no two neighbouring requests speak of the same one, so a broker cannot join them.
    """

    wire: WireName
    address: str
    queue: str
    count: int
    size: int
    in_flight: int
    queues: int


class Count(msgspec.Struct, frozen=True, tag=True):
    """How many messages each of these queues holds, added up."""

    wire: WireName
    address: str
    queues: tuple[str, ...]


class Idle(msgspec.Struct, frozen=True, tag=True):
    """Open `connections`, each with a consumer on one of `queues` queues that `Declare` made (READY once all consume),
    and keep them open until a line comes on stdin."""

    wire: WireName
    address: str
    queue: str
    connections: int
    queues: int
    in_flight: int


class Knock(msgspec.Struct, frozen=True, tag=True):
    """Wait (READY) for the broker's address on stdin, then knock until a put into `queue` is acknowledged."""

    wire: WireName
    queue: str
    timeout_s: float = 300.0


WireJob = Put | Take | PacedPut | PacedTake | Declare | Scatter | Count | Idle | Knock


class LibraryPut(msgspec.Struct, frozen=True, tag=True):
    """What `Put` does, by the Python client that people use: one at a time, or `batch` at a time."""

    library: LibraryName
    address: str
    queue: str
    count: int
    size: int
    batch: int


class LibraryTake(msgspec.Struct, frozen=True, tag=True):
    """What `Take` does, by the Python client that people use."""

    library: LibraryName
    address: str
    queue: str
    count: int
    batch: int


FloodKind = Literal[
    "kafka-produce", "kafka-fetch", "native-put", "native-take", "amqp-publish", "amqp-consume", "http-post"
]  # fmt: skip


class Flood(msgspec.Struct, frozen=True, tag=True):
    """Log in on `connections` (READY), and from the next line on stdin to the one behind it keep all of them busy with
    the topic or queue `name` in the namespace. The result counts bytes of messages."""

    kind: FloodKind
    address: str
    user: str
    password: str
    namespace: str
    name: str
    connections: int


LibraryJob = LibraryPut | LibraryTake
Job = KafkaJob | WireJob | LibraryJob | Flood


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


class Counted(msgspec.Struct, frozen=True):
    messages: int


Result = TypeVar("Result", Transfer, Latencies, Probed, Counted)


class ClientFailed(Exception):
    """A client process ended without an answer; its last words are the message."""


def _module(job: Job) -> str:
    """Who does it: each knows one kind of client, so that no process loads the libraries of another."""
    if isinstance(job, KafkaJob):
        return "benchmarks.clients"
    if isinstance(job, Flood):
        return "benchmarks.floods"
    return "benchmarks.generator" if isinstance(job, WireJob) else "benchmarks.libraries"


class Client:
    """A running client process."""

    def __init__(self, job: Job) -> None:
        self._job = type(job).__name__
        self.process = subprocess.Popen(
            [sys.executable, "-m", _module(job), msgspec.json.encode(job).decode()],
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

    def result(self, kind: type[Result], timeout_s: float = 1800) -> Result:
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
