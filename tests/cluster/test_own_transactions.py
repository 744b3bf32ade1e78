"""A transaction of the broker's own (AMQP's tx, the native protocol's, a redrive) whose data does not outlive a change
of the leader is not committed; nor is a record given up for a dead letter that does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.broker.kit import run
from tests.cluster.in_process import Cluster, cluster_of, until
from tests.cluster.test_queues_in_a_cluster import lead
from waystation.cluster.links.peer import Answer, Fetch, Fetched, Key, Request
from waystation.errors import NotLeader
from waystation.groups.machines.errors import NotCoordinator
from waystation.message import Message
from waystation.security.principals import ANONYMOUS
from waystation.topics.topics import QUEUES_TOPIC, TRANSACTIONS_TOPIC
from waystation.transactions.records import partition_for_name
from waystation.transactions.transacting import Tx

pytestmark = pytest.mark.timeout(120)


async def keep_back(cluster: Cluster, leader: int, key: Key) -> None:
    """What this node has of the partition from now on does not reach its followers."""
    answering = cluster.network.answering[leader]
    fetching: set[int] = set()  # those whose questions are not older than this

    async def without(request: Request, connection: str) -> Answer:
        if isinstance(request, Fetch):
            fetching.add(request.node_id)
        answer = await answering(request, connection)
        if isinstance(request, Fetch) and isinstance(answer, Fetched):
            others = tuple(one for one in answer.partitions if one.key != key)
            return msgspec.structs.replace(answer, partitions=others)
        return answer

    cluster.network.answering[leader] = without
    await until(lambda: len(fetching) == len(cluster.brokers) - 1)


async def put_and_lose(cluster: Cluster) -> tuple[Tx, str]:
    """A message that was put in a transaction, and that the shard's next leader does not have."""
    broker = cluster.brokers[1]
    for index in range(3):
        await lead(cluster, QUEUES_TOPIC, index, 1)
        await lead(cluster, TRANSACTIONS_TOPIC, index, 1)
    await until(lambda: len(broker.shards) == 3 and len(broker.transactions._led) == 3)
    await broker.queues.declare("jobs")
    shard = broker.shards.of("jobs")
    tx = await broker.transacting.begin("shop")
    await broker.durable((await tx.put("jobs", [Message(b"first")])).receipt)
    await keep_back(cluster, 1, (broker.topics.get(QUEUES_TOPIC).id, shard.index))
    await tx.put("jobs", [Message(b"second")])
    await lead(cluster, QUEUES_TOPIC, shard.index, 2)
    await until(lambda: cluster.brokers[2].shards.find(shard.index))
    former = cluster.partition(1, QUEUES_TOPIC, shard.index)
    await until(lambda: former.visible_offset == former.end_offset)  # it follows, and lacks nothing that it knows of
    return tx, "jobs"


def ready(cluster: Cluster, node: int, queue: str) -> int:
    _, found = cluster.brokers[node].queues.get(queue)
    return found.open_ledger().ready


@pytest.mark.parametrize("staged", [False, True], ids=["commit", "stage"])
def test_what_the_next_leader_of_a_shard_does_not_have_is_not_committed(tmp_path: Path, staged: bool) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            tx, queue = await put_and_lose(cluster)
            with pytest.raises(NotLeader):
                await (tx.stage() if staged else tx.end(commit=True))
            await tx.end(commit=False)
            assert ready(cluster, 2, queue) == 0, "half of the transaction is there"

    run(main())


@pytest.mark.parametrize("target", ["jobs", "topic:dead"])
def test_a_dead_letter_of_a_share_group_counts_as_sent_when_the_replicas_have_it(tmp_path: Path, target: str) -> None:
    """Then its record is done with, in another log: nobody would send it again."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            broker = cluster.brokers[1]
            for index in range(3):
                await lead(cluster, QUEUES_TOPIC, index, 1)
            await until(lambda: len(broker.shards) == 3)
            await broker.queues.declare("jobs")
            await broker.topics.create("dead", 1)
            await lead(cluster, "dead", 0, 1)
            where = (QUEUES_TOPIC, broker.shards.of("jobs").index) if target == "jobs" else ("dead", 0)
            await keep_back(cluster, 1, (broker.topics.get(where[0]).id, where[1]))
            one: Any = SimpleNamespace(partition=SimpleNamespace(index=0))
            letter = (None, b"1", (), Message(b"1"))
            sending = asyncio.ensure_future(broker.shared.dead_letters._hand_over(one, target, [letter]))
            written = cluster.partition(1, *where)
            await until(lambda: written.end_offset > written.visible_offset)
            await asyncio.sleep(0.1)
            assert not sending.done()
            await lead(cluster, *where, 2)
            with pytest.raises(NotLeader):
                await sending

    run(main())


def test_a_decision_that_could_still_be_lost_is_not_told(tmp_path: Path) -> None:
    """Whoever hears that a number is committed skips what belongs to it."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            broker = cluster.brokers[1]
            index = partition_for_name("job", 3)
            await lead(cluster, TRANSACTIONS_TOPIC, index, 1)
            await until(lambda: index in broker.transactions._led)
            access = broker.access(ANONYMOUS, "/", broker.meters.native)
            assert await access.staged.position("job") is None
            assert await broker.transactions.commit_all("job", 1, [])
            assert await access.staged.position("job") == 1
            await keep_back(cluster, 1, (broker.topics.get(TRANSACTIONS_TOPIC).id, index))
            deciding = asyncio.ensure_future(broker.transactions.commit_all("job", 2, []))
            await until(lambda: broker.transactions.decided("job").sequence == 2)  # type: ignore[union-attr]
            asking = asyncio.ensure_future(access.staged.position("job"))
            await lead(cluster, TRANSACTIONS_TOPIC, index, 2)
            for one in (deciding, asking):
                with pytest.raises(NotCoordinator):
                    await one

    run(main())
