"""Short words for what most tests with confluent-kafka do: make a client, produce a list, read a topic to its end.

Nothing here swallows an error: a failed delivery or a consumer error ends the test. Only tests/clients calls this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, NotInTime

Config = Mapping[str, Any]

SESSION_MS = 6000
"""The shortest session that Kafka's default `group.min.session.timeout.ms` allows."""
HEARTBEAT_MS = 500


def producer(bootstrap: str, config: Config | None = None) -> Producer:
    """A producer that gives up within the deadline and sends without lingering."""
    base: dict[str, Any] = {"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 3}
    merged = {**base, **(config or {})}
    merged.setdefault("message.timeout.ms", int(DEADLINE_S * 1000))
    return Producer(merged)


def consumer(bootstrap: str, group: str | None = None, config: Config | None = None) -> Consumer:
    """A consumer that starts at the earliest offset, commits only when told, and looks for topics often."""
    base: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group or unique("lone"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        "topic.metadata.refresh.interval.ms": 500,
        "log_level": 3,
    }
    return Consumer({**base, **(config or {})})


class Deliveries:
    """Collects delivery reports; `good` keeps the order in which the broker acknowledged."""

    def __init__(self) -> None:
        self.good: list[Message] = []
        self.bad: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.bad.append(error)
        else:
            self.good.append(message)


def flush(client: Producer) -> None:
    """Wait until every produced message has its report."""
    left = client.flush(DEADLINE_S)
    if left:
        raise NotInTime(f"{left} messages still without a delivery report")


def produce(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes | None],
    *,
    partition: int = -1,
    key: bytes | None = None,
    config: Config | None = None,
) -> list[Message]:
    """Produce every value and return the delivery reports, all of which are good."""
    client = producer(bootstrap, config)
    reports = Deliveries()
    for value in values:
        send(client, topic, value, key=key, partition=partition, on_delivery=reports)
    flush(client)
    if reports.bad:
        raise KafkaException(reports.bad[0])
    return reports.good


def send(client: Producer, topic: str, value: bytes | None, **options: Any) -> None:
    """`Producer.produce` that waits for room in the local queue instead of failing."""
    while True:
        try:
            client.produce(topic, value, **options)
            return
        except BufferError:
            client.poll(0.1)


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Values that tell their own place."""
    return [b"%06d" % n for n in range(start, start + count)]


def take(client: Consumer, count: int, *, within_s: float = DEADLINE_S) -> list[Message]:
    """The next `count` messages; an error event ends the test."""
    got: list[Message] = []
    poll_until(client, got.append, lambda: len(got) >= count, f"{count} messages", within_s=within_s)
    return got


def poll_until(
    client: Consumer,
    sink: Callable[[Message], object],
    done: Callable[[], bool],
    what: str,
    *,
    within_s: float = DEADLINE_S,
) -> None:
    """Poll into `sink` until `done`."""
    deadline = time.monotonic() + within_s
    seen = 0
    while not done():
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {within_s:g} s: {what} ({seen} messages came)")
        message = client.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        seen += 1
        sink(message)


def first_error(client: Consumer, *, within_s: float = DEADLINE_S) -> KafkaError:
    """The first error event of a consumer that is expected to fail."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        message = client.poll(0.1)
        error = message.error() if message is not None else None
        if error is not None:
            return error
    raise NotInTime("the consumer reported no error")


def partitions_of(client: Consumer, topic: str) -> list[int]:
    """The partitions of a topic, as metadata tells them."""
    return sorted(client.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)


def read_all(bootstrap: str, topic: str, config: Config | None = None) -> list[Message]:
    """Every message of a topic that a fresh reader sees now, partition by partition in the order they came.

    It ends when each partition reported its end, so it also tells what is *not* there. The deadline is for standing
    still: a long topic may take as long as it needs.
    """
    client = consumer(bootstrap, None, {"enable.partition.eof": True, **(config or {})})
    try:
        waiting = set(partitions_of(client, topic))
        client.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in waiting])
        got: list[Message] = []
        deadline = time.monotonic() + DEADLINE_S
        while waiting:
            if time.monotonic() > deadline:
                raise NotInTime(f"partitions {sorted(waiting)} of {topic} never ended ({len(got)} messages came)")
            for message in client.consume(500, 0.1):
                deadline = time.monotonic() + DEADLINE_S
                error = message.error()
                if error is None:
                    got.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(message.partition() or 0)
                else:
                    raise KafkaException(error)
        return got
    finally:
        client.close()


def values(messages: Sequence[Message]) -> list[bytes | None]:
    """What the messages carry."""
    return [message.value() for message in messages]


def code_of(error: BaseException) -> int:
    """The Kafka error code inside a KafkaException."""
    if not isinstance(error, KafkaException):
        raise error
    inner = error.args[0]
    if not isinstance(inner, KafkaError):
        raise error
    return inner.code()
