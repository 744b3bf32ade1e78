"""The asyncio classes of confluent-kafka: the same promises from a coroutine."""

from __future__ import annotations

import asyncio
from typing import Any

from confluent_kafka import Message
from confluent_kafka import TopicPartition as TP
from confluent_kafka.aio import AIOConsumer, AIOProducer

from tests.clients import kit
from tests.clients.stage import NewTopicCall
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S


def settings(bootstrap: str, group: str, **more: Any) -> dict[str, Any]:
    """A consumer's settings; the classes keep the dict they are given."""
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        **more,
    }


async def gather_messages(client: AIOConsumer, count: int) -> list[Message]:
    """The next `count` messages, or a timeout."""
    got: list[Message] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(got) < count:
            got += [message for message in await client.consume(100, 0.2) if message.error() is None]
    return got


def test_asyncio_producer_and_consumer_pass_everything_in_order(
    bootstrap: str, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic()

    async def story() -> None:
        writer = AIOProducer({"bootstrap.servers": bootstrap, "acks": "all"}, batch_size=50, buffer_timeout=0.1)
        reports = [await writer.produce(topic, value) for value in kit.numbered(300)]
        await writer.flush()
        delivered = await asyncio.wait_for(asyncio.gather(*reports), DEADLINE_S)
        assert [message.offset() for message in delivered] == list(range(300))
        await writer.close()
        reader = AIOConsumer(settings(bootstrap, group))
        await reader.subscribe([topic])
        assert kit.values(await gather_messages(reader, 300)) == kit.numbered(300)
        await reader.commit(asynchronous=False)
        (held,) = await reader.committed([TP(topic, 0)], timeout=DEADLINE_S)
        assert held.offset == 300
        await reader.close()

    asyncio.run(story())


def test_asyncio_consumer_of_the_new_protocol_seeks_and_reads_again(
    bootstrap: str, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, kit.numbered(50))

    async def story() -> None:
        reader = AIOConsumer(settings(bootstrap, group, **{"group.protocol": "consumer"}))
        await reader.subscribe([topic])
        await gather_messages(reader, 50)
        await reader.seek(TP(topic, 0, 20))
        assert kit.values(await gather_messages(reader, 30)) == kit.numbered(30, start=20)
        assert await reader.get_watermark_offsets(TP(topic, 0), timeout=DEADLINE_S) == (0, 50)
        await reader.close()

    asyncio.run(story())


def test_asyncio_transactions_commit_and_abort(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()

    async def story() -> None:
        writer = AIOProducer({"bootstrap.servers": bootstrap, "transactional.id": unique("aio")}, buffer_timeout=0.1)
        await writer.init_transactions(DEADLINE_S)
        for n in range(4):
            await writer.begin_transaction()
            await writer.produce(topic, b"%d" % n)
            await writer.flush()
            await (writer.commit_transaction if n % 2 else writer.abort_transaction)(DEADLINE_S)
        await writer.close()

    asyncio.run(story())
    assert kit.values(kit.read_all(bootstrap, topic, {"isolation.level": "read_committed"})) == [b"1", b"3"]


def test_asyncio_members_share_a_group(bootstrap: str, new_topic: NewTopicCall, group: str) -> None:
    topic = new_topic(partitions=2)

    async def story() -> None:
        members = [AIOConsumer(settings(bootstrap, group)) for _ in range(2)]
        for member in members:
            await member.subscribe([topic])
        async with asyncio.timeout(DEADLINE_S):
            while [len(await member.assignment()) for member in members] != [1, 1]:
                await asyncio.gather(*(member.poll(0.2) for member in members))
        for partition in (0, 1):
            kit.produce(bootstrap, topic, kit.numbered(10), partition=partition)
        shares = await asyncio.gather(*(gather_messages(member, 10) for member in members))
        assert [kit.values(share) for share in shares] == [kit.numbered(10)] * 2
        for member in members:
            await member.close()

    asyncio.run(story())
