"""Nobody is given a message of a queue that other replicas may not have: it may never have been there.

With the check taken out, the audit fails: that shows that it looks at the right thing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.broker.kit import run
from tests.cluster.in_process import Cluster, cluster_of, until
from waystation.message import Delivered, Message
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.unreplicated import Unreplicated
from waystation.topics.topics import QUEUES_TOPIC

pytestmark = pytest.mark.timeout(120)

NAME = "jobs"
INDEX = crc32c(NAME.encode()) % 3


async def shard_led(cluster: Cluster) -> int:
    """The node that has the queue."""

    def found() -> int | None:
        leads = [one for one, broker in cluster.brokers.items() if broker.shards.find(INDEX) is not None]
        return leads[0] if len(leads) == 1 else None

    return await until(found)


async def delivered_but_lost(folder: Path) -> list[bytes]:
    """What a consumer was given by a leader that nobody could copy from, and the next leader does not have."""
    async with cluster_of(folder) as cluster:
        await cluster.in_sync(QUEUES_TOPIC, {1, 2, 3}, INDEX)
        node = await shard_led(cluster)
        broker = cluster.brokers[node]
        await broker.queues.declare(NAME, QueueSettings())
        await broker.queues.put_durable(NAME, [Message(b"kept")])
        got: list[Delivered] = []
        feed = broker.queues.open_feed(NAME, "c", got.extend, on_end=lambda error: None)
        feed.credit(10)
        await until(lambda: [one.message.payload for one in got] == [b"kept"])
        for other in {1, 2, 3} - {node}:
            cluster.network.cut.add(frozenset((node, other)))
        broker.queues.put(NAME, [Message(b"nobody has it")])
        await asyncio.sleep(0.05)  # a turn of the loop delivers; more time only makes the audit stricter
        given = [one.message.payload for one in got]
        await cluster.kill(node)
        cluster.network.cut.clear()
        heir = cluster.brokers[await shard_led(cluster)]
        getter = heir.queues.getter(NAME, "audit")
        there = [one.message.payload for one in getter.take(10)]
        assert there == [b"kept"]
        return [payload for payload in given if payload not in there]


def test_what_only_the_leader_has_is_not_delivered(tmp_path: Path) -> None:
    assert run(delivered_but_lost(tmp_path)) == []


def test_the_audit_sees_a_delivery_above_the_high_watermark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_hidden(self: Unreplicated, queue: Queue, first: int) -> None:
        pass

    monkeypatch.setattr(Unreplicated, "hide", not_hidden)
    assert run(delivered_but_lost(tmp_path)) == [b"nobody has it"]


def test_what_waits_is_delivered_when_the_others_have_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.in_sync(QUEUES_TOPIC, {1, 2, 3}, INDEX)
            node = await shard_led(cluster)
            queues = cluster.brokers[node].queues
            await queues.declare(NAME, QueueSettings(max_priority=5))
            got: list[Delivered] = []
            feed = queues.open_feed(NAME, "c", got.extend, on_end=lambda error: None)
            feed.credit(1000)
            for number in range(50):
                queues.put(NAME, [Message(b"%d" % number, priority=number % 3), Message(b"%d'" % number)])
                if number % 10 == 9:
                    await asyncio.sleep(0)
            await until(lambda: len(got) == 100)
            assert len({one.message.payload for one in got}) == 100
            assert [one.deliveries for one in got] == [1] * 100

    run(main())
