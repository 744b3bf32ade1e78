"""Topics are created, grown, emptied and deleted in every version of the requests; what is refused changes nothing."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import Desk, MakeDesk, each_version
from waystation.config import TOPIC_SETTINGS
from waystation.topics.partitions.partition import log_of
from waystation.topics.topics import OFFSETS_TOPIC

STRANGER = UUID("7d6d2f4e-8b1c-4f7a-9c55-0d6c1f2b3a49")


def wanted(name: str, partitions: int = -1, replicas: int = -1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}


def settings(**configs: str | None) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]


def placed(*partitions: tuple[int, list[int]]) -> list[dict[str, Any]]:
    return [{"partition_index": index, "broker_ids": brokers} for index, brokers in partitions]


# -- CreateTopics --------------------------------------------------------------------------------------------------


@each_version("create_topics")
def test_topic_is_created_with_its_settings(desk: Desk, version: int) -> None:
    topic = wanted("orders", 3, 1, configs=settings(retention_ms="5000", cleanup_policy="compact"))
    (told,) = desk.ask("create_topics", version, topics=[topic]).topics
    made = desk.broker.topics.get("orders")
    assert (told.name, told.error_code, told.error_message) == ("orders", ErrorCode.none, None)
    assert (len(made.partitions), made.overrides) == (3, {"retention.ms": "5000", "cleanup.policy": "compact"})
    assert made.settings.retention_ms == 5000
    if version >= 5:
        assert (told.num_partitions, told.replication_factor) == (3, 1)
        configs = {config.name: (config.value, config.config_source) for config in told.configs}
        assert set(configs) == set(TOPIC_SETTINGS)
        assert configs["retention.ms"] == ("5000", 1)
        assert configs["segment.bytes"] == ("1073741824", 5)
    if version >= 7:
        assert told.topic_id == made.id


@each_version("create_topics")
def test_defaults_are_the_brokers(make_desk: MakeDesk, version: int) -> None:
    desk = make_desk(num_partitions="4")
    assert desk.ask("create_topics", version, topics=[wanted("orders")]).topics[0].error_code == ErrorCode.none
    assert len(desk.broker.topics.get("orders").partitions) == 4


@each_version("create_topics")
def test_validate_only_answers_the_same_and_creates_nothing(desk: Desk, version: int) -> None:
    desk.create("taken")
    asked = [
        wanted("good", 3),
        wanted("taken"),
        wanted("a/b"),
        wanted("none", 0),
        wanted("many", 10_001),
        wanted("odd", configs=settings(retention_ms="a while")),
    ]
    told = desk.ask("create_topics", version, topics=asked, validate_only=True).topics
    assert {one.name: one.error_code for one in told} == {
        "good": ErrorCode.none,
        "taken": ErrorCode.topic_already_exists,
        "a/b": ErrorCode.invalid_topic_exception,
        "none": ErrorCode.invalid_partitions,
        "many": ErrorCode.invalid_partitions,
        "odd": ErrorCode.invalid_config,
    }
    if version >= 5:
        assert told[0].num_partitions == 3
    assert list(desk.broker.topics.names()) == ["taken"]


@each_version("create_topics")
def test_bad_topics_are_refused_each_for_its_reason_and_good_ones_made(desk: Desk, version: int) -> None:
    desk.create("taken")
    cases: dict[str, tuple[dict[str, Any], ErrorCode]] = {
        "fine": ({}, ErrorCode.none),
        "taken": ({}, ErrorCode.topic_already_exists),
        "with space": ({}, ErrorCode.invalid_topic_exception),
        "none": ({"num_partitions": 0}, ErrorCode.invalid_partitions),
        "less": ({"num_partitions": -2}, ErrorCode.invalid_partitions),
        "two": ({"replication_factor": 2}, ErrorCode.invalid_replication_factor),
        "zero": ({"replication_factor": 0}, ErrorCode.invalid_replication_factor),
        "word": ({"configs": settings(segment_bytes="big")}, ErrorCode.invalid_config),
        "what": ({"configs": settings(no_such="1")}, ErrorCode.invalid_config),
        "null": ({"configs": settings(retention_ms=None)}, ErrorCode.invalid_config),
        "placed": ({"assignments": placed((1, [1]), (0, [1]))}, ErrorCode.none),
        "counted": ({"assignments": placed((0, [1])), "num_partitions": 1}, ErrorCode.invalid_request),
        "copied": ({"assignments": placed((0, [1])), "replication_factor": 1}, ErrorCode.invalid_request),
        "gap": ({"assignments": placed((0, [1]), (2, [1]))}, ErrorCode.invalid_replica_assignment),
        "double": ({"assignments": placed((0, [1]), (0, [1]))}, ErrorCode.invalid_replica_assignment),
        "stranger": ({"assignments": placed((0, [2]))}, ErrorCode.invalid_replica_assignment),
        "twice": ({"assignments": placed((0, [1, 1]))}, ErrorCode.invalid_replica_assignment),
        "nobody": ({"assignments": placed((0, []))}, ErrorCode.invalid_replica_assignment),
    }
    told = desk.ask("create_topics", version, topics=[{**wanted(name), **more} for name, (more, _) in cases.items()])
    assert {one.name: one.error_code for one in told.topics} == {name: code for name, (_, code) in cases.items()}
    assert all((one.error_message is None) == (one.error_code == ErrorCode.none) for one in told.topics)
    assert set(desk.broker.topics.names()) == {"taken", "fine", "placed"}
    assert len(desk.broker.topics.get("placed").partitions) == 2


@each_version("create_topics")
def test_topic_named_twice_in_a_request_is_not_created(desk: Desk, version: int) -> None:
    told = desk.ask("create_topics", version, topics=[wanted("a"), wanted("b"), wanted("a", 2)]).topics
    assert {one.name: one.error_code for one in told} == {"a": ErrorCode.invalid_request, "b": ErrorCode.none}
    assert len(told) == 2
    assert "a" not in desk.broker.topics


# -- DeleteTopics ------------------------------------------------------------------------------------------------------


def to_delete(version: int, *names: str) -> dict[str, Any]:
    return {"topics": [{"name": name} for name in names]} if version >= 6 else {"topic_names": names}


@each_version("delete_topics")
def test_topics_are_deleted_by_name(desk: Desk, version: int) -> None:
    for name in ("a", "b", "c"):
        desk.create(name)
    told = desk.ask("delete_topics", version, **to_delete(version, "a", "never", "b", "b", OFFSETS_TOPIC)).responses
    assert {one.name: one.error_code for one in told} == {
        "a": ErrorCode.none,
        "never": ErrorCode.unknown_topic_or_partition,
        "b": ErrorCode.invalid_request,
        OFFSETS_TOPIC: ErrorCode.invalid_request,
    }
    assert sorted(desk.broker.topics.names()) == ["b", "c"]
    assert OFFSETS_TOPIC in desk.broker.topics


def test_topics_are_deleted_by_id(desk: Desk) -> None:
    topic = desk.create("a")
    desk.create("b")
    asked = [
        {"name": None, "topic_id": topic.id},
        {"name": None, "topic_id": STRANGER},
        {"name": None, "topic_id": None},
        {"name": "b", "topic_id": STRANGER},
    ]
    told = desk.ask("delete_topics", 6, topics=asked).responses
    assert [(one.name, one.topic_id, one.error_code) for one in told] == [
        ("a", topic.id, ErrorCode.none),
        (None, STRANGER, ErrorCode.unknown_topic_id),
        (None, None, ErrorCode.invalid_request),
        ("b", STRANGER, ErrorCode.invalid_request),
    ]
    assert list(desk.broker.topics.names()) == ["b"]


@each_version("delete_topics")
def test_nothing_is_deleted_while_the_broker_forbids_it(make_desk: MakeDesk, version: int) -> None:
    desk = make_desk(delete_topic_enable="false")
    desk.create("a")
    (told,) = desk.ask("delete_topics", version, **to_delete(version, "a")).responses
    assert told.error_code == (ErrorCode.invalid_request if version < 3 else ErrorCode.topic_deletion_disabled)
    assert "a" in desk.broker.topics


# -- CreatePartitions --------------------------------------------------------------------------------------------------


@each_version("create_partitions")
def test_topic_grows_and_never_shrinks(desk: Desk, version: int) -> None:
    for name in ("a", "b", "c", "d", "e", "f", "g", "h"):
        desk.create(name, 2)
    one, two = {"broker_ids": [1]}, {"broker_ids": [2]}
    cases: dict[str, tuple[int, Any, ErrorCode]] = {
        "a": (4, None, ErrorCode.none),
        "b": (2, None, ErrorCode.invalid_partitions),
        "c": (1, None, ErrorCode.invalid_partitions),
        "d": (-1, None, ErrorCode.invalid_partitions),
        "e": (2**31 - 1, None, ErrorCode.invalid_partitions),
        "f": (3, [one], ErrorCode.none),
        "g": (3, [two], ErrorCode.invalid_replica_assignment),
        "h": (3, [one, one], ErrorCode.invalid_replica_assignment),
        "never": (3, None, ErrorCode.unknown_topic_or_partition),
        OFFSETS_TOPIC: (5, None, ErrorCode.invalid_request),
    }
    asked = [{"name": name, "count": count, "assignments": where} for name, (count, where, _) in cases.items()]
    told = desk.ask("create_partitions", version, topics=asked).results
    assert {one.name: one.error_code for one in told} == {name: code for name, (_, _, code) in cases.items()}
    counts = {topic.name: len(topic.partitions) for topic in desk.broker.topics if not topic.internal}
    assert counts == {"a": 4, "b": 2, "c": 2, "d": 2, "e": 2, "f": 3, "g": 2, "h": 2}


@each_version("create_partitions")
def test_growth_can_be_tried_without_doing_it(desk: Desk, version: int) -> None:
    desk.create("a")
    asked = [{"name": "a", "count": 3, "assignments": None}]
    assert (
        desk.ask("create_partitions", version, topics=asked, validate_only=True).results[0].error_code == ErrorCode.none
    )
    assert len(desk.broker.topics.get("a").partitions) == 1
    (told,) = desk.ask("create_partitions", version, topics=asked * 2).results
    assert told.error_code == ErrorCode.invalid_request
    assert len(desk.broker.topics.get("a").partitions) == 1


# -- DeleteRecords -----------------------------------------------------------------------------------------------------


@each_version("delete_records")
def test_records_are_deleted_up_to_an_offset(desk: Desk, version: int) -> None:
    desk.create("a", 5)
    for index in range(5):
        desk.write("a", index, 10)
    asked = [(0, 4), (1, -1), (2, 11), (3, -2), (4, 0), (9, 0)]
    partitions = [{"partition_index": index, "offset": offset} for index, offset in asked]
    (told,) = desk.ask("delete_records", version, topics=[{"name": "a", "partitions": partitions}]).topics
    assert [(one.partition_index, one.low_watermark, one.error_code) for one in told.partitions] == [
        (0, 4, ErrorCode.none),
        (1, 10, ErrorCode.none),
        (2, -1, ErrorCode.offset_out_of_range),
        (3, -1, ErrorCode.offset_out_of_range),
        (4, 0, ErrorCode.none),
        (9, -1, ErrorCode.unknown_topic_or_partition),
    ]
    assert [log_of(partition).start_offset for partition in desk.broker.topics.get("a").partitions] == [4, 10, 0, 0, 0]


def test_records_of_many_partitions_are_deleted_in_the_order_asked(desk: Desk) -> None:
    desk.create("a", 40)
    for index in range(40):
        desk.write("a", index)
    partitions = [{"partition_index": index, "offset": -1} for index in reversed(range(40))]
    (told,) = desk.ask("delete_records", 2, topics=[{"name": "a", "partitions": partitions}]).topics
    assert [(one.partition_index, one.low_watermark) for one in told.partitions] == [
        (n, 1) for n in reversed(range(40))
    ]


@each_version("delete_records")
def test_records_are_not_deleted_where_they_are_compacted_or_the_brokers(desk: Desk, version: int) -> None:
    desk.create("keyed", cleanup_policy="compact")
    desk.create("both", cleanup_policy="compact,delete")
    for name in ("keyed", "both"):
        desk.write(name, 0, 3)
    names = ("keyed", "both", OFFSETS_TOPIC, "never")
    partitions = [{"partition_index": 0, "offset": -1}]
    told = desk.ask("delete_records", version, topics=[{"name": n, "partitions": partitions} for n in names]).topics
    assert {one.name: (one.partitions[0].low_watermark, one.partitions[0].error_code) for one in told} == {
        "keyed": (-1, ErrorCode.policy_violation),
        "both": (3, ErrorCode.none),
        OFFSETS_TOPIC: (-1, ErrorCode.invalid_topic_exception),
        "never": (-1, ErrorCode.unknown_topic_or_partition),
    }


# -- leaders and replicas: one broker has them all ---------------------------------------------------------------------


@each_version("elect_leaders")
@pytest.mark.parametrize("kind", [0, 1])
def test_no_election_is_needed(desk: Desk, version: int, kind: int) -> None:
    desk.create("a", 2)
    asked = [{"topic": "a", "partitions": [0, 1, 2]}, {"topic": "never", "partitions": [0]}]
    answer = desk.ask("elect_leaders", version, election_type=kind, topic_partitions=asked)
    told = {
        (one.topic, part.partition_id): part.error_code
        for one in answer.replica_election_results
        for part in one.partition_result
    }
    assert told == {
        ("a", 0): ErrorCode.election_not_needed,
        ("a", 1): ErrorCode.election_not_needed,
        ("a", 2): ErrorCode.unknown_topic_or_partition,
        ("never", 0): ErrorCode.unknown_topic_or_partition,
    }
    everywhere = desk.ask("elect_leaders", version, election_type=kind, topic_partitions=None)
    assert everywhere.replica_election_results == ()


@pytest.mark.parametrize("version", [1, 2])
def test_unknown_kind_of_election_is_refused(desk: Desk, version: int) -> None:
    desk.create("a")
    asked = [{"topic": "a", "partitions": [0]}]
    answer = desk.ask("elect_leaders", version, election_type=7, topic_partitions=asked)
    assert answer.error_code == ErrorCode.invalid_request
    assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.invalid_request


@each_version("alter_partition_reassignments")
def test_partitions_can_be_moved_to_where_they_are_and_nowhere_else(desk: Desk, version: int) -> None:
    desk.create("a", 5)
    places: list[list[int] | None] = [[1], [2], None, [], [1, 1], [1]]
    asked = [{"partition_index": index, "replicas": where} for index, where in enumerate(places)]
    topics = [{"name": "a", "partitions": asked}, {"name": "never", "partitions": asked[:1]}]
    answer = desk.ask("alter_partition_reassignments", version, topics=topics)
    assert answer.error_code == ErrorCode.none
    assert [[part.error_code for part in one.partitions] for one in answer.responses] == [
        [
            ErrorCode.none,
            ErrorCode.invalid_replica_assignment,
            ErrorCode.no_reassignment_in_progress,
            ErrorCode.invalid_replica_assignment,
            ErrorCode.invalid_replica_assignment,
            ErrorCode.unknown_topic_or_partition,
        ],
        [ErrorCode.unknown_topic_or_partition],
    ]


@each_version("list_partition_reassignments")
@pytest.mark.parametrize("topics", [None, [{"name": "a", "partition_indexes": [0]}]])
def test_nothing_is_being_moved(desk: Desk, version: int, topics: Any) -> None:
    answer = desk.ask("list_partition_reassignments", version, topics=topics)
    assert (answer.error_code, answer.topics) == (ErrorCode.none, ())
