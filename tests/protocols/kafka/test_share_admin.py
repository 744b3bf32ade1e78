"""What administrators do with share groups over Kafka's requests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import Desk


def alter(desk: Desk, group: str, topic: str, offset: int, partition: int = 0) -> Any:
    partitions = [{"partition_index": partition, "start_offset": offset}]
    return desk.ask(
        "alter_share_group_offsets", 0, group_id=group, topics=[{"topic_name": topic, "partitions": partitions}]
    )


def state_of(desk: Desk, group: str) -> str:
    (view,) = desk.ask("share_group_describe", 1, group_ids=[group]).groups
    return str(view.group_state)


def offset_of(desk: Desk, group: str, topic: str) -> int:
    asked = [{"group_id": group, "topics": [{"topic_name": topic, "partitions": [0]}]}]
    (told,) = desk.ask("describe_share_group_offsets", 1, groups=asked).groups
    return int(told.topics[0].partitions[0].start_offset)


def test_offsets_of_a_group_that_is_not_there_make_it(desk: Desk) -> None:
    """So one says where a new group begins before its first member joins."""
    desk.create("t")
    desk.write("t", count=10)
    answer = alter(desk, "g", "t", 4)
    assert answer.error_code is ErrorCode.none
    assert answer.responses[0].partitions[0].error_code is ErrorCode.none
    assert (state_of(desk, "g"), offset_of(desk, "g", "t")) == ("Empty", 4)
    listed = desk.ask("list_groups", 5, states_filter=[], types_filter=["share"]).groups
    assert [one.group_id for one in listed] == ["g"]


def test_offsets_of_topics_that_are_not_there_make_no_group(desk: Desk) -> None:
    desk.create("t")
    for topic, partition in (("never", 0), ("t", 9)):
        answer = alter(desk, "g", topic, 4, partition)
        assert answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_or_partition
    assert state_of(desk, "g") == "Dead"


def test_a_consumer_group_is_not_made_a_share_group_by_its_offsets(desk: Desk) -> None:
    desk.create("t")
    beat = {"group_id": "c", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
    joined = desk.ask(
        "consumer_group_heartbeat", 0, **beat, rebalance_timeout=timedelta(seconds=30), topic_partitions=[]
    )
    assert joined.error_code is ErrorCode.none
    assert alter(desk, "c", "t", 0).error_code is ErrorCode.group_id_not_found
