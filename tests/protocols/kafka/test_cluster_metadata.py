"""What clients are told of a cluster: all nodes, who has and leads a partition, who coordinates a group."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import LISTENER, each_version
from tests.protocols.kafka.cluster_kit import ADDRESSES, ClusterDesk
from waystation.cluster.decisions.state import NOBODY, Address

ALL = [(1, "node1.test", 9_091, "a"), (2, "node2.test", 9_092, "b"), (3, "node3.test", 9_093, None)]


def told(answer: Any) -> Any:
    (topic,) = answer.topics
    (partition,) = topic.partitions
    return partition


@each_version("metadata")
def test_metadata_tells_all_living_nodes_with_their_racks(cluster: ClusterDesk, version: int) -> None:
    answer = cluster.ask("metadata", version, topics=())
    found = [(one.node_id, one.host, one.port, getattr(one, "rack", "none")) for one in answer.brokers]
    assert found == (ALL if version >= 1 else [(*one[:3], "none") for one in ALL])
    cluster.dies(1)
    answer = cluster.ask("metadata", version, topics=())
    assert [one.node_id for one in answer.brokers] == [2, 3]
    if version >= 1:
        assert answer.controller_id == 2, "all nodes name the same one: the lowest id that lives"


@each_version("metadata")
def test_metadata_tells_who_has_and_who_leads_a_partition(cluster: ClusterDesk, version: int) -> None:
    topic_id = cluster.create_placed("a")
    cluster.placed(topic_id, 0, leader=2, epoch=5, replicas=(2, 3, 1), in_sync=(1, 2))
    cluster.dies(3)
    one = told(cluster.ask("metadata", version, topics=[{"name": "a"}]))
    assert (one.error_code, one.leader_id, one.replica_nodes, one.isr_nodes) == (
        ErrorCode.none, 2, (2, 3, 1), (1, 2),
    )  # fmt: skip
    if version >= 5:
        assert one.offline_replicas == (3,)
    if version >= 7:
        assert one.leader_epoch == 5


@each_version("metadata")
@pytest.mark.parametrize("leader", [NOBODY, 2])
def test_a_partition_without_a_living_leader_is_told_as_one(cluster: ClusterDesk, leader: int, version: int) -> None:
    topic_id = cluster.create_placed("a")
    cluster.placed(topic_id, 0, leader=leader, epoch=5)
    cluster.dies(2)
    one = told(cluster.ask("metadata", version, topics=[{"name": "a"}]))
    assert (one.error_code, one.leader_id) == (ErrorCode.leader_not_available, -1)
    assert one.replica_nodes == (1, 2, 3)


@each_version("metadata")
def test_a_leader_without_a_listener_for_kafka_is_told_as_one(cluster: ClusterDesk, version: int) -> None:
    topic_id = cluster.create_placed("a")
    cluster.placed(topic_id, 0, leader=2)
    cluster.node(2, {"http": Address("node2.test", 8_080)})
    answer = cluster.ask("metadata", version, topics=[{"name": "a"}])
    assert [one.node_id for one in answer.brokers] == [1, 3]
    wanted = ErrorCode.listener_not_found if version >= 6 else ErrorCode.leader_not_available
    assert (told(answer).error_code, told(answer).leader_id) == (wanted, -1)


def test_a_node_that_has_no_address_in_the_store_is_what_its_client_has_reached(cluster: ClusterDesk) -> None:
    cluster.node(1, {})
    first, *_ = cluster.ask("metadata", 13, topics=()).brokers
    assert (first.node_id, first.host, first.port) == (1, LISTENER.host, LISTENER.port)


def test_a_partition_whose_entry_was_not_told_yet_has_no_leader(cluster: ClusterDesk) -> None:
    cluster.create("a")
    cluster.forget("a")
    one = told(cluster.ask("metadata", 13, topics=[{"name": "a"}]))
    assert (one.error_code, one.leader_id, one.leader_epoch) == (ErrorCode.leader_not_available, -1, -1)


@each_version("describe_topic_partitions")
def test_described_partitions_say_the_same(cluster: ClusterDesk, version: int) -> None:
    topic_id = cluster.create_placed("a", 2)
    cluster.placed(topic_id, 0, leader=2, epoch=5, in_sync=(1, 2), adding=(3,))
    cluster.placed(topic_id, 1, leader=NOBODY, epoch=6)
    cluster.dies(3)
    answer = cluster.ask("describe_topic_partitions", version, topics=[{"name": "a"}], response_partition_limit=9)
    first, second = answer.topics[0].partitions
    assert (first.error_code, first.leader_id, first.leader_epoch) == (ErrorCode.none, 2, 5)
    assert (first.replica_nodes, first.isr_nodes, first.offline_replicas) == ((1, 2, 3), (1, 2), (3,))
    assert (second.error_code, second.leader_id) == (ErrorCode.leader_not_available, -1)


@each_version("describe_cluster")
def test_the_cluster_is_described_with_all_nodes(cluster: ClusterDesk, version: int) -> None:
    answer = cluster.ask("describe_cluster", version, endpoint_type=1)
    assert [(one.broker_id, one.host, one.port, one.rack) for one in answer.brokers] == ALL
    assert (answer.controller_id, answer.cluster_id) == (1, cluster.broker.cluster_id)


def coordinators(desk: ClusterDesk, version: int, kind: int, *keys: str) -> list[tuple[ErrorCode, int, str, int]]:
    if version >= 4:
        found = desk.ask("find_coordinator", version, key_type=kind, coordinator_keys=keys).coordinators
        assert [one.key for one in found] == list(keys)
    else:
        found = [desk.ask("find_coordinator", version, key_type=kind, key=key) for key in keys]
    return [(one.error_code, one.node_id, one.host, one.port) for one in found]


@pytest.mark.parametrize(
    ("kind", "topic"), [(0, "__consumer_offsets"), (1, "__transaction_state"), (2, "__share_group_state")]
)
@each_version("find_coordinator")
def test_whoever_leads_the_partition_of_a_key_coordinates_it(
    cluster: ClusterDesk, version: int, kind: int, topic: str
) -> None:
    if kind and version == 0:
        return  # it knows groups only
    keys = ["g1", "g2", "g3", "g4", "g5", "g6"]
    own = cluster.broker.topics.get(topic)
    for partition in own.partitions:
        cluster.placed(own.id, partition.index, leader=3 if partition.index == 0 else 2)
    homes = {
        0: cluster.broker.groups.partition_for,
        1: cluster.broker.transactions.partition_of,
        2: cluster.broker.shared.journal.index_of,
    }[kind]
    wanted = [ADDRESSES[3 if homes(key) == 0 else 2] for key in keys]
    asked = [f"{key}:topic:0" for key in keys] if kind == 2 else keys
    found = coordinators(cluster, version, kind, *asked)
    assert [(host, port) for _, _, host, port in found] == [(one.host, one.port) for one in wanted]
    assert len(own.partitions) == 1 or len({one[1] for one in found}) == 2, "the keys prove nothing"


@each_version("find_coordinator")
def test_a_group_whose_partition_nobody_leads_has_no_coordinator(cluster: ClusterDesk, version: int) -> None:
    own = cluster.broker.topics.get("__consumer_offsets")
    for partition in own.partitions:
        cluster.placed(own.id, partition.index, leader=NOBODY)
    assert coordinators(cluster, version, 0, "g") == [(ErrorCode.coordinator_not_available, -1, "", -1)]
