"""The AMQP scenarios: publish with confirms, consume with acks, by raw frames and by Python clients; idle connections.

Every queue is durable, every message persistent; every peer gets the same messages, the same window of unconfirmed
ones and the same prefetch. A *round* takes one peer through all of it on a fresh folder. Every broker and client
started here is gone when the function returns. Called by `benchmarks.cli`.
"""

import resource
import time
from pathlib import Path

from benchmarks import figures, jobs, procfs
from benchmarks.amqp_peers import AmqpPeer
from benchmarks.lab import SETTLE_S, Lab, size_name
from benchmarks.peers import Running
from benchmarks.plan import AMQP_BATCH, AMQP_QUEUES, Plan

UNCONFIRMED = 2_000  # over all queues
PREFETCH = 250  # of every consumer
IDLE_QUEUES = 100
SPARE_FILES = 500  # what a broker has open besides its connections
PIKA: jobs.LibraryName = "pika"
AIO_PIKA: jobs.LibraryName = "aio-pika"
AIO_PIKA_BATCH = 100


class Amqp:
    """Takes peers through the AMQP scenarios and puts what it sees into the report."""

    def __init__(self, plan: Plan, work: Path, report: figures.Report) -> None:
        self._plan, self._lab = plan, Lab(work, report, figures.AMQP)

    def round(self, peer: AmqpPeer) -> None:
        with self._lab.broker(peer, jobs.Knock(peer.wire, "first")) as broker:
            self._lab.idle(peer, broker, self._plan.idle_s)
            self._warm_up(peer, broker)
            for size in self._plan.sizes:
                self._one_queue(peer, broker, size)
            for size in self._plan.sizes:
                self._many_queues(peer, broker, size)
            for size in self._plan.sizes:
                confirmed, delivered = self._paced(peer, broker, f"latency-{size}", size)
                self._lab.latencies(peer, f"publish to confirm {size_name(size)}", confirmed)
                self._lab.latencies(peer, f"publish to deliver {size_name(size)}", delivered)
            self._library(peer, broker, PIKA, "one by one", 1, self._plan.amqp_library_messages // 5)
            many = f"{AIO_PIKA_BATCH} at a time"
            self._library(peer, broker, AIO_PIKA, many, AIO_PIKA_BATCH, self._plan.amqp_library_messages)

    def _warm_up(self, peer: AmqpPeer, broker: Running) -> None:
        """Not recorded."""
        count = max(AMQP_BATCH, self._plan.amqp_messages // 4 // AMQP_BATCH * AMQP_BATCH)
        declare(peer, broker, "warm")
        for ack in (AMQP_BATCH, 1):
            jobs.run(publish(peer, broker, "warm", count, 100), jobs.Transfer)
            jobs.run(consume(peer, broker, "warm", count, 100, ack), jobs.Transfer)
        self._paced(peer, broker, "warm-paced", 100)

    def _one_queue(self, peer: AmqpPeer, broker: Running, size: int) -> None:
        """Published twice, since each kind of acknowledging needs its own messages: two samples a round."""
        count, name = self._count(size), size_name(size)
        for ack, how in ((AMQP_BATCH, f"acks of {AMQP_BATCH}"), (1, "single acks")):
            queue = f"one-{size}-{ack}"
            declare(peer, broker, queue)
            self._lab.transfer(peer, broker, f"publish {name}", publish(peer, broker, queue, count, size), size)
            job = consume(peer, broker, queue, count, size, ack)
            self._lab.transfer(peer, broker, f"consume {name}, {how}", job, size)
            check_acknowledged(peer, broker, (queue,))

    def _many_queues(self, peer: AmqpPeer, broker: Running, size: int) -> None:
        queue, count, name = f"many-{size}-", self._count(size), f"{size_name(size)}, {AMQP_QUEUES} queues"
        declare(peer, broker, queue, AMQP_QUEUES)
        job = publish(peer, broker, queue, count, size, AMQP_QUEUES)
        self._lab.transfer(peer, broker, f"publish {name}", job, size)
        taking = consume(peer, broker, queue, count, size, AMQP_BATCH, AMQP_QUEUES)
        self._lab.transfer(peer, broker, f"consume {name}, acks of {AMQP_BATCH}", taking, size)
        check_acknowledged(peer, broker, tuple(f"{queue}{number}" for number in range(AMQP_QUEUES)))

    def _count(self, size: int) -> int:
        return self._plan.amqp_messages if size <= 100 else self._plan.amqp_messages // 2

    def _paced(self, peer: AmqpPeer, broker: Running, queue: str, size: int) -> tuple[jobs.Latencies, jobs.Latencies]:
        """Latencies to the confirm, and to the delivery to a consumer in another process."""
        plan = self._plan
        declare(peer, broker, queue)
        pace = (plan.rate_per_s, plan.warm_s, plan.measure_s)
        with jobs.started(jobs.PacedTake(peer.wire, broker.bootstrap, queue, *pace)) as consumer:
            consumer.wait_ready()
            confirmed = jobs.run(jobs.PacedPut(peer.wire, broker.bootstrap, queue, size, *pace), jobs.Latencies)
            return confirmed, consumer.result(jobs.Latencies)

    def _library(
        self, peer: AmqpPeer, broker: Running, library: jobs.LibraryName, how: str, batch: int, count: int
    ) -> None:
        """By a Python client that people use, 100 B; one that is not installed leaves its rows out."""
        queue, order = library, (library, broker.bootstrap, library, count)
        declare(peer, broker, queue)
        try:
            self._lab.transfer(peer, broker, f"{library}, publish {how}", jobs.LibraryPut(*order, 100, batch))
            self._lab.transfer(peer, broker, f"{library}, consume and ack singly", jobs.LibraryTake(*order, 1))
        except jobs.ClientFailed as problem:
            if "ModuleNotFoundError" not in str(problem):
                raise
            self._lab.leave_out(peer, library, "it is not installed")

    def connections(self, peer: AmqpPeer) -> None:
        """Very many connections that have nothing to do, each with a channel and a consumer."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        count = min(self._plan.connections, files - SPARE_FILES)
        if count < self._plan.connections:
            reason = f"{count:,} of them were measured instead: a process may have {files:,} files open here"
            self._lab.leave_out(peer, f"{self._plan.connections:,} connections", reason)
        with self._lab.broker(peer, jobs.Knock(peer.wire, "first"), record=False) as broker:
            declare(peer, broker, "idle", IDLE_QUEUES)
            time.sleep(SETTLE_S)
            before = procfs.resident_mib(broker.pid)
            idle = jobs.Idle(peer.wire, broker.bootstrap, "idle", count, IDLE_QUEUES, PREFETCH)
            with jobs.started(idle) as crowd:
                crowd.wait_ready()
                time.sleep(self._plan.idle_s)
                memory = procfs.resident_mib(broker.pid)
                cpu, began = procfs.cpu_seconds(broker.pid), time.monotonic()
                time.sleep(self._plan.idle_s)
                cpu, seconds = procfs.cpu_seconds(broker.pid) - cpu, time.monotonic() - began
                crowd.tell("enough")
                opened = crowd.result(jobs.Transfer)
        work = f"{count:,} idle connections"
        self._lab.add(peer, f"open {work}", "connections/s", count / opened.seconds)
        self._lab.add(peer, f"memory with {work}", figures.MEMORY, memory)
        self._lab.add(peer, "memory per idle connection", figures.BYTES, (memory - before) * 2**20 / count)
        self._lab.add(peer, f"CPU with {work}", "cores", cpu / seconds)


def publish(peer: AmqpPeer, broker: Running, queue: str, count: int, size: int, queues: int = 1) -> jobs.Put:
    return jobs.Put(peer.wire, broker.bootstrap, queue, count, size, AMQP_BATCH, UNCONFIRMED, queues=queues)


def consume(peer: AmqpPeer, broker: Running, queue: str, count: int, size: int, ack: int, queues: int = 1) -> jobs.Take:
    return jobs.Take(peer.wire, broker.bootstrap, queue, count, size, ack, PREFETCH, queues=queues)


def declare(peer: AmqpPeer, broker: Running, queue: str, count: int = 1) -> jobs.Transfer:
    return jobs.run(jobs.Declare(peer.wire, broker.bootstrap, queue, count), jobs.Transfer)


def check_acknowledged(peer: AmqpPeer, broker: Running, queues: tuple[str, ...]) -> None:
    """What was not acknowledged has come back when the consumer ended.

    The last few may: nothing in AMQP answers an acknowledgement, and RabbitMQ's quorum queues forget those that were
    still under way between its own processes.
    """
    held = jobs.run(jobs.Count(peer.wire, broker.bootstrap, queues), jobs.Counted).messages
    if held > PREFETCH * len(queues):
        raise RuntimeError(f"{held:,} messages came back although each was acknowledged")
