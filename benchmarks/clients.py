"""The client processes: confluent-kafka doing what `benchmarks.jobs` describes.

Run as `python -m benchmarks.clients JOB`, one job a process. Payloads are random and uncompressed, so that no broker
gains from repetition. Settings are librdkafka's defaults except where a comment says why.
"""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import msgspec
from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, Producer, TopicPartition

from benchmarks import jobs
from benchmarks.addresses import kafka_settings
from benchmarks.latency import STAMP, Pace, summary

DISTINCT_PAYLOADS = 1024
STALL_LIMIT_S = 60.0
OFFSET_LAST = -2001  # RD_KAFKA_OFFSET_TAIL(1): the newest message; the Python binding has no name for it

# The defaults back off for up to ten seconds, which would measure the client's patience instead of the broker's start.
IMPATIENT: dict[str, str | int | float | bool] = {
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 10,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 20,
    "allow.auto.create.topics": True,
}

Config = dict[str, str | int | float | bool | Callable[..., None]]


class Failed(Exception):
    """The broker did not do what the job needs."""


def payloads(size: int) -> list[bytes]:
    source = random.Random(size)
    return [source.randbytes(size) for _ in range(DISTINCT_PAYLOADS)]


def settings(bootstrap: str, **more: str | int | float | bool) -> Config:
    quiet: Config = {**kafka_settings(bootstrap), "log_level": 2, "broker.address.family": "v4"}
    return {**quiet, **{name.replace("_", "."): value for name, value in more.items()}}


def on_error(error: KafkaError) -> None:
    """Refused connections are expected while a broker starts; anything that lasts ends in a deadline."""


class Acks:
    """Counts delivery reports; any error among them fails the job."""

    def __init__(self) -> None:
        self.count = 0
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.error = error
        self.count += 1

    def check(self, expected: int) -> None:
        if self.error is not None:
            raise Failed(f"delivery failed: {self.error}")
        if self.count != expected:
            raise Failed(f"{self.count} of {expected} messages acknowledged")


def produce(job: jobs.Produce) -> jobs.Transfer:
    acks, bodies, last = Acks(), payloads(job.size), DISTINCT_PAYLOADS - 1
    producer = Producer({**settings(job.bootstrap, acks=job.acks), "on_delivery": acks})
    producer.list_topics(job.topic, timeout=30)  # connected, topic known: the rate is that of a running producer
    send, topic, partitions = producer.produce, job.topic, job.partitions
    start = time.monotonic()
    for i in range(job.count):
        try:
            send(topic, bodies[i & last], partition=i % partitions)
        except BufferError:  # 100,000 messages in flight: wait for acknowledgements, as an application would
            while True:
                producer.poll(0.01)
                try:
                    send(topic, bodies[i & last], partition=i % partitions)
                    break
                except BufferError:
                    continue
        if not i & 1023:
            producer.poll(0)
    producer.flush(STALL_LIMIT_S)
    seconds = time.monotonic() - start
    acks.check(job.count)
    return jobs.Transfer(job.count, seconds, time.process_time())


def consume(job: jobs.Consume) -> jobs.Transfer:
    # The default backoff sleeps a whole second whenever 100,000 messages are queued in the client, which a fast broker
    # brings about: 0.4 and 0.7 M messages/s measured with it, 1.8 and 2.0 M without, from the same broker and log.
    config = settings(job.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False, fetch_queue_backoff_ms=1)
    consumer = Consumer({**config, "group.id": f"bench-{os.getpid()}"})
    consumer.subscribe([job.topic])
    start, last_news, got = 0.0, time.monotonic(), 0
    while got < job.count:
        messages = consumer.consume(1000, 1.0)
        now = time.monotonic()
        if messages:
            start, last_news = start or now, now  # joining the group is not part of the rate
            got += sum(1 for message in messages if message.error() is None)
        elif now - last_news > STALL_LIMIT_S:
            raise Failed(f"no message for {STALL_LIMIT_S} s after {got}")
    consumer.commit(asynchronous=False)
    return jobs.Transfer(got, time.monotonic() - start, time.process_time())


def paced_produce(job: jobs.PacedProduce) -> jobs.Latencies:
    # linger.ms=0: at one message a millisecond the default of 5 ms would be most of what is measured.
    acks, latencies, lags = Acks(), list[int](), list[int]()
    producer = Producer(settings(job.bootstrap, acks=job.acks, linger_ms=0))
    producer.list_topics(job.topic, timeout=30)
    pace = Pace(job.rate_per_s, job.warm_s, job.measure_s)
    bodies, done = payloads(job.size - STAMP.size), threading.Event()

    def poll() -> None:  # a thread of its own, so that a report is seen when it comes and not at the next tick
        while not done.is_set():
            producer.poll(0.05)

    def send(i: int, stamp: int) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            acks(error, message)
            if i >= pace.warm:
                latencies.append(time.monotonic_ns() - stamp)

        body = STAMP.pack(stamp, i) + bodies[i % DISTINCT_PAYLOADS]
        producer.produce(job.topic, body, partition=0, on_delivery=report)

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        for number, stamp, lag in pace.ticks():
            lags.append(lag)
            send(number, stamp)
        producer.flush(STALL_LIMIT_S)
    finally:
        done.set()
        poller.join()
    acks.check(pace.total)
    return summary(latencies, lags)


def paced_consume(job: jobs.PacedConsume) -> jobs.Latencies:
    config = settings(job.bootstrap, enable_auto_commit=False, enable_partition_eof=True)
    consumer = Consumer({**config, "group.id": "bench-latency"})
    consumer.assign([TopicPartition(job.topic, 0, OFFSET_END)])
    pace = Pace(job.rate_per_s, job.warm_s, job.measure_s)
    latencies: list[int] = []
    ready, got, last_news = False, 0, time.monotonic()
    while got < pace.total:
        message = consumer.poll(1.0)
        now_ns = time.monotonic_ns()
        if message is None:
            if now_ns / 1e9 - last_news > STALL_LIMIT_S:
                raise Failed(f"no message for {STALL_LIMIT_S} s after {got} of {pace.total}")
        elif message.error() is not None:  # the end of the log: from here on we are waiting for the producer
            if not ready:
                ready = True
                print(jobs.READY, flush=True)
        else:
            stamp, sequence = STAMP.unpack_from(message.value() or b"")
            got, last_news = got + 1, now_ns / 1e9
            if sequence >= pace.warm:
                latencies.append(now_ns - stamp)
    return summary(latencies)


def probe(job: jobs.Probe) -> jobs.Probed:
    print(jobs.READY, flush=True)
    bootstrap = sys.stdin.readline().strip()
    deadline = time.monotonic() + job.timeout_s
    config: Config = {**settings(bootstrap), **IMPATIENT, "error_cb": on_error}
    fetched: list[float] = []
    reader = threading.Thread(target=lambda: fetched.extend(_read_last(config, job, deadline)), daemon=True)
    if job.read:
        reader.start()
    acked = list(_write_each(config, job, deadline))
    if job.read:
        reader.join(max(0.0, deadline - time.monotonic()))
        if len(fetched) < job.partitions:
            raise Failed(f"{len(fetched)} of {job.partitions} partitions were read in {job.timeout_s} s")
        return jobs.Probed(acked[0], acked[-1], fetched[0], fetched[-1])
    return jobs.Probed(acked[0], acked[-1])


def _write_each(config: Config, job: jobs.Probe, deadline: float) -> Iterator[float]:
    reports: list[tuple[int, KafkaError | None, float]] = []

    def report(partition: int) -> Callable[[KafkaError | None, Message], None]:
        return lambda error, _message: reports.append((partition, error, time.monotonic()))

    producer = Producer({**config, "acks": "all", "linger.ms": 0, "message.timeout.ms": int(job.timeout_s * 1000)})
    waiting = set(range(job.partitions))
    for partition in waiting:
        producer.produce(job.topic, b"x" * 100, partition=partition, on_delivery=report(partition))
    while waiting:
        producer.poll(0.01)
        for partition, error, at in reports:
            if error is None:
                waiting.discard(partition)
                yield at
            else:  # a starting broker may not lead the partition yet
                producer.produce(job.topic, b"x" * 100, partition=partition, on_delivery=report(partition))
        reports.clear()
        if time.monotonic() > deadline:
            raise Failed(f"{len(waiting)} partitions did not acknowledge in {job.timeout_s} s")


def _read_last(config: Config, job: jobs.Probe, deadline: float) -> Iterator[float]:
    # Small fetches: one message of each partition is wanted, not a megabyte of it.
    small = {"fetch.message.max.bytes": 65536, "group.id": "bench-probe", "enable.auto.commit": False}
    consumer = Consumer({**config, **small})
    consumer.assign([TopicPartition(job.topic, partition, OFFSET_LAST) for partition in range(job.partitions)])
    waiting = set(range(job.partitions))
    while waiting and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None and message.partition() in waiting:
            waiting.remove(message.partition() or 0)
            yield time.monotonic()


def mock() -> NoReturn:
    cluster = Producer({"test.mock.num.brokers": 1, "log_level": 2})
    broker = next(iter(cluster.list_topics(timeout=10).brokers.values()))
    print(f"{broker.host}:{broker.port}", flush=True)
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=jobs.KafkaJob)
    result: msgspec.Struct
    match job:
        case jobs.Produce():
            result = produce(job)
        case jobs.Consume():
            result = consume(job)
        case jobs.PacedProduce():
            result = paced_produce(job)
        case jobs.PacedConsume():
            result = paced_consume(job)
        case jobs.Probe():
            result = probe(job)
        case jobs.Mock():
            mock()
    print(msgspec.json.encode(result).decode(), flush=True)
    os._exit(0)  # closing a client politely takes it seconds that no figure contains


if __name__ == "__main__":
    main()
