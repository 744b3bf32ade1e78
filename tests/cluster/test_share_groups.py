"""Share groups on a real cluster: `confluent_kafka.ShareConsumer`, and nodes that are killed.

The coordinator of a group and the leaders of its topic's partitions are different nodes here. Whoever of them dies:
what was acknowledged, and confirmed, is not delivered again, and all the rest is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException, Message, Producer, ShareConsumer

from tests.clients.share_kit import ACCEPT, RELEASE, from_the_beginning, poll, share_consumer, take
from tests.support.cluster import ClusterOfThree
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, NotInTime, wait_for
from waystation.groups.records import partition_for
from waystation.topics.topics import OFFSETS_TOPIC, SHARE_TOPIC

pytestmark = pytest.mark.timeout(300)

PARTITIONS = 3
OTHERS = {1: "1,2,3", 2: "2,3,1", 3: "3,1,2"}


@pytest.fixture(scope="module", autouse=True)
def spread(cluster: ClusterOfThree) -> None:
    """The first node begins with all of these; here each leads one, and clients are sent to another than has a group's
    state."""
    for index in range(PARTITIONS):
        lead(cluster, SHARE_TOPIC, index, index + 1)
        lead(cluster, OFFSETS_TOPIC, index, (index + 1) % 3 + 1)


def lead(cluster: ClusterOfThree, topic: str, index: int, node: int) -> None:
    wanted = ("--partition", str(index), "--replicas", OTHERS[node], "--wait", "--timeout", "60")
    cluster.run("cluster", "reassign", topic, *wanted)
    wait_for(lambda: cluster.leader(topic, index) == node, f"node {node} leads {topic}-{index}", within_s=60)


def publish(cluster: ClusterOfThree, topic: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for number in values:
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(DEADLINE_S) == 0


def group_led_by(node: int) -> str:
    """A group whose coordinator is this node; clients are sent to the next one."""
    while partition_for(name := unique("share"), 3) != node - 1:
        pass
    return name


class Audit:
    """Everything that a consumer acknowledged and was confirmed."""

    def __init__(self) -> None:
        self.confirmed: set[tuple[int | None, int | None]] = set()
        self.again: list[tuple[int | None, int | None]] = []
        self.seen: set[bytes | None] = set()

    def settle(self, client: ShareConsumer, messages: list[Message]) -> None:
        for message in messages:
            key = (message.partition(), message.offset())
            if key in self.confirmed:
                self.again.append(key)
            client.acknowledge(message, ACCEPT)
        try:
            outcome = client.commit_sync(DEADLINE_S)
        except KafkaException:
            return  # nothing is said of these
        refused = {(one.topic, one.partition) for one, failure in outcome.items() if failure is not None}
        for message in messages:
            if (message.topic(), message.partition()) not in refused:
                self.confirmed.add((message.partition(), message.offset()))
                self.seen.add(message.value())


def work(client: ShareConsumer, audit: Audit, done: Callable[[], bool], within_s: float = 90.0) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        if time.monotonic() > deadline:
            raise NotInTime(f"only {len(audit.seen)} records were settled")
        try:
            messages = poll(client, 0.5)
        except KafkaException as error:
            if error.args[0].fatal():
                raise
            continue
        if messages:
            audit.settle(client, messages)


@pytest.mark.parametrize("replicas", [3, 1])
def test_a_share_group_works_wherever_its_coordinator_is(cluster: ClusterOfThree, replicas: int) -> None:
    """With one replica the coordinator has nothing of most partitions."""
    topic = cluster.create(unique("work"), PARTITIONS, replicas)
    assert len({cluster.leader(topic, number) for number in range(PARTITIONS)}) == PARTITIONS
    publish(cluster, topic, range(300))
    for node in (1, 2, 3):
        group = group_led_by(node)
        from_the_beginning(cluster.admin, group)
        client = share_consumer(cluster.bootstrap, group, [topic])
        got = take(client, 300)
        assert sorted(int(message.value() or b"") for message in got) == list(range(300))
        client.close()


def test_what_is_released_is_delivered_again_by_the_leader_of_its_partition(cluster: ClusterOfThree) -> None:
    topic = cluster.create(unique("work"), PARTITIONS)
    group = group_led_by(2)
    from_the_beginning(cluster.admin, group)
    publish(cluster, topic, range(30))
    client = share_consumer(cluster.bootstrap, group, [topic])
    deliveries: dict[bytes | None, list[int | None]] = {}

    def released_and_delivered_again() -> bool:
        for message in poll(client, 0.5):
            counts = deliveries.setdefault(message.value(), [])
            counts.append(message.delivery_count())
            client.acknowledge(message, RELEASE if len(counts) == 1 else ACCEPT)
        return sum(map(len, deliveries.values())) >= 60

    wait_for(released_and_delivered_again, "all 30 are delivered twice", within_s=60)
    assert len(deliveries) == 30
    assert set(map(tuple, deliveries.values())) == {(1, 2)}
    client.close()


@pytest.mark.parametrize("killed", ["coordinator", "leader"])
def test_a_share_group_survives_the_kill_of_its(cluster: ClusterOfThree, killed: str) -> None:
    topic = cluster.create(unique("work"), PARTITIONS)
    group = group_led_by(1)
    from_the_beginning(cluster.admin, group, share_record_lock_duration_ms="3000")
    victim = 1 if killed == "coordinator" else 2
    assert victim in {cluster.leader(topic, number) for number in range(PARTITIONS)}
    publish(cluster, topic, range(600))
    client, audit = share_consumer(cluster.bootstrap, group, [topic], max_poll_records=50), Audit()
    try:
        work(client, audit, lambda: len(audit.seen) >= 100)
        cluster.kill(victim)
        work(client, audit, lambda: len(audit.seen) == 600)
        publish(cluster, topic, range(600, 900))
        work(client, audit, lambda: len(audit.seen) == 900)
    finally:
        client.close()
        cluster.start_node(victim)
    assert audit.again == []
