"""The topic scenarios: what is done to a log broker through Kafka's protocol, and what is read off it.

A *round* takes one peer through everything on fresh data folders; `restart` loads a large log once, crashes the broker
and restarts it. Every broker and client started here is gone when the function returns. Called by `benchmarks.cli`.
"""

import time
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import figures, jobs, procfs
from benchmarks.addresses import kafka_settings
from benchmarks.lab import SETTLE_S, Lab, size_name
from benchmarks.peers import Peer, Running, start
from benchmarks.plan import Plan

TOPIC_LIMIT_S = 30.0
FIRST = jobs.Probe("first")


class Topics:
    """Takes peers through the topic scenarios and puts what it sees into the report."""

    def __init__(self, plan: Plan, work: Path, report: figures.Report, part: figures.Part = figures.TOPICS) -> None:
        self._plan, self._lab = plan, Lab(work, report, part)

    def round(self, peer: Peer) -> None:
        with self._lab.broker(peer, FIRST) as broker:
            self._lab.idle(peer, broker, self._plan.idle_s)
            self.warm_up(peer, broker)
            self._paced(peer, broker, "warm-paced", 100, "all")
            for size in self._plan.sizes:
                self.throughput(peer, broker, size, f"throughput-{size}")
            for size in self._plan.sizes:
                self._latency(peer, broker, size, "all")
                self._latency(peer, broker, size, "1")
        with self._lab.broker(peer, FIRST) as broker:  # fresh, so that the memory is that of these messages alone
            create_topic(peer, broker, "fill", 1)
            jobs.run(jobs.Produce(broker.bootstrap, "fill", self._plan.fill, 100), jobs.Transfer)
            time.sleep(SETTLE_S)
            work = f"memory after {self._plan.fill:,} messages"
            self._lab.add(peer, work, figures.MEMORY, procfs.resident_mib(broker.pid))

    def warm_up(self, peer: Peer, broker: Running) -> None:
        """Not recorded: a JVM compiles its hot paths first, and everybody gets the same chance."""
        create_topic(peer, broker, "warm", 1)
        count = max(1, self._plan.messages // 4)
        jobs.run(jobs.Produce(broker.bootstrap, "warm", count, 100), jobs.Transfer)
        if peer.consumes:
            jobs.run(jobs.Consume(broker.bootstrap, "warm", count), jobs.Transfer)

    def throughput(self, peer: Peer, broker: Running, size: int, topic: str, times: int = 1) -> None:
        """`times` as many of the small messages as the plan says."""
        count = times * self._plan.messages if size <= 100 else self._plan.messages // 2
        create_topic(peer, broker, topic, 1)
        produce, consume = (
            jobs.Produce(broker.bootstrap, topic, count, size),
            jobs.Consume(broker.bootstrap, topic, count),
        )
        self._lab.transfer(peer, broker, f"produce {size_name(size)}", produce, size)
        if peer.consumes:
            self._lab.transfer(peer, broker, f"consume {size_name(size)}", consume, size)

    def _latency(self, peer: Peer, broker: Running, size: int, acks: jobs.Acks) -> None:
        topic, name = f"latency-{size}-{acks}", f"{size_name(size)} acks={acks}"
        acknowledged, received = self._paced(peer, broker, topic, size, acks)
        if received is not None:
            self._lab.latencies(peer, f"end to end {name}", received)
        self._lab.latencies(peer, f"ack {name}", acknowledged)

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

    def restart(self, peer: Peer) -> None:
        """Load, kill -9, restart; then stop, restart. Fails if a message is missing afterwards."""
        plan, topic = self._plan, "restart"
        probe = jobs.Probe(topic, plan.restart_partitions, read=True)
        with self._lab.folder(peer) as folder:
            broker, _, _ = start(peer, folder, FIRST)
            try:
                create_topic(peer, broker, topic, plan.restart_partitions)
                load = jobs.Produce(broker.bootstrap, topic, plan.restart_messages, 100, "all", plan.restart_partitions)
                self._lab.watched(peer, broker, load)
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
        self._lab.add(peer, f"{work}, first ack", figures.SECONDS, probed.first_ack - began)
        self._lab.add(peer, f"{work}, first fetch", figures.SECONDS, probed.first_fetch - began)
        self._lab.add(peer, f"{work}, every partition", figures.SECONDS, everything - began)


def create_topic(peer: Peer, broker: Running, topic: str, partitions: int) -> None:
    if not peer.durable:  # the mock cluster cannot create topics on request; it makes them up when asked about one
        return
    admin = AdminClient({**kafka_settings(broker.bootstrap), "log_level": 2})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TOPIC_LIMIT_S)
    deadline = time.monotonic() + TOPIC_LIMIT_S
    while time.monotonic() < deadline:
        known = admin.list_topics(topic, timeout=TOPIC_LIMIT_S).topics[topic].partitions
        if len(known) == partitions and all(partition.leader >= 0 for partition in known.values()):
            return
        time.sleep(0.02)
    raise TimeoutError(f"topic {topic} has no leader after {TOPIC_LIMIT_S} s")


def delete_topic(broker: Running, topic: str) -> None:
    admin = AdminClient({**kafka_settings(broker.bootstrap), "log_level": 2})
    admin.delete_topics([topic])[topic].result(TOPIC_LIMIT_S)


def check_count(broker: Running, topic: str, partitions: int, expected: int) -> None:
    """A restart that is fast because it forgot something is no restart."""
    consumer = Consumer({**kafka_settings(broker.bootstrap), "group.id": "bench-count", "log_level": 2})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, p), TOPIC_LIMIT_S) for p in range(partitions)]
    finally:
        consumer.close()
    held = sum(high - low for low, high in filter(None, ends))
    if held != expected:
        raise RuntimeError(f"{held:,} messages after the restart, {expected:,} were acknowledged")
