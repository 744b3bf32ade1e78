"""kafka-python: produce, consume, groups and transactions, also when it speaks as an older client would."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError, MessageSizeTooLargeError, ProducerFencedError

from tests.clients import kit
from tests.clients.stage import NewTopicCall
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, NotInTime, wait_for

GENERATIONS: list[tuple[int, int] | None] = [(2, 1), (2, 4), (3, 0), None]
"""Which broker the client believes to talk to: an older one makes it use older versions of every request."""

POLL_MS = 3000
"""Longer than a join takes: a poll that ends in the middle of one leaves this client without an assignment for good
(FINDINGS.md). Records end a poll at once."""

Open = Callable[..., Any]


@pytest.fixture
def open_consumer(bootstrap: str) -> Iterator[Open]:
    """Consumers that are closed with the test."""
    opened: list[Any] = []

    def make(*topics: str, **config: Any) -> Any:
        base = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 100}
        timing = {"session_timeout_ms": kit.SESSION_MS, "heartbeat_interval_ms": kit.HEARTBEAT_MS}
        client = KafkaConsumer(*topics, bootstrap_servers=bootstrap, **{**base, **timing, **config})
        opened.append(client)
        return client

    yield make
    for client in opened:
        client.close()


@pytest.fixture
def open_producer(bootstrap: str) -> Iterator[Open]:
    """Producers that are closed with the test."""
    opened: list[Any] = []

    def make(**config: Any) -> Any:
        client = KafkaProducer(bootstrap_servers=bootstrap, **config)
        opened.append(client)
        return client

    yield make
    for client in opened:
        client.close(timeout=5)


def take(client: Any, count: int) -> list[Any]:
    """The next `count` records."""
    got: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(got) < count:
        if time.monotonic() > deadline:
            raise NotInTime(f"{len(got)} of {count} records came")
        for records in client.poll(timeout_ms=POLL_MS).values():
            got += records
    return got


class Polling:
    """A member that is polled in a thread of its own, as an application does; its joins wait for each other."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self.owned: set[int] = set()
        self._thread.start()

    def close(self) -> None:
        """Leave the group."""
        self._stopped.set()
        self._thread.join(DEADLINE_S)
        self._client.close()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self._client.poll(timeout_ms=POLL_MS)
            self.owned = {place.partition for place in self._client.assignment()}


def all_committed(open_consumer: Open, topic: str, count: int) -> list[bytes]:
    """What a read_committed reader sees, up to the end of the partition."""
    reader = open_consumer(isolation_level="read_committed", group_id=None)
    place = TopicPartition(topic, 0)
    reader.assign([place])
    reader.seek_to_beginning(place)
    end = reader.end_offsets([place])[place]
    got: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while reader.position(place) < end and time.monotonic() < deadline:
        got += [record.value for records in reader.poll(timeout_ms=100).values() for record in records]
    assert len(got) == count
    return got


@pytest.mark.parametrize("generation", GENERATIONS, ids=str)
def test_every_generation_of_requests_passes_messages_through(
    new_topic: NewTopicCall, open_producer: Open, open_consumer: Open, generation: tuple[int, int] | None
) -> None:
    topic, group = new_topic(partitions=2), unique("g")
    writer = open_producer(acks="all", api_version=generation)
    sent = [writer.send(topic, value, key=b"k", partition=n % 2) for n, value in enumerate(kit.numbered(100))]
    writer.flush(DEADLINE_S)
    assert [future.get(DEADLINE_S).offset for future in sent] == [n // 2 for n in range(100)]
    reader = open_consumer(topic, group_id=group, api_version=generation)
    got = take(reader, 100)
    for partition in (0, 1):
        mine = [record.value for record in got if record.partition == partition]
        assert mine == kit.numbered(100)[partition::2]
    reader.commit()
    assert reader.committed(TopicPartition(topic, 0)) == 50


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"], ids=str)
def test_every_codec_comes_back_as_sent(
    new_topic: NewTopicCall, open_producer: Open, open_consumer: Open, codec: str | None
) -> None:
    topic = new_topic()
    writer = open_producer(compression_type=codec, linger_ms=20)
    sent = [value * 30 for value in kit.numbered(200)]
    for value in sent:
        writer.send(topic, value, headers=[("codec", str(codec).encode())], timestamp_ms=1_600_000_000_000)
    writer.flush(DEADLINE_S)
    got = take(open_consumer(topic, group_id=None), 200)
    assert [record.value for record in got] == sent
    assert {(record.headers[0], record.timestamp) for record in got} == {
        (("codec", str(codec).encode()), 1_600_000_000_000)
    }


def test_too_large_message_is_refused_by_name(new_topic: NewTopicCall, open_producer: Open) -> None:
    topic = new_topic(config={"max.message.bytes": 2000})
    writer = open_producer(max_request_size=10_000_000)
    with pytest.raises(MessageSizeTooLargeError):
        writer.send(topic, b"x" * 5000).get(DEADLINE_S)


def test_seek_times_and_positions(new_topic: NewTopicCall, open_producer: Open, open_consumer: Open) -> None:
    topic = new_topic()
    place = TopicPartition(topic, 0)
    base = int(time.time() * 1000) - 60_000
    writer = open_producer()
    for n in range(20):
        writer.send(topic, b"%d" % n, timestamp_ms=base + n * 1000)
    writer.flush(DEADLINE_S)
    reader = open_consumer(group_id=None)
    reader.assign([place])
    assert (reader.beginning_offsets([place])[place], reader.end_offsets([place])[place]) == (0, 20)
    found = reader.offsets_for_times({place: base + 6500})[place]
    assert (found.offset, found.timestamp) == (7, base + 7000)
    assert reader.offsets_for_times({place: base + 99_000})[place] is None
    reader.seek(place, 15)
    assert [record.offset for record in take(reader, 5)] == [15, 16, 17, 18, 19]
    assert reader.position(place) == 20
    reader.seek_to_beginning(place)
    assert take(reader, 1)[0].offset == 0


def test_members_share_and_take_over(bootstrap: str, new_topic: NewTopicCall, open_consumer: Open) -> None:
    topic, group = new_topic(partitions=4), unique("g")
    writer = kit.producer(bootstrap)

    def fed(condition: Callable[[], bool]) -> Callable[[], bool]:
        """Messages end the members' polls, so that they see what changed."""

        def check() -> bool:
            for partition in range(4):
                writer.produce(topic, b"x", partition=partition)
            kit.flush(writer)
            return condition()

        return check

    first = Polling(open_consumer(topic, group_id=group))
    wait_for(fed(lambda: first.owned == {0, 1, 2, 3}), "one member owns everything", every_s=0.1)
    second = Polling(open_consumer(topic, group_id=group))

    def shared() -> bool:
        return len(first.owned) == len(second.owned) == 2 and first.owned | second.owned == {0, 1, 2, 3}

    wait_for(fed(shared), "two members share", every_s=0.1)
    second.close()
    wait_for(fed(lambda: first.owned == {0, 1, 2, 3}), "the first takes over", every_s=0.1)
    first.close()


def test_missing_topic_is_created_when_a_consumer_asks_for_it(
    bootstrap: str, open_producer: Open, open_consumer: Open
) -> None:
    topic = unique("made-by-kafka-python")
    reader = open_consumer(topic, group_id=unique("g"), metadata_max_age_ms=500)
    deadline = time.monotonic() + DEADLINE_S
    while not reader.assignment():
        assert time.monotonic() < deadline, "never assigned"
        reader.poll(timeout_ms=POLL_MS)
    open_producer().send(topic, b"first").get(DEADLINE_S)
    assert [record.value for record in take(reader, 1)] == [b"first"]


def test_idempotent_producer_writes_each_message_once(
    new_topic: NewTopicCall, open_producer: Open, open_consumer: Open
) -> None:
    topic = new_topic()
    writer = open_producer(enable_idempotence=True, acks="all", batch_size=200)
    for value in kit.numbered(500):
        writer.send(topic, value)
    writer.flush(DEADLINE_S)
    assert [record.value for record in take(open_consumer(topic, group_id=None), 500)] == kit.numbered(500)


def test_transactions_commit_abort_and_move_offsets(
    bootstrap: str, new_topic: NewTopicCall, open_producer: Open, open_consumer: Open
) -> None:
    source, sink, group = new_topic(), new_topic(), unique("g")
    kit.produce(bootstrap, source, kit.numbered(10))
    reader = open_consumer(source, group_id=group)
    take(reader, 10)
    writer = open_producer(transactional_id=unique("tx"), acks="all")
    writer.init_transactions()
    for offset, commit in ((3, True), (10, False), (6, True)):
        writer.begin_transaction()
        writer.send(sink, b"%d" % offset)
        offsets = {TopicPartition(source, 0): OffsetAndMetadata(offset, "", -1)}
        writer.send_offsets_to_transaction(offsets, reader.group_metadata())
        if commit:
            writer.commit_transaction()
        else:
            writer.abort_transaction()
    assert all_committed(open_consumer, sink, 2) == [b"3", b"6"]
    assert reader.committed(TopicPartition(source, 0)) == 6


def test_zombie_is_fenced(new_topic: NewTopicCall, open_producer: Open, open_consumer: Open) -> None:
    topic, name = new_topic(), unique("tx")
    zombie, heir = (open_producer(transactional_id=name, acks="all") for _ in range(2))
    zombie.init_transactions()
    zombie.begin_transaction()
    zombie.send(topic, b"left behind").get(DEADLINE_S)
    heir.init_transactions()
    with pytest.raises(KafkaError) as refused:
        zombie.commit_transaction()
    assert isinstance(refused.value, ProducerFencedError) or "fence" in str(refused.value).lower()
    heir.begin_transaction()
    heir.send(topic, b"heir")
    heir.commit_transaction()
    assert all_committed(open_consumer, topic, 1) == [b"heir"]
