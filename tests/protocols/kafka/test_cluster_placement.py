"""Where replicas go and who leads, as Kafka's admin clients ask for it: one write to the store, from any node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import each_version
from tests.protocols.kafka.cluster_kit import ADDRESSES, ClusterDesk
from waystation.cluster.decisions.state import NOBODY


def create(desk: ClusterDesk, version: int, name: str, **wanted: Any) -> Any:
    topic = {"name": name, "num_partitions": 1, "replication_factor": -1, **wanted}
    (told,) = desk.ask("create_topics", version, topics=[topic], validate_only=wanted.get("validate", False)).topics
    return told


def assigned(*replicas: list[int]) -> dict[str, Any]:
    assignments = [{"partition_index": index, "broker_ids": nodes} for index, nodes in enumerate(replicas)]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": assignments}


# -- creating ----------------------------------------------------------------------------------------------------------


@each_version("create_topics")
def test_a_topic_gets_as_many_replicas_as_it_is_created_with(cluster: ClusterDesk, version: int) -> None:
    told = create(cluster, version, "two", num_partitions=6, replication_factor=2)
    assert told.error_code is ErrorCode.none
    if version >= 5:
        assert (told.num_partitions, told.replication_factor) == (6, 2)
    states = [cluster.state("two", index) for index in range(6)]
    assert all(len(set(one.replicas)) == 2 and one.leader == one.replicas[0] for one in states)
    assert all(one.in_sync == tuple(sorted(one.replicas)) and one.epoch == 0 for one in states)
    assert set(Counter(one.leader for one in states).values()) == {2}, "each node leads as many"
    told = create(cluster, version, "usual")
    if version >= 5:
        assert told.replication_factor == 3
    assert sorted(cluster.state("usual").replicas) == [1, 2, 3]


@each_version("create_topics")
def test_too_many_replicas_are_refused_with_both_numbers(cluster: ClusterDesk, version: int) -> None:
    told = create(cluster, version, "a", replication_factor=4)
    assert told.error_code is ErrorCode.invalid_replication_factor
    assert "4" in told.error_message
    assert "3" in told.error_message
    assert create(cluster, version, "a", replication_factor=0).error_code is ErrorCode.invalid_replication_factor
    assert "a" not in cluster.broker.topics


@each_version("create_topics")
def test_replicas_go_where_they_are_assigned(cluster: ClusterDesk, version: int) -> None:
    assert create(cluster, version, "a", **assigned([3, 1], [2, 3])).error_code is ErrorCode.none
    assert [cluster.state("a", index).replicas for index in (0, 1)] == [(3, 1), (2, 3)]
    refused = {
        "unknown": assigned([1, 9]),
        "twice": assigned([1, 1]),
        "nobody": assigned([]),
        "uneven": assigned([1, 2], [3]),
    }
    codes = {name: create(cluster, version, name, **wanted).error_code for name, wanted in refused.items()}
    assert codes == dict.fromkeys(refused, ErrorCode.invalid_replica_assignment)
    cluster.dies(2)
    assert create(cluster, version, "dead", **assigned([2])).error_code is ErrorCode.invalid_replica_assignment


@each_version("create_partitions")
def test_more_partitions_get_as_many_replicas_as_the_others(cluster: ClusterDesk, version: int) -> None:
    create(cluster, 7, "a", replication_factor=2)

    def grow(count: int, assignments: Any = None) -> ErrorCode:
        asked = [{"name": "a", "count": count, "assignments": assignments}]
        return ErrorCode(cluster.ask("create_partitions", version, topics=asked).results[0].error_code)

    assert grow(3) is ErrorCode.none
    assert [len(cluster.state("a", index).replicas) for index in range(3)] == [2, 2, 2]
    assert grow(4, [{"broker_ids": [3, 2]}]) is ErrorCode.none
    assert cluster.state("a", 3).replicas == (3, 2)
    assert grow(5, [{"broker_ids": [3, 9]}]) is ErrorCode.invalid_replica_assignment
    assert grow(6, [{"broker_ids": [3, 1]}]) is ErrorCode.invalid_replica_assignment
    assert len(cluster.broker.topics.get("a").partitions) == 4


def test_a_deleted_topic_leaves_no_entries(cluster: ClusterDesk) -> None:
    create(cluster, 7, "a", num_partitions=250)
    before = len(cluster.catalog.read("partitions/").entries)
    cluster.ask("delete_topics", 6, topics=[{"name": "a"}])
    assert len(cluster.catalog.read("partitions/").entries) == before - 250


# -- moving ------------------------------------------------------------------------------------------------------------


def reassign(desk: ClusterDesk, version: int, replicas: list[int] | None, **more: Any) -> Any:
    partitions = [{"partition_index": 0, "replicas": replicas}]
    topics = [{"name": "a", "partitions": partitions}]
    answer = desk.ask("alter_partition_reassignments", version, topics=topics, **more)
    return answer.responses[0].partitions[0]


Nodes = tuple[int, ...]


def under_way(desk: ClusterDesk, topics: Any = None) -> list[tuple[str, int, Nodes, Nodes, Nodes]]:
    answer = desk.ask("list_partition_reassignments", 0, topics=topics)
    assert answer.error_code is ErrorCode.none
    return [
        (topic.name, one.partition_index, one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    ]


@each_version("alter_partition_reassignments")
def test_a_partition_is_moved_listed_and_the_move_cancelled(cluster: ClusterDesk, version: int) -> None:
    topic_id = cluster.create_placed("a", 2)
    cluster.placed(topic_id, 0, replicas=(1, 2), in_sync=(1, 2))
    assert under_way(cluster) == []
    told = reassign(cluster, version, [3, 2], allow_replication_factor_change=True)
    assert (told.error_code, told.error_message) == (ErrorCode.none, None)
    moving = [("a", 0, (3, 2, 1), (3,), (1,))]
    assert under_way(cluster) == moving
    assert under_way(cluster, [{"name": "a", "partition_indexes": [0, 1]}]) == moving
    assert under_way(cluster, [{"name": "a", "partition_indexes": [1]}]) == []
    assert under_way(cluster, [{"name": "other", "partition_indexes": [0]}]) == []
    assert reassign(cluster, version, None).error_code is ErrorCode.none
    assert under_way(cluster) == []
    assert sorted(cluster.state("a").replicas) == [1, 2]
    assert reassign(cluster, version, None).error_code is ErrorCode.no_reassignment_in_progress


@each_version("alter_partition_reassignments")
def test_a_move_to_nodes_that_are_not_there_is_refused(cluster: ClusterDesk, version: int) -> None:
    cluster.create_placed("a")
    for replicas in ([1, 9], [1, 1], []):
        told = reassign(cluster, version, replicas, allow_replication_factor_change=True)
        assert told.error_code is ErrorCode.invalid_replica_assignment
        assert told.error_message
    assert cluster.state("a").replicas == (1, 2, 3)


def test_a_request_that_only_moves_does_not_change_the_number_of_replicas(cluster: ClusterDesk) -> None:
    cluster.create_placed("a")
    told = reassign(cluster, 1, [1, 2], allow_replication_factor_change=False)
    assert told.error_code is ErrorCode.invalid_replication_factor
    assert reassign(cluster, 1, [2, 1, 3], allow_replication_factor_change=False).error_code is ErrorCode.none


# -- electing ----------------------------------------------------------------------------------------------------------


def elect(desk: ClusterDesk, version: int, kind: int, partitions: Any = (0,)) -> dict[int, ErrorCode]:
    asked = None if partitions is None else [{"topic": "a", "partitions": partitions}]
    answer = desk.ask("elect_leaders", version, election_type=kind, topic_partitions=asked)
    return {
        one.partition_id: ErrorCode(one.error_code)
        for topic in answer.replica_election_results
        if topic.topic == "a"
        for one in topic.partition_result
    }


@each_version("elect_leaders")
def test_the_preferred_replica_is_elected(cluster: ClusterDesk, version: int) -> None:
    topic_id = cluster.create_placed("a", 4)
    cluster.placed(topic_id, 0, replicas=(2, 1, 3), leader=1, epoch=4)
    cluster.placed(topic_id, 1, replicas=(2, 1, 3), leader=1, in_sync=(1, 3))
    cluster.placed(topic_id, 2, replicas=(1, 2, 3), leader=1)
    cluster.placed(topic_id, 3, replicas=(3, 1, 2), leader=NOBODY, epoch=1)
    wanted = {0: ErrorCode.none, 1: ErrorCode.preferred_leader_not_available, 3: ErrorCode.none}
    if version % 2:
        told = elect(cluster, version, 0, None)
        assert told == wanted
    else:
        told = elect(cluster, version, 0, (0, 1, 2, 3, 4))
        assert told == wanted | {2: ErrorCode.election_not_needed, 4: ErrorCode.unknown_topic_or_partition}
    assert (cluster.state("a", 0).leader, cluster.state("a", 0).epoch) == (2, 5)
    assert (cluster.state("a", 3).leader, cluster.state("a", 3).epoch) == (3, 2)
    assert cluster.state("a", 1).leader == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_replica_that_may_lack_records_leads_only_if_it_is_asked_for_by_name(
    cluster: ClusterDesk, version: int
) -> None:
    topic_id = cluster.create_placed("a", 3)
    cluster.disk(3)
    cluster.placed(topic_id, 0, leader=NOBODY, replicas=(2, 3), in_sync=(2,), epoch=4)
    cluster.placed(topic_id, 1, leader=1, replicas=(1, 3), in_sync=(1, 3))
    cluster.placed(topic_id, 2, leader=NOBODY, replicas=(2,), in_sync=(2,))
    cluster.dies(2)
    assert elect(cluster, version, 0, (0,)) == {0: ErrorCode.preferred_leader_not_available}
    assert cluster.state("a", 0).leader == NOBODY
    assert elect(cluster, version, 1, (0, 1, 2)) == {
        0: ErrorCode.none,
        1: ErrorCode.election_not_needed,
        2: ErrorCode.eligible_leaders_not_available,
    }
    state = cluster.state("a", 0)
    assert (state.leader, state.in_sync, state.epoch) == (3, (3,), 5)


# -- nodes -------------------------------------------------------------------------------------------------------------


@each_version("unregister_broker")
def test_a_node_without_replicas_that_has_stopped_is_forgotten(cluster: ClusterDesk, version: int) -> None:
    def unregister(number: int) -> tuple[ErrorCode, str | None]:
        answer = cluster.ask("unregister_broker", version, broker_id=number)
        return answer.error_code, answer.error_message

    assert unregister(9)[0] is ErrorCode.broker_id_not_registered
    cluster.disk(3)
    code, message = unregister(3)
    assert (code, "runs" in str(message)) == (ErrorCode.invalid_request, True)
    cluster.dies(3)
    code, message = unregister(3)
    assert (code, "reassign" in str(message)) == (ErrorCode.invalid_request, True)
    for (topic_id, index), known in cluster.known.partitions():
        rest = tuple(one for one in known.state.replicas if one != 3)
        cluster.placed(topic_id, index, replicas=rest, in_sync=rest)
    assert unregister(3) == (ErrorCode.none, None)
    assert 3 not in cluster.known.disks


@each_version("describe_quorum")
def test_all_nodes_are_told_for_a_quorum(cluster: ClusterDesk, version: int) -> None:
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = cluster.ask("describe_quorum", version, topics=asked)
    (told,) = answer.topics[0].partitions
    assert told.leader_id == 1
    assert [one.replica_id for one in told.current_voters] == [1, 2, 3]
    assert [one.log_end_offset for one in told.current_voters] == [told.high_watermark, -1, -1]
    if version >= 2:
        found = [(one.node_id, one.listeners[0].host, one.listeners[0].port) for one in answer.nodes]
        assert found == [(number, where.host, where.port) for number, where in ADDRESSES.items()]


@each_version("describe_configs")
def test_settings_of_another_node_are_asked_for_there(cluster: ClusterDesk, version: int) -> None:
    asked = [{"resource_type": 4, "resource_name": name, "configuration_keys": None} for name in ("1", "2", "9")]
    one, two, nine = cluster.ask("describe_configs", version, resources=asked).results
    assert one.error_code is ErrorCode.none
    assert two.error_code is nine.error_code is ErrorCode.invalid_request
    assert "node2.test:9092" in two.error_message
    assert "no broker" in nine.error_message


@each_version("incremental_alter_configs")
def test_settings_are_changed_for_all_nodes_or_not_at_all(cluster: ClusterDesk, version: int) -> None:
    def change(name: str) -> ErrorCode:
        configs = [{"name": "num.partitions", "config_operation": 0, "value": "7"}]
        asked = [{"resource_type": 4, "resource_name": name, "configs": configs}]
        answer = cluster.ask("incremental_alter_configs", version, resources=asked)
        return ErrorCode(answer.responses[0].error_code)

    assert change("1") is ErrorCode.invalid_request
    assert cluster.broker.settings.integer("num.partitions") != 7
    assert change("") is ErrorCode.none
    assert cluster.broker.settings.integer("num.partitions") == 7
