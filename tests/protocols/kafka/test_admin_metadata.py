"""Metadata, DescribeTopicPartitions, DescribeCluster: clients learn what exists, in every version."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import Desk, MakeDesk, each_version
from waystation.protocols.kafka.admin import metadata
from waystation.protocols.kafka.requests.authorized import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from waystation.topics.topics import OFFSETS_TOPIC, QUEUES_TOPIC, SHARE_TOPIC, TRANSACTIONS_TOPIC

INTERNAL = {OFFSETS_TOPIC, QUEUES_TOPIC, SHARE_TOPIC, TRANSACTIONS_TOPIC}
STRANGER = UUID("7d6d2f4e-8b1c-4f7a-9c55-0d6c1f2b3a49")


def by_name(answer: Any) -> dict[str, Any]:
    return {topic.name: topic for topic in answer.topics}


@each_version("metadata")
def test_all_topics_are_told(desk: Desk, version: int) -> None:
    topic = desk.create("orders", 3)
    answer = desk.ask("metadata", version, topics=[] if version == 0 else None)
    told = by_name(answer)
    assert set(told) == {"orders", *INTERNAL}
    assert [(p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes) for p in told["orders"].partitions] == [
        (n, 1, (1,), (1,)) for n in range(3)
    ]
    assert [(one.node_id, one.host, one.port) for one in answer.brokers] == [(1, "broker.test", 19_092)]
    if version >= 1:
        assert answer.controller_id == 1
        assert {name for name, one in told.items() if one.is_internal} == INTERNAL
    if version >= 2:
        assert answer.cluster_id == desk.broker.cluster_id
    if version >= 7:
        assert {p.leader_epoch for p in told["orders"].partitions} == {topic.partitions[0].epoch}
    if version >= 10:
        assert told["orders"].topic_id == topic.id
    if version >= 13:
        assert answer.error_code == ErrorCode.none


@each_version("metadata")
def test_empty_list_means_none_but_in_version_0(desk: Desk, version: int) -> None:
    told = by_name(desk.ask("metadata", version, topics=[]))
    assert set(told) == (INTERNAL if version == 0 else set())


@each_version("metadata")
def test_unknown_topic_is_created_where_that_is_allowed(make_desk: MakeDesk, version: int) -> None:
    desk = make_desk(num_partitions="3")
    (told,) = desk.ask("metadata", version, topics=[{"name": "fresh"}], allow_auto_topic_creation=True).topics
    assert (told.error_code, told.name, len(told.partitions)) == (ErrorCode.none, "fresh", 3)
    assert "fresh" in desk.broker.topics


@each_version("metadata")
def test_unknown_topic_is_not_created_when_the_broker_forbids_it(make_desk: MakeDesk, version: int) -> None:
    desk = make_desk(auto_create_topics_enable="false")
    (told,) = desk.ask("metadata", version, topics=[{"name": "never"}], allow_auto_topic_creation=True).topics
    assert (told.error_code, told.name, told.partitions) == (ErrorCode.unknown_topic_or_partition, "never", ())
    assert "never" not in desk.broker.topics


@pytest.mark.parametrize("version", range(4, 14))
def test_unknown_topic_is_not_created_when_the_request_forbids_it(desk: Desk, version: int) -> None:
    (told,) = desk.ask("metadata", version, topics=[{"name": "never"}], allow_auto_topic_creation=False).topics
    assert told.error_code == ErrorCode.unknown_topic_or_partition
    assert "never" not in desk.broker.topics


@each_version("metadata")
def test_impossible_names_are_told_apart_from_unknown_ones(desk: Desk, version: int) -> None:
    asked = [{"name": name} for name in ("", "..", "a/b", "x" * 250)]
    for create in (True, False):
        told = desk.ask("metadata", version, topics=asked, allow_auto_topic_creation=create).topics
        assert [one.error_code for one in told] == [ErrorCode.invalid_topic_exception] * 4


def test_topic_asked_for_twice_is_told_once(desk: Desk) -> None:
    assert len(desk.ask("metadata", 12, topics=[{"name": "a"}, {"name": "a"}, {"name": "b"}]).topics) == 2


@pytest.mark.parametrize("version", [12, 13])
def test_topics_are_found_by_id(desk: Desk, version: int) -> None:
    topic = desk.create("orders", 2)
    asked = [{"name": None, "topic_id": topic.id}, {"name": None, "topic_id": STRANGER}, {"name": None}]
    known, unknown, empty = desk.ask("metadata", version, topics=asked).topics
    assert (known.error_code, known.name, known.topic_id, len(known.partitions)) == (0, "orders", topic.id, 2)
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (ErrorCode.unknown_topic_id, None, STRANGER)
    assert empty.error_code == ErrorCode.unknown_topic_id


@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_refused_before_version_12(desk: Desk, version: int) -> None:
    topic = desk.create("orders")
    asked = [{"name": "orders", "topic_id": topic.id}, {"name": None, "topic_id": topic.id}]
    assert {one.error_code for one in desk.ask("metadata", version, topics=asked).topics} == {ErrorCode.invalid_request}


@pytest.mark.parametrize("version", range(8, 14))
@pytest.mark.parametrize("asked", [True, False])
def test_authorized_operations_are_told_when_asked_for(desk: Desk, version: int, asked: bool) -> None:
    desk.create("orders")
    answer = desk.ask(
        "metadata",
        version,
        topics=[{"name": "orders"}],
        include_topic_authorized_operations=asked,
        include_cluster_authorized_operations=asked,
    )
    assert answer.topics[0].topic_authorized_operations == (TOPIC_OPERATIONS if asked else NOT_ASKED)
    if version <= 10:
        assert answer.cluster_authorized_operations == (CLUSTER_OPERATIONS if asked else NOT_ASKED)


# -- DescribeTopicPartitions ---------------------------------------------------------------------------------------


def pages(desk: Desk, names: list[str], limit: int) -> list[list[tuple[str, int]]]:
    """All pages: the partitions that each one tells."""
    found: list[list[tuple[str, int]]] = []
    cursor = None
    for _ in range(50):
        answer = desk.ask(
            "describe_topic_partitions",
            0,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        found.append([(topic.name, p.partition_index) for topic in answer.topics for p in topic.partitions])
        if answer.next_cursor is None:
            return found
        cursor = {"topic_name": answer.next_cursor.topic_name, "partition_index": answer.next_cursor.partition_index}
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 2000])
def test_pages_tell_every_partition_once_in_order(desk: Desk, limit: int) -> None:
    desk.create("b", 3)
    desk.create("a", 3)
    desk.create("c", 1)
    found = pages(desk, ["b", "a", "c"], limit)
    assert [one for page in found for one in page] == [
        (t, n) for t, k in (("a", 3), ("b", 3), ("c", 1)) for n in range(k)
    ]
    assert all(len(page) == limit for page in found[:-1])
    assert len(found[-1]) <= limit


def test_no_names_means_all_topics(desk: Desk) -> None:
    desk.create("zebra", 2)
    told = {topic.name: topic for topic in desk.ask("describe_topic_partitions", 0, topics=[]).topics}
    assert set(told) == {"zebra", *INTERNAL}
    assert told[OFFSETS_TOPIC].is_internal
    assert told["zebra"].topic_authorized_operations == TOPIC_OPERATIONS
    partition = told["zebra"].partitions[1]
    assert (partition.leader_id, partition.leader_epoch, partition.isr_nodes) == (1, 0, (1,))
    assert (partition.eligible_leader_replicas, partition.offline_replicas) == ((), ())


@pytest.mark.parametrize("limit", [0, -5])
def test_page_of_nothing_is_a_page_of_one(desk: Desk, limit: int) -> None:
    desk.create("a", 3)
    assert pages(desk, ["a"], limit) == [[("a", 0)], [("a", 1)], [("a", 2)]]


def test_page_is_never_larger_than_the_brokers_limit(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "MAX_PAGE_PARTITIONS", 4)
    desk.create("big", 5)
    answer = desk.ask("describe_topic_partitions", 0, topics=[{"name": "big"}], response_partition_limit=2**31 - 1)
    assert len(answer.topics[0].partitions) == 4
    assert answer.next_cursor.partition_index == 4


def test_unknown_topics_are_told_as_such(desk: Desk) -> None:
    desk.create("known")
    asked = [{"name": name} for name in ("known", "never", "a/b")]
    told = by_name(desk.ask("describe_topic_partitions", 0, topics=asked))
    assert told["known"].error_code == ErrorCode.none
    assert told["never"].error_code == ErrorCode.unknown_topic_or_partition
    assert told["a/b"].error_code == ErrorCode.invalid_topic_exception
    assert "never" not in desk.broker.topics


def test_cursor_on_a_topic_that_is_gone_goes_on_with_the_next(desk: Desk) -> None:
    desk.create("a", 2)
    desk.create("c", 2)
    cursor = {"topic_name": "b", "partition_index": 1}
    answer = desk.ask("describe_topic_partitions", 0, topics=[{"name": "a"}, {"name": "c"}], cursor=cursor)
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("c", 2)]


@pytest.mark.parametrize("index", [2, 3, 2**31 - 1])
def test_cursor_behind_the_last_partition_tells_none(desk: Desk, index: int) -> None:
    desk.create("a", 2)
    cursor = {"topic_name": "a", "partition_index": index}
    answer = desk.ask("describe_topic_partitions", 0, topics=[{"name": "a"}], cursor=cursor)
    assert (answer.topics[0].partitions, answer.next_cursor) == ((), None)


def test_negative_cursor_is_refused(desk: Desk) -> None:
    desk.create("a", 2)
    cursor = {"topic_name": "a", "partition_index": -1}
    (told,) = desk.ask("describe_topic_partitions", 0, topics=[{"name": "a"}], cursor=cursor).topics
    assert told.error_code == ErrorCode.invalid_request


# -- DescribeCluster ---------------------------------------------------------------------------------------------------


@each_version("describe_cluster")
@pytest.mark.parametrize("asked", [True, False])
def test_cluster_is_described(desk: Desk, version: int, asked: bool) -> None:
    answer = desk.ask("describe_cluster", version, include_cluster_authorized_operations=asked)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (ErrorCode.none, desk.broker.cluster_id, 1)
    assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == [(1, "broker.test", 19_092)]
    assert answer.cluster_authorized_operations == (CLUSTER_OPERATIONS if asked else NOT_ASKED)


@pytest.mark.parametrize("version", [1, 2])
def test_controllers_are_not_described(desk: Desk, version: int) -> None:
    assert desk.ask("describe_cluster", version, endpoint_type=2).error_code == ErrorCode.mismatched_endpoint_type
    assert desk.ask("describe_cluster", version, endpoint_type=9).error_code == ErrorCode.unsupported_endpoint_type
