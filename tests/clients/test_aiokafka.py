"""aiokafka: produce, consume, groups, transactions and admin, by the old request versions that it speaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, ProducerFenced

from tests.clients import kit
from tests.clients.stage import NewTopicCall
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; nothing in it may take longer than two deadlines."""
    asyncio.run(asyncio.wait_for(story, 2 * DEADLINE_S))


@asynccontextmanager
async def producer(bootstrap: str, **config: Any) -> AsyncIterator[Any]:
    """A started producer that is stopped at the end."""
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@asynccontextmanager
async def consumer(bootstrap: str, *topics: str, **config: Any) -> AsyncIterator[Any]:
    """A started consumer that is stopped at the end."""
    base = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 100}
    timing = {"session_timeout_ms": kit.SESSION_MS, "heartbeat_interval_ms": kit.HEARTBEAT_MS}
    client = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, **{**base, **timing, **config})
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@asynccontextmanager
async def admin_client(bootstrap: str) -> AsyncIterator[Any]:
    """A started admin client that is closed at the end."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def take(client: Any, count: int) -> list[Any]:
    """The next `count` records."""
    got: list[Any] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(got) < count:
            for records in (await client.getmany(timeout_ms=100)).values():
                got += records
    return got


async def until(condition: Any, what: str) -> None:
    """Wait for a condition that other tasks make true."""
    await asyncio.to_thread(wait_for, condition, what)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"], ids=str)
@pytest.mark.parametrize("acks", [0, 1, "all"], ids=str)
def test_every_codec_and_acks_setting_keeps_messages_and_order(
    bootstrap: str, new_topic: NewTopicCall, codec: str | None, acks: Any
) -> None:
    topic = new_topic()

    async def story() -> None:
        async with producer(bootstrap, compression_type=codec, acks=acks) as writer:
            for value in kit.numbered(100):
                await writer.send(topic, value * 10, key=b"k", headers=[("h", b"1")], timestamp_ms=1_600_000_000_000)
            await writer.flush()
        async with consumer(bootstrap, topic) as reader:
            got = await take(reader, 100)
            assert [record.value for record in got] == [value * 10 for value in kit.numbered(100)]
            assert {(record.key, record.headers, record.timestamp) for record in got} == {
                (b"k", (("h", b"1"),), 1_600_000_000_000)
            }

    run(story())


def test_too_large_message_is_refused_by_name(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic(config={"max.message.bytes": 2000})

    async def story() -> None:
        async with producer(bootstrap, max_request_size=1_000_000) as writer:
            with pytest.raises(MessageSizeTooLargeError):
                await writer.send_and_wait(topic, b"x" * 5000)

    run(story())


def test_seek_times_and_commits(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic, group = new_topic(), unique("g")
    place = TopicPartition(topic, 0)
    base = int(time.time() * 1000) - 60_000

    async def story() -> None:
        async with producer(bootstrap) as writer:
            for n in range(20):
                await writer.send(topic, b"%d" % n, timestamp_ms=base + n * 1000)
        async with consumer(bootstrap, topic, group_id=group) as reader:
            await take(reader, 20)
            assert (await reader.beginning_offsets([place]), await reader.end_offsets([place])) == (
                {place: 0},
                {place: 20},
            )
            found = (await reader.offsets_for_times({place: base + 6500}))[place]
            assert (found.offset, found.timestamp) == (7, base + 7000)
            reader.seek(place, 12)
            assert [record.offset for record in await take(reader, 8)] == list(range(12, 20))
            await reader.commit({place: 15})
            assert await reader.committed(place) == 15
        async with consumer(bootstrap, topic, group_id=group) as reader:
            assert (await take(reader, 5))[0].offset == 15

    run(story())


def test_out_of_range_position_is_reset(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, kit.numbered(3))

    async def story() -> None:
        async with consumer(bootstrap) as reader:
            reader.assign([TopicPartition(topic, 0)])
            reader.seek(TopicPartition(topic, 0), 5000)
            assert [record.offset for record in await take(reader, 3)] == [0, 1, 2]

    run(story())


def test_members_share_and_take_over(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic, group = new_topic(partitions=4), unique("g")

    class Journal(ConsumerRebalanceListener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.steps: list[tuple[str, set[int]]] = []

        def on_partitions_revoked(self, revoked: Any) -> None:
            self.steps.append(("gave", {place.partition for place in revoked}))

        def on_partitions_assigned(self, assigned: Any) -> None:
            self.steps.append(("took", {place.partition for place in assigned}))

    async def story() -> None:
        async with consumer(bootstrap, group_id=group) as first:
            journal = Journal()
            first.subscribe([topic], listener=journal)
            await until(lambda: len(first.assignment()) == 4, "one owns all")
            async with consumer(bootstrap, topic, group_id=group) as second:
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2, "two share")
                kit.produce(bootstrap, topic, kit.numbered(5), partition=min(first.assignment()).partition)
                assert [record.value for record in await take(first, 5)] == kit.numbered(5)
            await until(lambda: len(first.assignment()) == 4, "the first takes over")
            assert journal.steps[-1] == ("took", {0, 1, 2, 3})

    run(story())


def test_pattern_subscription_finds_topics(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic(partitions=2)

    async def story() -> None:
        async with consumer(bootstrap, group_id=unique("g"), metadata_max_age_ms=500) as reader:
            reader.subscribe(pattern=f"^{topic}$")
            await until(lambda: len(reader.assignment()) == 2, "the topic is found")

    run(story())


def test_missing_topic_is_created_by_producing(bootstrap: str) -> None:
    topic = unique("made-by-aiokafka")

    async def story() -> None:
        async with producer(bootstrap) as writer:
            report = await writer.send_and_wait(topic, b"first")
            assert (report.partition, report.offset) == (0, 0)

    run(story())


def test_idempotent_producer_writes_each_message_once(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()

    async def story() -> None:
        async with producer(bootstrap, enable_idempotence=True, max_batch_size=200) as writer:
            reports = [await writer.send(topic, value) for value in kit.numbered(300)]
            assert [(await report).offset for report in reports] == list(range(300))

    run(story())
    assert kit.values(kit.read_all(bootstrap, topic)) == kit.numbered(300)


def test_transactions_commit_abort_and_move_offsets(bootstrap: str, new_topic: NewTopicCall) -> None:
    source, sink, group = new_topic(), new_topic(), unique("g")
    place = TopicPartition(source, 0)
    kit.produce(bootstrap, source, kit.numbered(10))

    async def story() -> None:
        async with producer(bootstrap, transactional_id=unique("tx")) as writer:
            for offset, commit in ((3, True), (10, False), (6, True)):
                await writer.begin_transaction()
                await writer.send(sink, b"%d" % offset)
                await writer.send_offsets_to_transaction({place: offset}, group)
                await (writer.commit_transaction if commit else writer.abort_transaction)()
        async with consumer(bootstrap, sink, isolation_level="read_committed") as reader:
            assert [record.value for record in await take(reader, 2)] == [b"3", b"6"]
        async with consumer(bootstrap, source, group_id=group) as reader:
            assert (await take(reader, 4))[0].offset == 6

    run(story())


def test_zombie_is_fenced(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic, name = new_topic(), unique("tx")

    async def story() -> None:
        async with producer(bootstrap, transactional_id=name) as zombie:
            await zombie.begin_transaction()
            await zombie.send_and_wait(topic, b"left behind")
            async with producer(bootstrap, transactional_id=name) as heir:
                with pytest.raises(KafkaError) as refused:
                    await zombie.commit_transaction()
                assert isinstance(refused.value, ProducerFenced)
                async with heir.transaction():
                    await heir.send(topic, b"heir")

    run(story())
    assert kit.values(kit.read_all(bootstrap, topic, {"isolation.level": "read_committed"})) == [b"heir"]


def test_admin_creates_describes_changes_and_deletes(bootstrap: str) -> None:
    topic, group = unique("aio"), unique("g")

    async def story() -> None:
        async with admin_client(bootstrap) as admin:
            made = await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "5000000"})])
            assert [error[1] for error in made.topic_errors] == [0]
            again = await admin.create_topics([NewTopic(topic, 2, 1)])
            assert [error[1] for error in again.topic_errors] == [36]
            (told,) = await admin.describe_topics([topic])
            assert len(told["partitions"]) == 2
            assert topic in await admin.list_topics()
            assert (await admin.describe_cluster())["cluster_id"]
            await admin.create_partitions({topic: NewPartitions(3)})
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "6000000"})
            await admin.alter_configs([resource])
            (settings,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            assert {entry[0]: entry[1] for entry in settings.resources[0][4]}["retention.ms"] == "6000000"
            kit.produce(bootstrap, topic, kit.numbered(10), partition=0)
            place = TopicPartition(topic, 0)
            assert await admin.delete_records({place: RecordsToDelete(4)}) == {place: 4}
            await watch_group(admin, topic, group)
            gone = await admin.delete_topics([topic])
            assert [error[1] for error in gone.topic_error_codes] == [0]

    async def watch_group(admin: Any, topic: str, group: str) -> None:
        async with consumer(bootstrap, topic, group_id=group) as reader:
            await take(reader, 6)
            await reader.commit()
            assert group in {row[0] for row in await admin.list_consumer_groups()}
            (described,) = await admin.describe_consumer_groups([group])
            assert (described.groups[0][1], described.groups[0][2]) == (group, "Stable")
            held = await admin.list_consumer_group_offsets(group)
            assert held[TopicPartition(topic, 0)].offset == 10

    run(story())
