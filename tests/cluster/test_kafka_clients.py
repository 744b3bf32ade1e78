"""Kafka's clients and a real cluster of three processes: metadata, replicas, and failover under `kill -9`.

The work is that of `tests/clients/crash_load.py`, which keeps account of everything that was acknowledged: nothing of
it may be lost, doubled or out of order, whoever leads.
"""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as KafkaPythonTopic
from kafka.structs import TopicPartition as KafkaPythonPartition

from tests.clients import kit
from tests.clients.crash_load import PARTITIONS, Reading, Transacting, Writing, held_by, wait_for_progress
from tests.support.cluster import ClusterOfThree
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for

COMMITTED = {"isolation.level": "read_committed"}

pytestmark = pytest.mark.timeout(300)


# -- what clients are told -------------------------------------------------------------------------------------------


def test_confluent_sees_three_brokers_and_creates_topics_with_replicas(cluster: ClusterOfThree) -> None:
    told = cluster.admin.list_topics(timeout=DEADLINE_S)
    assert {(one.id, f"{one.host}:{one.port}") for one in told.brokers.values()} == {
        (number, cluster.address(number)) for number in (1, 2, 3)
    }
    topic = cluster.create(unique("three"), 6)
    found = cluster.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions.values()
    assert all(sorted(one.replicas) == sorted(one.isrs) == [1, 2, 3] for one in found)
    assert sorted(one.leader for one in found) == [1, 1, 2, 2, 3, 3]
    asked = cluster.admin.create_topics([NewTopic("four", 1, 4)])
    with pytest.raises(KafkaException, match=r"replication factor 4 .* 3") as refused:
        asked["four"].result(DEADLINE_S)
    assert refused.value.args[0].name() == "INVALID_REPLICATION_FACTOR"


def test_kafka_python_sees_three_brokers_writes_and_reads(cluster: ClusterOfThree) -> None:
    topic = unique("python")
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    admin.create_topics([KafkaPythonTopic(topic, 3, 3)])
    assert {one["broker_id"] for one in admin.describe_cluster()["brokers"]} == {1, 2, 3}
    admin.close()
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    sent = [producer.send(topic, b"%d" % n, partition=n % 3) for n in range(300)]
    assert {future.get(DEADLINE_S).partition for future in sent} == {0, 1, 2}
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", group_id=unique("g"))
    consumer.subscribe([topic])
    seen: list[bytes] = []

    def all_there() -> bool:
        # Not shorter: a client that joins a group while a poll ends stays without its partitions (clients/FINDINGS.md).
        for records in consumer.poll(10_000).values():
            seen.extend(record.value for record in records)
        return len(seen) >= 300

    wait_for(all_there, "everything is read")
    assert sorted(seen) == sorted(b"%d" % n for n in range(300))
    consumer.commit()
    assert sum(consumer.committed(KafkaPythonPartition(topic, n)) or 0 for n in range(3)) == 300
    consumer.close()


def test_aiokafka_writes_and_reads_in_transactions(cluster: ClusterOfThree) -> None:
    topic = cluster.create(unique("aio"))

    async def story() -> list[bytes]:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        assert {one["node_id"] for one in (await admin.describe_cluster())["brokers"]} == {1, 2, 3}
        await admin.close()
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=unique("aio-tx"))
        async with producer:
            for number in range(6):
                await producer.begin_transaction()
                for partition in range(PARTITIONS):
                    await producer.send(topic, b"%d" % number, partition=partition)
                await (producer.abort_transaction() if number % 3 == 2 else producer.commit_transaction())
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap,
            auto_offset_reset="earliest",
            group_id=unique("g"),
            isolation_level="read_committed",
        )
        async with consumer:
            return [(await asyncio.wait_for(consumer.getone(), DEADLINE_S)).value or b"" for _ in range(4 * PARTITIONS)]

    assert sorted(asyncio.run(story())) == sorted([b"0", b"1", b"3", b"4"] * PARTITIONS)


# -- failover --------------------------------------------------------------------------------------------------------


def test_an_idempotent_producer_and_its_group_survive_the_kill_of_each_leader(cluster: ClusterOfThree) -> None:
    data, group = cluster.create(unique("data")), unique("g")
    writing, reading = Writing(cluster.bootstrap, data), Reading(cluster.bootstrap, data, group)
    goals = {writing: 500, reading: 200}
    for load in goals:
        load.start()
    for partition in range(PARTITIONS):
        wait_for_progress(goals)
        promised = dict(reading.committed)
        killed = cluster.leader(data, partition)
        cluster.kill(killed)
        wait_for_progress(goals)
        reading.check_commits(cluster.bootstrap, group, promised)
        cluster.start_node(killed)
        cluster.wait_in_sync(data)
    writing.stop()
    wait_for(lambda: sum(map(len, reading.seen.values())) >= writing.sent, "the group has read everything")
    reading.stop()
    writing.check(kit.read_all(cluster.bootstrap, data))
    reading.check_seen()


def test_transactions_are_whole_whoever_is_killed(cluster: ClusterOfThree) -> None:
    paired, group = cluster.create(unique("paired"), 2), unique("g")
    transacting = Transacting(cluster.bootstrap, paired, group)
    transacting.start()
    victims = [("__transaction_state", 0), (paired, 0), ("__consumer_offsets", 0), (paired, 1)]
    for topic, partition in victims:
        wait_for_progress({transacting: 3})
        killed = cluster.leader(topic, partition)
        cluster.kill(killed)
        wait_for_progress({transacting: 3})
        cluster.start_node(killed)
        cluster.wait_in_sync(paired)
    transacting.stop()
    last = held_by(cluster.bootstrap, group, paired, [0])[0]
    transacting.check(kit.read_all(cluster.bootstrap, paired, COMMITTED), last)


def test_aiokafka_goes_on_when_a_leader_is_killed(cluster: ClusterOfThree) -> None:
    topic = cluster.create(unique("aio"))

    async def story() -> tuple[list[tuple[int, int, bytes]], list[tuple[int, int, bytes]]]:
        acknowledged: list[tuple[int, int, bytes]] = []
        killed = 0
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, enable_idempotence=True, acks="all")
        async with producer:
            for number in range(600):
                if number == 200:
                    killed = await asyncio.to_thread(cluster.leader, topic, 0)
                    await asyncio.to_thread(cluster.kill, killed)
                told = await producer.send_and_wait(topic, b"%d" % number, partition=number % PARTITIONS)
                acknowledged.append((told.partition, told.offset, b"%d" % number))
        await asyncio.to_thread(cluster.start_node, killed)
        seen: list[tuple[int, int, bytes]] = []
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
        async with consumer:
            while len(seen) < len(acknowledged):
                one = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
                seen.append((one.partition, one.offset, one.value or b""))
        return acknowledged, seen

    acknowledged, seen = asyncio.run(story())
    assert sorted(seen) == sorted(acknowledged)
    cluster.wait_in_sync(topic)


def test_kafka_python_goes_on_when_a_leader_is_killed(cluster: ClusterOfThree) -> None:
    topic = cluster.create(unique("python"))
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap, acks="all", enable_idempotence=True, delivery_timeout_ms=60_000
    )
    sent = []
    killed = 0
    for number in range(600):
        if number == 200:
            killed = cluster.leader(topic, 0)
            cluster.kill(killed)
        sent.append((number, producer.send(topic, b"%d" % number, partition=number % PARTITIONS)))
    acknowledged = {}
    for number, future in sent:
        told = future.get(60)
        acknowledged[told.partition, told.offset] = b"%d" % number
    producer.close()
    cluster.start_node(killed)
    found = kit.read_all(cluster.bootstrap, topic)
    assert {(one.partition(), one.offset()): one.value() for one in found} == acknowledged
    cluster.wait_in_sync(topic)
