"""Three brokers and etcd as processes, under kill -9 and SIGSTOP: nothing that confluent-kafka was told of is lost."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.processes import Processes, processes, until

pytestmark = pytest.mark.skipif(shutil.which("etcd") is None, reason="there is no etcd on this machine")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with processes(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def create(cluster: Processes, topic: str, partitions: int = 1) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for done in admin.create_topics([NewTopic(topic, partitions, 3)]).values():
        done.result(30)
    return admin


def leader_of(admin: AdminClient, topic: str, index: int = 0) -> int:
    return until(lambda: max(0, admin.list_topics(topic, timeout=10).topics[topic].partitions[index].leader))


def in_sync(admin: AdminClient, topic: str, index: int = 0) -> list[int]:
    return sorted(admin.list_topics(topic, timeout=10).topics[topic].partitions[index].isrs)


def read(
    cluster: Processes, topic: str, count: int, partitions: int = 1, isolation: str = "read_committed"
) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"reader-{topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    got: list[bytes] = []
    ended: set[int] = set()
    give_up = time.monotonic() + 60
    while (len(got) < count or len(ended) < partitions) and time.monotonic() < give_up:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is None:
            got.append(message.value() or b"")
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition() or 0)
    consumer.close()
    return got


class Acknowledged:
    """What a producer was told."""

    def __init__(self, cluster: Processes) -> None:
        self.values: list[bytes] = []
        self.errors: list[str] = []
        self.producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 60_000,
                "retry.backoff.ms": 50,
                "socket.timeout.ms": 3_000,  # or it waits for a minute for a broker that hangs
                "request.timeout.ms": 3_000,
            }
        )

    def send(self, topic: str, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.producer.produce(topic, str(number).encode(), partition=0, callback=self._told)
            self.producer.poll(0)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.values.append(message.value() or b"")


def test_acknowledged_survives_kill_9_of_the_leader_once_and_in_order(cluster: Processes) -> None:
    admin = create(cluster, "killed")
    leader = leader_of(admin, "killed")
    told = Acknowledged(cluster)
    told.send("killed", 0, 500)
    until(lambda: len(told.values) > 100 or told.producer.poll(0.01) < 0)
    cluster.kill(leader)
    told.send("killed", 500, 500)
    assert told.producer.flush(60) == 0
    assert not told.errors
    got = read(cluster, "killed", 1000)
    assert [int(value) for value in got] == list(range(1000))
    second = leader_of(admin, "killed")
    assert second != leader
    cluster.start(leader)
    until(lambda: in_sync(admin, "killed") == [1, 2, 3])


def test_a_leader_that_hangs_is_replaced_and_goes_on_as_a_follower(cluster: Processes) -> None:
    admin = create(cluster, "hung")
    leader = leader_of(admin, "hung")
    told = Acknowledged(cluster)
    told.send("hung", 0, 200)
    assert told.producer.flush(60) == 0
    cluster.signal(leader, signal.SIGSTOP)
    try:
        told.send("hung", 200, 200)
        assert told.producer.flush(60) == 0
    finally:
        cluster.signal(leader, signal.SIGCONT)
    assert not told.errors
    assert [int(value) for value in read(cluster, "hung", 400)] == list(range(400))
    until(lambda: in_sync(admin, "hung") == [1, 2, 3])


def test_transactions_over_partitions_of_several_nodes_are_seen_whole_or_not_at_all(cluster: Processes) -> None:
    create(cluster, "whole", 6)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "mover"})
    producer.init_transactions(60)
    committed: list[bytes] = []
    for number in range(20):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, index) for index in range(6)]
        for index, value in enumerate(values):
            producer.produce("whole", value, partition=index)
        if number % 4 == 3:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            committed += values
    assert sorted(read(cluster, "whole", len(committed), 6)) == sorted(committed)


def test_a_group_goes_on_when_its_coordinator_is_killed(cluster: Processes) -> None:
    admin = create(cluster, "grouped", 3)
    told = Acknowledged(cluster)
    for number in range(300):
        told.producer.produce("grouped", str(number).encode(), partition=number % 3, callback=told._told)
    assert told.producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "workers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
        }
    )
    consumer.subscribe(["grouped"])
    got: set[bytes] = set()

    def take(count: int) -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            got.add(message.value() or b"")
        return len(got) >= count

    until(lambda: take(100))
    consumer.commit(asynchronous=False)
    before = {
        one.partition: one.offset for one in consumer.committed([TopicPartition("grouped", i) for i in range(3)], 30)
    }
    victim = leader_of(admin, "__consumer_offsets")
    cluster.kill(victim)
    until(lambda: take(300))

    def commit() -> bool:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException:
            return False
        return True

    until(commit)
    after = {
        one.partition: one.offset for one in consumer.committed([TopicPartition("grouped", i) for i in range(3)], 30)
    }
    assert sum(after.values()) == 300
    assert all(after[index] >= before[index] for index in before)
    consumer.close()
    cluster.start(victim)
    until(lambda: in_sync(admin, "grouped") == [1, 2, 3])
