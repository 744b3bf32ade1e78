"""confluent-kafka's AdminClient: topics, partitions, records, offsets and the cluster."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as TP
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from tests.clients import kit
from tests.clients.stage import NewTopicCall
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.waiting import DEADLINE_S, wait_for

PLACES: Any = OffsetSpec
"""The class methods of OffsetSpec carry no types."""


def refusal(future: Future[Any]) -> int:
    """The error code an admin call is answered with."""
    with pytest.raises(KafkaException) as refused:
        future.result(DEADLINE_S)
    return kit.code_of(refused.value)


def describe(admin: AdminClient, topic: str) -> Any:
    """What the cluster says about a topic."""
    return admin.describe_topics(TopicCollection([topic]))[topic].result(DEADLINE_S)


def test_topic_is_created_listed_described_and_deleted(admin: AdminClient) -> None:
    topic = unique("admin")
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(DEADLINE_S)
    wait_for(lambda: topic in admin.list_topics(timeout=DEADLINE_S).topics, "listed")
    assert sorted(admin.list_topics(timeout=DEADLINE_S).topics[topic].partitions) == [0, 1, 2]
    told = describe(admin, topic)
    assert (told.name, told.is_internal, len(told.partitions)) == (topic, False, 3)
    assert str(told.topic_id) not in ("", "AAAAAAAAAAAAAAAAAAAAAA")
    assert [partition.leader.id for partition in told.partitions] == [
        partition.isr[0].id for partition in told.partitions
    ]
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    wait_for(lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics, "no longer listed")
    assert refusal(admin.describe_topics(TopicCollection([topic]))[topic]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_topic_made_again_has_another_id(admin: AdminClient, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    first = str(describe(admin, topic).topic_id)
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    wait_for(lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics, "gone")

    def again() -> Any:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)
        return describe(admin, topic)

    told = wait_for(again, "made again", retry_on=(KafkaException,))
    assert str(told.topic_id) != first


def test_defaults_are_the_brokers_when_none_are_given(admin: AdminClient) -> None:
    topic = unique("admin")
    admin.create_topics([NewTopic(topic)])[topic].result(DEADLINE_S)
    wait_for(lambda: topic in admin.list_topics(timeout=DEADLINE_S).topics, "listed")
    assert len(describe(admin, topic).partitions) >= 1


def test_validate_only_creates_nothing(admin: AdminClient) -> None:
    topic = unique("admin")
    admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic].result(DEADLINE_S)
    assert topic not in admin.list_topics(timeout=DEADLINE_S).topics


def test_existing_topic_is_not_created_again(admin: AdminClient, new_topic: NewTopicCall) -> None:
    topic = new_topic(partitions=2)
    assert refusal(admin.create_topics([NewTopic(topic, 5, 1)])[topic]) == KafkaError.TOPIC_ALREADY_EXISTS
    assert len(describe(admin, topic).partitions) == 2


@pytest.mark.parametrize("name", ["", ".", "..", "with space", "slash/", "ümlaut", "x" * 250])
def test_bad_topic_names_are_refused(admin: AdminClient, name: str) -> None:
    assert refusal(admin.create_topics([NewTopic(name, 1, 1)])[name]) == KafkaError.TOPIC_EXCEPTION


def test_more_replicas_than_brokers_are_refused(admin: AdminClient) -> None:
    topic = unique("admin")
    assert refusal(admin.create_topics([NewTopic(topic, 1, 3)])[topic]) == KafkaError.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(
    "config",
    [
        {"retention.ms": "a while"},
        {"cleanup.policy": "burn"},
        {"no.such.setting": "1"},
        {"segment.bytes": "-5"},
        {"compression.type": "rar"},
    ],
)
def test_bad_topic_settings_are_refused(admin: AdminClient, config: dict[str, str]) -> None:
    topic = unique("admin")
    assert refusal(admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic]) == KafkaError.INVALID_CONFIG
    assert topic not in admin.list_topics(timeout=DEADLINE_S).topics


def test_one_bad_topic_does_not_stop_the_others(admin: AdminClient) -> None:
    good, bad = unique("admin"), "not good/at all"
    answers = admin.create_topics([NewTopic(good, 1, 1), NewTopic(bad, 1, 1)])
    answers[good].result(DEADLINE_S)
    assert refusal(answers[bad]) == KafkaError.TOPIC_EXCEPTION


def test_unknown_topic_cannot_be_deleted(admin: AdminClient) -> None:
    topic = unique("never")
    assert refusal(admin.delete_topics([topic])[topic]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_partitions_can_be_added_but_not_taken_away(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall
) -> None:
    topic = new_topic(partitions=2)
    kit.produce(bootstrap, topic, [b"stays"], partition=1)
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(DEADLINE_S)
    wait_for(lambda: len(admin.list_topics(timeout=DEADLINE_S).topics[topic].partitions) == 4, "four partitions")
    kit.produce(bootstrap, topic, [b"new"], partition=3)
    assert sorted(kit.values(kit.read_all(bootstrap, topic)), key=str) == [b"new", b"stays"]
    for count in (3, 4):
        assert refusal(admin.create_partitions([NewPartitions(topic, count)])[topic]) == KafkaError.INVALID_PARTITIONS
    never = unique("never")
    assert refusal(admin.create_partitions([NewPartitions(never, 3)])[never]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_deleted_records_are_gone_and_the_rest_stays(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall
) -> None:
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        kit.produce(bootstrap, topic, kit.numbered(20), partition=partition)
    first, second = TP(topic, 0, 8), TP(topic, 1, OFFSET_END)
    answers = admin.delete_records([first, second])
    assert answers[first].result(DEADLINE_S).low_watermark == 8
    assert answers[second].result(DEADLINE_S).low_watermark == 20
    left = kit.read_all(bootstrap, topic)
    assert [(message.partition(), message.offset()) for message in left] == [(0, n) for n in range(8, 20)]
    beyond = TP(topic, 0, 1000)
    assert refusal(admin.delete_records([beyond])[beyond]) == KafkaError.OFFSET_OUT_OF_RANGE


def test_reader_below_the_deleted_records_starts_at_the_first_that_is_left(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, kit.numbered(10))
    admin.delete_records([TP(topic, 0, 6)])[TP(topic, 0, 6)].result(DEADLINE_S)
    reader = kit.consumer(bootstrap)
    reader.assign([TP(topic, 0, 2)])
    assert [message.offset() for message in kit.take(reader, 4)] == [6, 7, 8, 9]
    assert reader.get_watermark_offsets(TP(topic, 0), timeout=DEADLINE_S) == (6, 10)
    reader.close()


def test_offsets_are_listed_by_place_and_by_time(bootstrap: str, admin: AdminClient, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    base = int(time.time() * 1000) - 50_000
    client = kit.producer(bootstrap)
    for step in (0, 1000, 9000, 2000, 3000):  # the newest time is not the last message
        client.produce(topic, b"x", timestamp=base + step)
        kit.flush(client)

    def ask(spec: OffsetSpec) -> tuple[int, int]:
        answers = admin.list_offsets({TP(topic, 0): spec})
        told = next(iter(answers.values())).result(DEADLINE_S)
        return told.offset, told.timestamp

    assert ask(PLACES.earliest())[0] == 0
    assert ask(PLACES.latest())[0] == 5
    assert ask(PLACES.max_timestamp()) == (2, base + 9000)
    assert ask(PLACES.for_timestamp(base + 500)) == (1, base + 1000)
    assert ask(PLACES.for_timestamp(base + 1001)) == (2, base + 9000)
    assert ask(PLACES.for_timestamp(base + 9001))[0] == -1


def test_latest_offset_for_read_committed_stops_before_an_open_transaction(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, kit.numbered(4))
    client = kit.producer(bootstrap, {"transactional.id": unique("tx"), "message.timeout.ms": 20_000})
    client.init_transactions(DEADLINE_S)
    client.begin_transaction()
    client.produce(topic, b"open")
    kit.flush(client)

    def latest(level: IsolationLevel) -> int:
        answers = admin.list_offsets({TP(topic, 0): PLACES.latest()}, isolation_level=level)
        return int(next(iter(answers.values())).result(DEADLINE_S).offset)

    assert latest(IsolationLevel.READ_UNCOMMITTED) == 5
    assert latest(IsolationLevel.READ_COMMITTED) == 4
    client.abort_transaction(DEADLINE_S)
    wait_for(lambda: latest(IsolationLevel.READ_COMMITTED) == 6, "the marker moves the stable offset on")


def test_cluster_describes_itself(bootstrap: str, admin: AdminClient) -> None:
    told = admin.describe_cluster().result(DEADLINE_S)
    assert told.cluster_id == admin.list_topics(timeout=DEADLINE_S).cluster_id
    assert told.controller.id in {node.id for node in told.nodes}
    assert [(node.host, node.port) for node in told.nodes] == [split_address(bootstrap)]


def test_describing_with_permissions_answers_too(admin: AdminClient, new_topic: NewTopicCall) -> None:
    """Without authentication everything is allowed; the call must still be answered."""
    topic = new_topic()
    collection = TopicCollection([topic])
    told = admin.describe_topics(collection, include_authorized_operations=True)[topic].result(DEADLINE_S)
    assert told.name == topic
    assert admin.describe_cluster(include_authorized_operations=True).result(DEADLINE_S).nodes


def test_many_topics_at_once(admin: AdminClient) -> None:
    names = [unique("many") for _ in range(40)]
    for answer in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
        answer.result(DEADLINE_S)
    wait_for(lambda: set(names) <= set(admin.list_topics(timeout=DEADLINE_S).topics), "all are listed")
    for answer in admin.delete_topics(names).values():
        answer.result(DEADLINE_S)
    wait_for(lambda: not set(names) & set(admin.list_topics(timeout=DEADLINE_S).topics), "none is listed")
