"""confluent-kafka's consumer: any offset and any time can be read again, and positions mean what they say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as TP
from confluent_kafka.admin import AdminClient

from tests.clients import kit
from tests.clients.stage import NewTopicCall
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for

Open = Callable[..., Consumer]


@pytest.fixture
def open_consumer(bootstrap: str) -> Iterator[Open]:
    """Consumers that are closed with the test."""
    opened: list[Consumer] = []

    def make(group: str | None = None, **config: object) -> Consumer:
        client = kit.consumer(bootstrap, group, {key.replace("_", "."): value for key, value in config.items()})
        opened.append(client)
        return client

    yield make
    for client in opened:
        client.close()


def test_seek_replays_from_any_offset(bootstrap: str, new_topic: NewTopicCall, open_consumer: Open) -> None:
    topic = new_topic()
    sent = kit.numbered(100)
    kit.produce(bootstrap, topic, sent)
    reader = open_consumer()
    reader.assign([TP(topic, 0, OFFSET_BEGINNING)])
    assert kit.values(kit.take(reader, 100)) == sent
    for offset in (0, 42, 99, 17):
        reader.seek(TP(topic, 0, offset))
        assert kit.values(kit.take(reader, 100 - offset)) == sent[offset:]


def test_replay_from_a_time_starts_at_the_first_message_not_older(
    bootstrap: str, new_topic: NewTopicCall, open_consumer: Open
) -> None:
    topic = new_topic(partitions=2)
    base = int(time.time() * 1000) - 100_000
    client = kit.producer(bootstrap)
    for n in range(50):
        client.produce(topic, b"%d" % n, partition=0, timestamp=base + n * 1000)
    kit.flush(client)
    reader = open_consumer()
    asked = [(base - 5000, 0), (base, 0), (base + 1, 1), (base + 10_000, 10), (base + 48_001, 49), (base + 49_000, 49)]
    for stamp, offset in asked:
        (found,) = reader.offsets_for_times([TP(topic, 0, stamp)], timeout=DEADLINE_S)
        assert found.offset == offset
    late, empty = reader.offsets_for_times([TP(topic, 0, base + 49_001), TP(topic, 1, base)], timeout=DEADLINE_S)
    assert (late.offset, empty.offset) == (OFFSET_END, OFFSET_END)
    reader.assign(reader.offsets_for_times([TP(topic, 0, base + 30_000)], timeout=DEADLINE_S))
    assert kit.values(kit.take(reader, 20)) == [b"%d" % n for n in range(30, 50)]


def test_watermarks_tell_first_and_next_offset(bootstrap: str, new_topic: NewTopicCall, open_consumer: Open) -> None:
    topic = new_topic()
    reader = open_consumer()
    assert reader.get_watermark_offsets(TP(topic, 0), timeout=DEADLINE_S) == (0, 0)
    kit.produce(bootstrap, topic, kit.numbered(25))
    assert reader.get_watermark_offsets(TP(topic, 0), timeout=DEADLINE_S) == (0, 25)


def test_reading_from_the_end_sees_only_what_comes_later(
    bootstrap: str, new_topic: NewTopicCall, open_consumer: Open
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, [b"old"])
    reader = open_consumer(enable_partition_eof=True)
    reader.assign([TP(topic, 0, OFFSET_END)])
    assert kit.first_error(reader).code() == KafkaError._PARTITION_EOF
    kit.produce(bootstrap, topic, [b"new"])
    assert kit.values(kit.take(reader, 1)) == [b"new"]


def test_commit_committed_and_position_agree(
    bootstrap: str, new_topic: NewTopicCall, group: str, open_consumer: Open
) -> None:
    topic = new_topic(partitions=2)
    kit.produce(bootstrap, topic, kit.numbered(30), partition=0)
    first = open_consumer(group)
    first.assign([TP(topic, 0)])
    assert first.committed([TP(topic, 0)], timeout=DEADLINE_S)[0].offset == OFFSET_INVALID
    got = kit.take(first, 10)
    assert first.position([TP(topic, 0)])[0].offset == 10
    assert [tp.offset for tp in first.commit(message=got[-1], asynchronous=False)] == [10]
    with_words = first.commit(offsets=[TP(topic, 1, 0, metadata="a note")], asynchronous=False)
    assert with_words[0].error is None
    second = open_consumer(group)
    held, noted = second.committed([TP(topic, 0), TP(topic, 1)], timeout=DEADLINE_S)
    assert (held.offset, noted.offset, noted.metadata) == (10, 0, "a note")
    second.assign([TP(topic, 0)])
    assert kit.values(kit.take(second, 20)) == kit.numbered(20, start=10)


def test_a_commit_can_go_back_to_replay(
    bootstrap: str, new_topic: NewTopicCall, group: str, open_consumer: Open
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, kit.numbered(10))
    client = open_consumer(group)
    for offset in (8, 3):
        client.commit(offsets=[TP(topic, 0, offset)], asynchronous=False)
        assert client.committed([TP(topic, 0)], timeout=DEADLINE_S)[0].offset == offset


def test_auto_commit_on_close_lets_the_next_member_go_on(
    bootstrap: str, new_topic: NewTopicCall, group: str, open_consumer: Open
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, kit.numbered(20))
    first = kit.consumer(bootstrap, group, {"enable.auto.commit": True})
    first.subscribe([topic])
    kit.take(first, 12)
    first.close()
    second = open_consumer(group)
    second.subscribe([topic])
    assert kit.values(kit.take(second, 8)) == kit.numbered(8, start=12)


def test_paused_partition_gives_nothing_until_resumed(
    bootstrap: str, new_topic: NewTopicCall, open_consumer: Open
) -> None:
    topic = new_topic(partitions=2)
    reader = open_consumer(enable_partition_eof=True)
    reader.assign([TP(topic, 0, 0), TP(topic, 1, 0)])
    ended = {kit.first_error(reader).code() for _ in range(2)}
    assert ended == {KafkaError._PARTITION_EOF}
    reader.pause([TP(topic, 0)])
    for partition in (0, 1):
        kit.produce(bootstrap, topic, kit.numbered(5), partition=partition)
    others = kit.take(reader, 5)
    assert {message.partition() for message in others} == {1}
    assert kit.first_error(reader).code() == KafkaError._PARTITION_EOF  # of partition 1: it is drained, 0 still silent
    reader.resume([TP(topic, 0)])
    back = kit.take(reader, 5)
    assert [(message.partition(), message.offset()) for message in back] == [(0, n) for n in range(5)]


@pytest.mark.parametrize(("reset", "expected"), [("earliest", b"000000"), ("latest", b"later")])
def test_offset_out_of_range_resets_as_the_consumer_asked(
    bootstrap: str, new_topic: NewTopicCall, open_consumer: Open, reset: str, expected: bytes
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, kit.numbered(3))
    reader = open_consumer(auto_offset_reset=reset)
    reader.assign([TP(topic, 0, 1_000_000)])
    if reset == "latest":  # nothing comes until something is produced behind the reset
        assert reader.poll(1.0) is None
        kit.produce(bootstrap, topic, [b"later"])
    assert kit.values(kit.take(reader, 1)) == [expected]


def test_offset_out_of_range_is_an_error_when_no_reset_is_wanted(
    bootstrap: str, new_topic: NewTopicCall, open_consumer: Open
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, kit.numbered(3))
    reader = open_consumer(auto_offset_reset="error")
    reader.assign([TP(topic, 0, 1_000_000)])
    assert kit.first_error(reader).code() == KafkaError._AUTO_OFFSET_RESET


def test_unknown_topic_is_an_error_when_the_consumer_forbids_creation(open_consumer: Open) -> None:
    topic = unique("never")
    reader = open_consumer(allow_auto_create_topics=False, topic_metadata_propagation_max_ms=500)
    reader.subscribe([topic])
    assert kit.first_error(reader).code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    found = reader.list_topics(timeout=DEADLINE_S).topics
    assert topic not in found


def test_metadata_of_a_missing_topic_creates_it_for_producers(bootstrap: str) -> None:
    topic = unique("made-by-producing")
    (report,) = kit.produce(bootstrap, topic, [b"first"])
    assert (report.partition(), report.offset()) == (0, 0)
    assert kit.values(kit.read_all(bootstrap, topic)) == [b"first"]


@pytest.mark.parametrize("name", ["no spaces", "slash/es", "x" * 250, ".."])
def test_bad_topic_name_is_refused_not_created(bootstrap: str, name: str) -> None:
    client = kit.producer(bootstrap, {"message.timeout.ms": 5000, "topic.metadata.propagation.max.ms": 1000})
    reports = kit.Deliveries()
    client.produce(name, b"x", on_delivery=reports)
    kit.flush(client)
    assert [error.code() for error in reports.bad] == [KafkaError.TOPIC_EXCEPTION]


def test_long_poll_wakes_with_the_message_not_with_the_timeout(
    bootstrap: str, new_topic: NewTopicCall, open_consumer: Open
) -> None:
    """The fetch may wait 25 s; the message must come by being produced, long before the deadline of `take`."""
    topic = new_topic()
    kit.produce(bootstrap, topic, [b"before"])
    reader = open_consumer(fetch_wait_max_ms=25_000, fetch_min_bytes=1)
    reader.assign([TP(topic, 0, 0)])
    kit.take(reader, 1)
    assert reader.poll(0.5) is None  # a fetch at the end of the log is on its way
    kit.produce(bootstrap, topic, [b"wake"])
    assert kit.values(kit.take(reader, 1, within_s=15)) == [b"wake"]


def test_topic_deleted_and_made_again_starts_at_zero(
    bootstrap: str, new_topic: NewTopicCall, admin: AdminClient, open_consumer: Open
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, kit.numbered(10))
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    client = open_consumer()
    wait_for(lambda: topic not in client.list_topics(timeout=DEADLINE_S).topics, "the topic is gone")
    (report,) = wait_for(lambda: kit.produce(bootstrap, topic, [b"anew"]), "produced", retry_on=(KafkaException,))
    assert report.offset() == 0
    assert kit.values(kit.read_all(bootstrap, topic)) == [b"anew"]
