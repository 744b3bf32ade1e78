"""Kafka's admin clients on a real cluster: replicas move, leaders are elected, each node tells its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaPythonPartition

from tests.clients import kit
from tests.protocols.kafka.pipeline import Pipeline
from tests.support.cluster import ClusterOfThree
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def admin(cluster: ClusterOfThree) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    yield client
    client.close()


def replicas(cluster: ClusterOfThree, topic: str) -> tuple[list[int], list[int], int]:
    told = cluster.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions[0]
    return list(told.replicas), sorted(told.isrs), told.leader


def test_a_partition_moves_with_all_its_records(cluster: ClusterOfThree, admin: KafkaAdminClient) -> None:
    topic = cluster.create(unique("moved"), 1, 2)
    values = [b"%d" % number for number in range(500)]
    kit.produce(cluster.bootstrap, topic, values)
    before, _, _ = replicas(cluster, topic)
    (empty,) = {1, 2, 3} - set(before)
    target = [empty, before[0]]
    place = KafkaPythonPartition(topic, 0)
    assert admin.alter_partition_reassignments({place: target}) == {place: None}
    wait_for(lambda: not admin.list_partition_reassignments([place]), "the move is done", within_s=60)
    wait_for(lambda: replicas(cluster, topic)[:2] == (target, sorted(target)), "both have it")
    wait_for(lambda: replicas(cluster, topic)[2] == empty, "the preferred replica leads", within_s=60)
    assert [one.value() for one in kit.read_all(cluster.bootstrap, topic)] == values
    kit.produce(cluster.bootstrap, topic, [b"more"])
    refused = admin.alter_partition_reassignments({place: [1, 9]})[place]
    assert refused is not None


def test_the_preferred_leader_is_elected(cluster: ClusterOfThree) -> None:
    topic = cluster.create(unique("elected"), 1)
    place = TopicPartition(topic, 0)
    (preferred, *_), _, leader = replicas(cluster, topic)
    assert leader == preferred
    cluster.kill(preferred)
    wait_for(lambda: replicas(cluster, topic)[2] not in (preferred, -1), "another one leads", within_s=60)
    cluster.start_node(preferred)
    cluster.wait_in_sync(topic)
    told = cluster.admin.elect_leaders(ElectionType.PREFERRED, [place]).result(DEADLINE_S)
    # It may have come back by itself before it was asked for.
    assert told[place] is None or told[place].name() == "ELECTION_NOT_NEEDED"
    wait_for(lambda: replicas(cluster, topic)[2] == preferred, "the preferred replica leads")


def test_each_node_tells_its_own_disk_and_settings(cluster: ClusterOfThree, admin: KafkaAdminClient) -> None:
    topic = cluster.create(unique("two"), 1, 2)
    has, _, _ = replicas(cluster, topic)

    def on_disk() -> list[int]:
        found = []
        for number in (1, 2, 3):
            (told,) = admin.describe_log_dirs(topic_partitions=[topic], brokers=[number])
            found += [number for folder in told["log_dirs"] for one in folder["topics"] if one["partitions"]]
        return found

    wait_for(lambda: on_disk() == sorted(has), "those that have it say so")  # a follower may be about to
    with Pipeline(cluster.address(2)) as line:
        asked = [{"resource_type": 4, "resource_name": name, "configuration_keys": None} for name in ("2", "3")]
        line.add("describe_configs", 4, resources=asked)
        line.write()
        own, other = line.answer().results
    assert own.error_code == 0
    assert cluster.address(3) in other.error_message


def test_a_node_that_runs_is_not_unregistered(cluster: ClusterOfThree) -> None:
    with Pipeline(cluster.address(1)) as line:
        line.add("unregister_broker", 0, broker_id=2)
        line.add("unregister_broker", 0, broker_id=77)
        line.write()
        runs, unknown = line.answer(), line.answer()
    assert "runs" in runs.error_message
    assert unknown.error_code.name == "broker_id_not_registered"
