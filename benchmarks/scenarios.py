"""What is done to a broker, and what is read off it: one function per kind of figure.

A *round* takes one peer through everything on fresh data folders; `restart` loads a large log once, crashes the broker
and restarts it. Every broker and client started here is gone when the function returns. Called by `benchmarks.cli`.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import figures, jobs, procfs
from benchmarks.peers import Peer, Running, start

SETTLE_S = 0.5  # work that the broker still does after the last answer belongs to the sample too
TOPIC_LIMIT_S = 30.0


class Plan(msgspec.Struct, frozen=True):
    """How much of everything."""

    rounds: int
    sizes: tuple[int, ...]
    messages: int
    """Per produce or consume sample of 100 B; larger messages in half the number."""
    fill: int
    rate_per_s: int
    warm_s: float
    measure_s: float
    idle_s: float
    restart_messages: int
    restart_partitions: int


FULL = Plan(
    rounds=3,
    sizes=(100, 1024),
    messages=1_000_000,
    fill=1_000_000,
    rate_per_s=1_000,
    warm_s=3.0,
    measure_s=10.0,
    idle_s=3.0,
    restart_messages=10_000_000,
    restart_partitions=50,
)
QUICK = Plan(
    rounds=1,
    sizes=(100, 1024),
    messages=20_000,
    fill=20_000,
    rate_per_s=1_000,
    warm_s=0.2,
    measure_s=1.0,
    idle_s=0.2,
    restart_messages=50_000,
    restart_partitions=5,
)


def size_name(size: int) -> str:
    return f"{size // 1024} KiB" if size % 1024 == 0 else f"{size} B"


class Bench:
    """Takes peers through the scenarios and puts what it sees into the report."""

    def __init__(self, plan: Plan, work: Path, report: figures.Report) -> None:
        self._plan, self._work, self._report = plan, work, report

    def round(self, peer: Peer) -> None:
        with self._broker(peer) as broker:
            self._idle(peer, broker)
            self._warm_up(peer, broker)
            for size in self._plan.sizes:
                self._throughput(peer, broker, size)
            for size in self._plan.sizes:
                self._latency(peer, broker, size, "all")
                self._latency(peer, broker, size, "1")
        with self._broker(peer) as broker:  # fresh, so that the memory is that of these messages alone
            create_topic(peer, broker, "fill", 1)
            jobs.run(jobs.Produce(broker.bootstrap, "fill", self._plan.fill, 100), jobs.Transfer)
            time.sleep(SETTLE_S)
            work = f"memory after {self._plan.fill:,} messages"
            self._add(peer, work, figures.MEMORY, procfs.resident_mib(broker.pid))

    def _add(self, peer: Peer, work: str, unit: str, value: float) -> None:
        self._report.add(peer.name, work, unit, value)

    @contextmanager
    def _folder(self, peer: Peer) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix=f"{peer.name}-", dir=self._work))
        try:
            peer.prepare(folder)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _broker(self, peer: Peer) -> Iterator[Running]:
        with self._folder(peer) as folder:
            broker, probed, began = start(peer, folder, jobs.Probe("first"))
            try:
                self._add(peer, "start to first ack", figures.SECONDS, probed.first_ack - began)
                yield broker
                broker.stop()
            finally:
                broker.kill()

    def _idle(self, peer: Peer, broker: Running) -> None:
        time.sleep(self._plan.idle_s)
        self._add(peer, "idle memory", figures.MEMORY, procfs.resident_mib(broker.pid))

    def _warm_up(self, peer: Peer, broker: Running) -> None:
        """Not recorded: a JVM compiles its hot paths first, and everybody gets the same chance."""
        create_topic(peer, broker, "warm", 1)
        count = max(1, self._plan.messages // 4)
        jobs.run(jobs.Produce(broker.bootstrap, "warm", count, 100), jobs.Transfer)
        if peer.consumes:
            jobs.run(jobs.Consume(broker.bootstrap, "warm", count), jobs.Transfer)
        self._paced(peer, broker, "warm-paced", 100, "all")

    def _throughput(self, peer: Peer, broker: Running, size: int) -> None:
        topic, count = f"throughput-{size}", self._plan.messages if size <= 100 else self._plan.messages // 2
        create_topic(peer, broker, topic, 1)
        self._transfer(peer, broker, "produce", size, jobs.Produce(broker.bootstrap, topic, count, size))
        if peer.consumes:
            self._transfer(peer, broker, "consume", size, jobs.Consume(broker.bootstrap, topic, count))

    def _transfer(self, peer: Peer, broker: Running, verb: str, size: int, job: jobs.Produce | jobs.Consume) -> None:
        done, cpu = self._watched(peer, broker, job)
        work = f"{verb} {size_name(size)}"
        self._add(peer, work, figures.RATE, done.count / done.seconds)
        self._add(peer, work, figures.VOLUME, done.count * size / done.seconds / 1e6)
        self._add(peer, work, figures.CPU, cpu / done.count * 1e6)

    def _watched(self, peer: Peer, broker: Running, job: jobs.Produce | jobs.Consume) -> tuple[jobs.Transfer, float]:
        """Run the job; also the broker's CPU seconds for it. Records how much of the machine others took meanwhile."""
        cpu, busy, began = procfs.cpu_seconds(broker.pid), procfs.machine_busy_seconds(), time.monotonic()
        done = jobs.run(job, jobs.Transfer)
        time.sleep(SETTLE_S)
        cpu = procfs.cpu_seconds(broker.pid) - cpu
        others = procfs.machine_busy_seconds() - busy - cpu - done.client_cpu_s
        self._add(peer, *figures.OTHER_LOAD, max(0.0, others / (time.monotonic() - began)))
        return done, cpu

    def _latency(self, peer: Peer, broker: Running, size: int, acks: jobs.Acks) -> None:
        topic, name = f"latency-{size}-{acks}", f"{size_name(size)} acks={acks}"
        acknowledged, received = self._paced(peer, broker, topic, size, acks)
        if received is not None:
            self._add_latencies(peer, f"end to end {name}", received)
        self._add_latencies(peer, f"ack {name}", acknowledged)

    def _paced(
        self, peer: Peer, broker: Running, topic: str, size: int, acks: jobs.Acks
    ) -> tuple[jobs.Latencies, jobs.Latencies | None]:
        """Latencies to the acknowledgement and, where it can be read back, to the receipt."""
        plan = self._plan
        create_topic(peer, broker, topic, 1)
        pace = jobs.PacedProduce(broker.bootstrap, topic, size, acks, plan.rate_per_s, plan.warm_s, plan.measure_s)
        if not peer.consumes:
            return jobs.run(pace, jobs.Latencies), None
        follow = jobs.PacedConsume(broker.bootstrap, topic, plan.rate_per_s, plan.warm_s, plan.measure_s)
        with jobs.started(follow) as consumer:
            consumer.wait_ready()
            return jobs.run(pace, jobs.Latencies), consumer.result(jobs.Latencies)

    def _add_latencies(self, peer: Peer, work: str, seen: jobs.Latencies) -> None:
        self._add(peer, work, "p50 ms", seen.p50_ms)
        self._add(peer, work, "p99 ms", seen.p99_ms)
        self._add(peer, work, "p99.9 ms", seen.p999_ms)

    def restart(self, peer: Peer) -> None:
        """Load, kill -9, restart; then stop, restart. Fails if a message is missing afterwards."""
        plan, topic = self._plan, "restart"
        probe = jobs.Probe(topic, plan.restart_partitions, read=True)
        with self._folder(peer) as folder:
            broker, _, _ = start(peer, folder, jobs.Probe("first"))
            try:
                create_topic(peer, broker, topic, plan.restart_partitions)
                load = jobs.Produce(broker.bootstrap, topic, plan.restart_messages, 100, "all", plan.restart_partitions)
                self._watched(peer, broker, load)
                expected = plan.restart_messages
                for how, end in (("kill -9", Running.kill), ("stop", Running.stop)):
                    end(broker)
                    broker, probed, began = start(peer, folder, probe)
                    expected += plan.restart_partitions  # what the probe wrote
                    self._add_restart(peer, f"restart after {how}", probed, began)
                    check_count(broker, topic, plan.restart_partitions, expected)
                broker.stop()
            finally:
                broker.kill()

    def _add_restart(self, peer: Peer, work: str, probed: jobs.Probed, began: float) -> None:
        everything = max(probed.all_acks, probed.all_fetches)
        self._add(peer, f"{work}, first ack", figures.SECONDS, probed.first_ack - began)
        self._add(peer, f"{work}, first fetch", figures.SECONDS, probed.first_fetch - began)
        self._add(peer, f"{work}, every partition", figures.SECONDS, everything - began)


def create_topic(peer: Peer, broker: Running, topic: str, partitions: int) -> None:
    if not peer.durable:  # the mock cluster cannot create topics on request; it makes them up when asked about one
        return
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TOPIC_LIMIT_S)
    deadline = time.monotonic() + TOPIC_LIMIT_S
    while time.monotonic() < deadline:
        known = admin.list_topics(topic, timeout=TOPIC_LIMIT_S).topics[topic].partitions
        if len(known) == partitions and all(partition.leader >= 0 for partition in known.values()):
            return
        time.sleep(0.02)
    raise TimeoutError(f"topic {topic} has no leader after {TOPIC_LIMIT_S} s")


def check_count(broker: Running, topic: str, partitions: int, expected: int) -> None:
    """A restart that is fast because it forgot something is no restart."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "bench-count", "log_level": 2})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, p), TOPIC_LIMIT_S) for p in range(partitions)]
    finally:
        consumer.close()
    held = sum(high - low for low, high in filter(None, ends))
    if held != expected:
        raise RuntimeError(f"{held:,} messages after the restart, {expected:,} were acknowledged")
