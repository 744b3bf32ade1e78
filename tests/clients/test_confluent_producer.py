"""confluent-kafka's producer: what is sent comes back as it was sent, and what cannot be stored is refused by name."""

from __future__ import annotations

import logging
import time

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, Producer

from tests.clients import kit
from tests.clients.stage import NewTopicCall
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_setting_stores_every_message_in_order(bootstrap: str, new_topic: NewTopicCall, acks: str) -> None:
    topic = new_topic()
    sent = kit.numbered(300)
    reports = kit.produce(bootstrap, topic, sent, config={"acks": acks})
    assert len(reports) == 300
    if acks != "0":  # without an answer the client cannot know offsets
        assert [report.offset() for report in reports] == list(range(300))
        assert kit.values(kit.read_all(bootstrap, topic)) == sent
        return
    reader = kit.consumer(bootstrap, None)
    reader.subscribe([topic])
    assert kit.values(kit.take(reader, 300)) == sent
    reader.close()


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back_as_sent(bootstrap: str, new_topic: NewTopicCall, codec: str) -> None:
    topic = new_topic()
    sent = [b"%06d " % n * 40 for n in range(500)]
    kit.produce(bootstrap, topic, sent, config={"compression.type": codec, "acks": "all", "linger.ms": 20})
    got = kit.read_all(bootstrap, topic)
    assert kit.values(got) == sent
    assert [message.offset() for message in got] == list(range(500))


@pytest.mark.parametrize("stored", CODECS[1:])
def test_topic_compression_setting_recompresses_without_changing_messages(
    bootstrap: str, new_topic: NewTopicCall, stored: str
) -> None:
    topic = new_topic(config={"compression.type": stored})
    sent = [b"%06d " % n * 40 for n in range(200)]
    other = "lz4" if stored != "lz4" else "zstd"
    for codec in ("none", other):
        kit.produce(bootstrap, topic, sent, config={"compression.type": codec})
    got = kit.read_all(bootstrap, topic)
    assert kit.values(got) == sent * 2
    assert [message.offset() for message in got] == list(range(400))


def test_keys_headers_timestamps_and_null_values_survive(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    client = kit.producer(bootstrap)
    headers: list[tuple[str, str | bytes | None]] = [
        ("a", b"1"),
        ("a", b"2"),
        ("empty", b""),
        ("null", None),
        ("ünï", "wörth".encode()),
    ]
    client.produce(topic, b"value", key=b"key", headers=headers, timestamp=1_600_000_000_123)
    client.produce(topic, None, key=b"tombstone", timestamp=1_600_000_000_124)
    client.produce(topic, b"", key=b"", timestamp=1_600_000_000_125)
    kit.flush(client)
    full, tombstone, empty = kit.read_all(bootstrap, topic)
    assert (full.key(), full.value(), full.headers()) == (b"key", b"value", headers)
    assert full.timestamp() == (TIMESTAMP_CREATE_TIME, 1_600_000_000_123)
    assert (tombstone.key(), tombstone.value(), tombstone.headers()) == (b"tombstone", None, None)
    assert (empty.key(), empty.value()) == (b"", b"")


def test_log_append_time_topic_stamps_with_the_brokers_clock(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic(config={"message.timestamp.type": "LogAppendTime"})
    client = kit.producer(bootstrap, {"compression.type": "lz4"})
    before = int(time.time() * 1000) - 1000
    for value in kit.numbered(5):
        client.produce(topic, value, timestamp=1_600_000_000_000)
    kit.flush(client)
    for message in kit.read_all(bootstrap, topic):
        kind, stamp = message.timestamp()
        assert kind == TIMESTAMP_LOG_APPEND_TIME
        assert before <= stamp <= time.time() * 1000 + 1000


def test_same_key_always_lands_in_the_same_partition(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic(partitions=4)
    client = kit.producer(bootstrap)
    for n in range(200):
        client.produce(topic, b"%d" % n, key=b"key-%d" % (n % 10))
    kit.flush(client)
    homes: dict[bytes | None, set[int | None]] = {}
    order: dict[bytes | None, list[int]] = {}
    for message in kit.read_all(bootstrap, topic):
        homes.setdefault(message.key(), set()).add(message.partition())
        order.setdefault(message.key(), []).append(int(message.value() or b"-1"))
    assert len(homes) == 10
    assert all(len(home) == 1 for home in homes.values())
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_large_message_travels_whole(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic(config={"max.message.bytes": 8_000_000})
    big = bytes(range(256)) * 4 * 4096 + b"end"
    kit.produce(bootstrap, topic, [b"small", big, b"small again"], config={"message.max.bytes": 8_000_000})
    got = kit.read_all(bootstrap, topic, {"fetch.message.max.bytes": 1000})
    assert kit.values(got) == [b"small", big, b"small again"]


def test_too_large_message_is_refused_and_nothing_is_stored(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic(config={"max.message.bytes": 2000})
    client = kit.producer(bootstrap, {"message.max.bytes": 8_000_000})
    reports = kit.Deliveries()
    client.produce(topic, b"x" * 5000, on_delivery=reports)
    kit.flush(client)
    assert [error.code() for error in reports.bad] == [KafkaError.MSG_SIZE_TOO_LARGE]
    client.produce(topic, b"fits", on_delivery=reports)
    kit.flush(client)
    assert kit.values(kit.read_all(bootstrap, topic)) == [b"fits"]
    assert reports.good[0].offset() == 0


def test_message_without_key_is_refused_by_a_compacted_topic(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic(config={"cleanup.policy": "compact"})
    client = kit.producer(bootstrap)
    reports = kit.Deliveries()
    client.produce(topic, b"no key", on_delivery=reports)
    kit.flush(client)
    assert [error.code() for error in reports.bad] == [KafkaError.INVALID_RECORD]
    client.produce(topic, b"value", key=b"key", on_delivery=reports)
    kit.flush(client)
    assert kit.values(kit.read_all(bootstrap, topic)) == [b"value"]


def test_unknown_partition_is_an_error_not_a_hang(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic(partitions=2)
    client = kit.producer(bootstrap, {"topic.metadata.propagation.max.ms": 1000})
    reports = kit.Deliveries()
    client.produce(topic, b"nowhere", partition=7, on_delivery=reports)
    kit.flush(client)
    assert [error.code() for error in reports.bad] == [KafkaError._UNKNOWN_PARTITION]


def test_idempotent_producer_keeps_order_with_many_requests_in_flight(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic(partitions=3)
    config = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 5, "batch.num.messages": 10}
    client = kit.producer(bootstrap, config)
    reports = kit.Deliveries()
    for n in range(3000):
        kit.send(client, topic, b"%06d" % n, partition=n % 3, on_delivery=reports)
    kit.flush(client)
    assert not reports.bad
    for partition in range(3):
        mine = [m for m in kit.read_all(bootstrap, topic) if m.partition() == partition]
        assert kit.values(mine) == [b"%06d" % n for n in range(partition, 3000, 3)]


def test_two_producers_interleave_but_each_keeps_its_order(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    clients = [kit.producer(bootstrap, {"enable.idempotence": True, "linger.ms": 0}) for _ in range(2)]
    for n in range(200):
        for name, client in zip(b"ab", clients, strict=True):
            kit.send(client, topic, b"%c%05d" % (name, n))
            client.poll(0)
    for client in clients:
        kit.flush(client)
    got = [value or b"" for value in kit.values(kit.read_all(bootstrap, topic))]
    assert len(got) == 400
    for letter in (b"a", b"b"):
        assert [value for value in got if value[:1] == letter] == [letter + b"%05d" % n for n in range(200)]


def test_a_client_has_nothing_to_say_about_telemetry(bootstrap: str, caplog: pytest.LogCaptureFixture) -> None:
    """The broker wants no metrics of clients. One that is told so by an answer writes a line about it to its log."""
    lines = logging.getLogger(unique("rdkafka"))
    with caplog.at_level(logging.DEBUG, lines.name):
        client = Producer({"bootstrap.servers": bootstrap}, logger=lines)
        for _ in range(30):  # it would ask right after it has connected, and say so when it is answered
            client.produce(unique("quiet"), b"x")
            kit.flush(client)
            assert client.list_topics(timeout=DEADLINE_S).brokers
            client.poll(0)
    assert [one.getMessage() for one in caplog.records if one.name == lines.name] == []
