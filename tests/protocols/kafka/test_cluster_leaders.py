"""A client that asks a node for what another one leads is told so, and who leads; readers may read nearby."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import each_version
from tests.protocols.kafka.cluster_kit import ClusterDesk, HotClient
from waystation.cluster.decisions.state import NOBODY
from waystation.log.batches import batch as batches
from waystation.topics.partitions.partition import Partition

PRODUCES = range(3, 14)
FETCHES = range(4, 19)
NODE_2 = (2, "node2.test", 9_092, "b")


def produce(desk: ClusterDesk, version: int, topic_id: UUID) -> tuple[Any, Any]:
    """The whole answer, and that of the partition."""
    records = bytes(batches.build([(b"k", b"v", ())], desk.broker.world.clock.now_ms()))
    topic = {"name": "a", "topic_id": topic_id, "partition_data": [{"index": 0, "records": records}]}
    answer = HotClient(desk).ask("produce", version, acks=-1, topic_data=[topic])
    return answer, answer.responses[0].partition_responses[0]


def fetch_fields(topic_id: UUID, offset: int = 0, epoch: int = -1, rack: str = "", **more: Any) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "partition_max_bytes": 1_000_000,
    }
    topic = {"topic": "a", "topic_id": topic_id, "partitions": [partition]}
    return {
        "max_bytes": 1_000_000,
        "max_wait": timedelta(0),
        "session_epoch": -1,
        "rack_id": rack,
        "topics": [topic],
        "replica_id": -1,
        **more,
    }


def fetch(desk: ClusterDesk, version: int, topic_id: UUID, **fields: Any) -> tuple[Any, Any]:
    answer = HotClient(desk).ask("fetch", version, **fetch_fields(topic_id, **fields))
    return answer, answer.responses[0].partitions[0]


def endpoints(answer: Any) -> list[tuple[int, str, int, str | None]]:
    return [(one.node_id, one.host, one.port, one.rack) for one in answer.node_endpoints]


@pytest.mark.parametrize("version", PRODUCES)
def test_a_producer_is_told_who_leads(cluster: ClusterDesk, version: int) -> None:
    topic_id = cluster.create_placed("a")
    assert produce(cluster, version, topic_id)[1].error_code is ErrorCode.none
    cluster.moved("a", 0, leader=2, epoch=7)
    answer, told = produce(cluster, version, topic_id)
    assert (told.error_code, told.base_offset) == (ErrorCode.not_leader_or_follower, -1)
    if version >= 10:
        assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (2, 7)
        assert endpoints(answer) == [NODE_2]


@pytest.mark.parametrize("version", [9, 10, 13])
def test_a_producer_is_told_that_nobody_leads(cluster: ClusterDesk, version: int) -> None:
    topic_id = cluster.create_placed("a")
    cluster.moved("a", 0, leader=NOBODY, epoch=7)
    answer, told = produce(cluster, version, topic_id)
    assert told.error_code is ErrorCode.not_leader_or_follower
    if version >= 10:
        assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (-1, 7)
        assert endpoints(answer) == []


@pytest.mark.parametrize("version", FETCHES)
def test_a_consumer_with_an_old_epoch_is_told_who_leads(cluster: ClusterDesk, version: int) -> None:
    topic_id = cluster.create_placed("a")
    cluster.moved("a", 0, leader=2, epoch=7)
    answer, told = fetch(cluster, version, topic_id, epoch=6)
    # Before version 9 a consumer says no epoch, and before version 11 it may read from the leader only.
    wanted = ErrorCode.fenced_leader_epoch if version >= 9 else ErrorCode.not_leader_or_follower
    assert told.error_code is wanted
    if version >= 12:
        assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (2, 7)
    if version >= 16:
        assert endpoints(answer) == [NODE_2]


@pytest.mark.parametrize("version", FETCHES)
def test_a_follower_serves_consumers_that_know_of_followers(cluster: ClusterDesk, version: int) -> None:
    topic_id = cluster.create_placed("a")
    cluster.write("a", 0, 3)
    cluster.moved("a", 0, leader=2, epoch=7)
    _, told = fetch(cluster, version, topic_id, epoch=7, offset=1)
    if version >= 11:
        assert (told.error_code, told.high_watermark) == (ErrorCode.none, 3)
        assert told.records
    else:
        assert told.error_code is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("version", FETCHES)
@pytest.mark.parametrize("leader", [2, NOBODY])
def test_only_who_leads_says_that_an_offset_is_out_of_range(cluster: ClusterDesk, version: int, leader: int) -> None:
    """A follower may lack what its leader has, as may a node whose disk was replaced while it was named as leader."""
    topic_id = cluster.create_placed("a")
    cluster.write("a", 0, 3)
    assert fetch(cluster, version, topic_id, offset=4)[1].error_code is ErrorCode.offset_out_of_range
    cluster.moved("a", 0, leader=leader, epoch=7)
    answer, told = fetch(cluster, version, topic_id, epoch=7, offset=4)
    assert told.error_code is ErrorCode.not_leader_or_follower
    assert not told.records
    if version >= 12:
        assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (leader, 7)
    if version >= 16:
        assert endpoints(answer) == ([] if leader == NOBODY else [NODE_2])


@pytest.mark.parametrize("version", [version for version in FETCHES if version >= 11])
def test_a_consumer_is_sent_to_a_replica_in_its_rack(cluster: ClusterDesk, version: int) -> None:
    topic_id = cluster.create_placed("a")
    cluster.write("a", 0, 3)

    def preferred(rack: str, **fields: Any) -> tuple[int, bool]:
        _, told = fetch(cluster, version, topic_id, rack=rack, **fields)
        return told.preferred_read_replica, bool(told.records)

    assert preferred("b", offset=1) == (2, False)
    assert preferred("b", offset=3, max_wait=timedelta(seconds=100)) == (2, False), (
        "nobody waits for records to be told that"
    )
    assert preferred("a", offset=1) == (-1, True), "this node is in that rack"
    assert preferred("nowhere", offset=1) == (-1, True)
    assert preferred("", offset=1) == (-1, True)
    assert preferred("b", offset=4) == (-1, False), "what is not there yet, no other replica has"
    cluster.placed(topic_id, 0, in_sync=(1, 3))
    assert preferred("b", offset=1) == (-1, True), "a replica that is behind does not have it"
    cluster.placed(topic_id, 0)
    cluster.dies(2)
    assert preferred("b", offset=1) == (-1, True)


def test_a_session_tells_the_preferred_replica_each_time(cluster: ClusterDesk) -> None:
    topic_id = cluster.create_placed("a")
    cluster.write("a", 0, 3)
    client = HotClient(cluster)
    first = client.ask("fetch", 17, **fetch_fields(topic_id, rack="b", session_epoch=0))
    assert first.session_id > 0
    again = fetch_fields(topic_id, rack="b", session_epoch=1, session_id=first.session_id, topics=())
    (topic,) = client.ask("fetch", 17, **again).responses
    assert topic.partitions[0].preferred_read_replica == 2


def test_a_fetch_that_waits_is_told_at_once_when_the_leader_changes(cluster: ClusterDesk) -> None:
    topic_id = cluster.create_placed("a")
    partition = cluster.broker.topics.get("a").partition(0)

    async def story() -> Any:
        fields = fetch_fields(topic_id, epoch=0, max_wait=timedelta(seconds=300), min_bytes=1)
        waiting = asyncio.ensure_future(HotClient(cluster).asking("fetch", 17, **fields))
        await asyncio.sleep(0)
        assert partition.watchers, "it waits"
        partition.follow(7)
        partition.wake()
        return await waiting

    told = cluster.run(story()).responses[0].partitions[0]
    assert told.error_code is ErrorCode.fenced_leader_epoch


@pytest.fixture
def hidden_end(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """As on a new leader that does not know yet what its predecessor has shown."""

    def hide(offset: int) -> None:
        monkeypatch.setattr(Partition, "visible_offset", property(lambda _: offset))
        monkeypatch.setattr(Partition, "stable_offset", property(lambda _: offset))
        monkeypatch.setattr(Partition, "all_visible", property(lambda _: False))

    return hide


@each_version("list_offsets")
def test_the_end_is_not_told_before_it_is_known(
    cluster: ClusterDesk, version: int, hidden_end: Callable[[int], None]
) -> None:
    cluster.create_placed("a")
    cluster.write("a", 0, 5)
    hidden_end(3)

    def listed(timestamp: int) -> tuple[ErrorCode, int]:
        entry = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        answer = cluster.ask("list_offsets", version, topics=[{"name": "a", "partitions": [entry]}])
        (told,) = answer.topics[0].partitions
        return told.error_code, told.offset

    later = ErrorCode.offset_not_available if version >= 5 else ErrorCode.leader_not_available
    assert listed(-1) == (later, -1)
    assert listed(-2) == (ErrorCode.none, 0)
    assert listed(0) == (ErrorCode.none, 0)
    times = [header.base_timestamp for _, header in cluster.broker.topics.get("a").partition(0).batches_from(0)]
    if times[2] < times[4]:
        assert listed(times[4]) == (later, -1)


@each_version("list_offsets")
def test_a_follower_lists_no_offsets(cluster: ClusterDesk, version: int) -> None:
    cluster.create_placed("a")
    cluster.moved("a", 0, leader=2)
    entry = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
    answer = cluster.ask("list_offsets", version, topics=[{"name": "a", "partitions": [entry]}])
    assert answer.topics[0].partitions[0].error_code is ErrorCode.not_leader_or_follower


@each_version("offset_for_leader_epoch")
def test_a_follower_tells_no_end_of_an_epoch(cluster: ClusterDesk, version: int) -> None:
    cluster.create_placed("a")
    cluster.moved("a", 0, leader=2, epoch=7)

    def ends(current: int) -> ErrorCode:
        entry = {"partition": 0, "current_leader_epoch": current, "leader_epoch": 0}
        answer = cluster.ask("offset_for_leader_epoch", version, topics=[{"topic": "a", "partitions": [entry]}])
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    assert ends(-1) is ErrorCode.not_leader_or_follower
    assert ends(7) is ErrorCode.not_leader_or_follower
    assert ends(6) is ErrorCode.fenced_leader_epoch
    assert ends(8) is ErrorCode.unknown_leader_epoch


@each_version("delete_records")
def test_a_follower_deletes_no_records(cluster: ClusterDesk, version: int) -> None:
    cluster.create_placed("a")
    cluster.write("a", 0, 3)
    cluster.moved("a", 0, leader=2)
    asked = [{"name": "a", "partitions": [{"partition_index": 0, "offset": 2}]}]
    told = cluster.ask("delete_records", version, topics=asked).topics[0].partitions[0]
    assert told.error_code is ErrorCode.not_leader_or_follower
    assert cluster.broker.topics.get("a").partition(0).start_offset == 0


@each_version("describe_producers")
def test_a_follower_tells_no_producers(cluster: ClusterDesk, version: int) -> None:
    cluster.create_placed("a")
    cluster.moved("a", 0, leader=2)
    told = cluster.ask("describe_producers", version, topics=[{"name": "a", "partition_indexes": [0]}]).topics[0]
    assert told.partitions[0].error_code is ErrorCode.not_leader_or_follower
