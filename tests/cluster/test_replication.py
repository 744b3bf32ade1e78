"""Three brokers copy what they are given: what is acknowledged is on all replicas in sync, and survives its leader."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.cluster import in_process
from tests.cluster.in_process import DEADLINE_S, Cluster, cluster_of, until
from waystation.cluster import leadership
from waystation.cluster.links.peer import Answer, Fetch, Request
from waystation.cluster.replication import serving
from waystation.cluster.replication.led import copied_from
from waystation.errors import NotEnoughReplicas, NotLeader, WaystationError
from waystation.groups.machines.errors import NotCoordinator
from waystation.log.batches import batch as batches
from waystation.log.cleaning import truncation
from waystation.log.commit import GroupCommit
from waystation.log.log import Log
from waystation.message import Message
from waystation.topics.partitions.partition import log_of
from waystation.topics.partitions.state_log import PartitionStateLog


async def publish(cluster: Cluster, node_id: int, topic: str, *payloads: bytes) -> None:
    broker = cluster.brokers[node_id]
    published = broker.messages.publish(topic, [Message(payload) for payload in payloads], 0)
    async with asyncio.timeout(15):
        await broker.durable(*published.receipts)


def everything(cluster: Cluster, node_id: int, topic: str) -> list[bytes]:
    partition = cluster.partition(node_id, topic)
    data = partition.read(partition.start_offset, 10_000_000, partition.visible_offset)
    return [
        record.value or b""
        for position, header in batches.scan(data)
        for record in batches.records_of(data[position : position + header.size], header)
    ]


def test_acknowledged_is_on_the_disks_of_all_replicas_in_sync(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1)
            leader = await cluster.leader("orders")
            await publish(cluster, leader, "orders", b"one", b"two")
            for node_id in cluster.brokers:
                assert log_of(cluster.partition(node_id, "orders")).durable_offset == 2
            await until(lambda: all(cluster.partition(one, "orders").visible_offset == 2 for one in cluster.brokers))

    run(main())


def test_another_replica_leads_when_the_leader_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1)
            leader = await cluster.leader("orders")
            await publish(cluster, leader, "orders", b"one")
            await cluster.kill(leader)
            second = await cluster.leader("orders")
            assert second != leader
            await publish(cluster, second, "orders", b"two")
            assert everything(cluster, second, "orders") == [b"one", b"two"]
            await cluster.start(leader)
            await cluster.in_sync("orders", {1, 2, 3})
            await until(lambda: cluster.partition(leader, "orders").visible_offset == 2)
            assert everything(cluster, leader, "orders") == [b"one", b"two"]

    run(main())


def test_a_node_that_does_not_lead_takes_no_publishes(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1)
            leader = await cluster.leader("orders")
            other = next(one for one in cluster.brokers if one != leader)
            await until(lambda: cluster.brokers[other].topics.find("orders"))
            with pytest.raises(NotLeader):
                await publish(cluster, other, "orders", b"no")

    run(main())


def test_what_a_leader_wrote_alone_is_truncated_when_it_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1)
            leader = await cluster.leader("orders")
            await publish(cluster, leader, "orders", b"one")
            others = [one for one in cluster.brokers if one != leader]
            for other in others:
                cluster.network.cut.add(frozenset((leader, other)))
            broker = cluster.brokers[leader]
            broker.messages.publish("orders", [Message(b"alone")], 0)
            await broker.commit.join()
            await cluster.kill(leader)
            second = await cluster.leader("orders")
            await publish(cluster, second, "orders", b"two")
            cluster.network.cut.clear()
            await cluster.start(leader)
            await cluster.in_sync("orders", {1, 2, 3})
            await until(lambda: cluster.partition(leader, "orders").visible_offset == 2)
            assert everything(cluster, leader, "orders") == [b"one", b"two"]

    run(main())


def test_what_a_leader_wrote_alone_takes_nothing_out_of_a_compacted_topic(tmp_path: Path) -> None:
    """Its record is the newest of the key in its log alone. It is truncated, and the one before it is what counts."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
            await cluster.brokers[1].topics.create("orders", 1, settings)
            leader = await cluster.leader("orders")
            broker, partition = cluster.brokers[leader], cluster.partition(leader, "orders")
            for key in (b"k", b"other"):
                acknowledged = broker.messages.publish("orders", [Message(b"acknowledged", key=key)], 0)
                await broker.durable(*acknowledged.receipts)
            for other in cluster.brokers:
                if other != leader:
                    cluster.network.cut.add(frozenset((leader, other)))
            broker.messages.publish("orders", [Message(b"alone", key=b"k")], 0)
            assert partition.begin_segment()
            await broker.commit.join()
            await broker.housekeeping.checkpoint()
            await broker.housekeeping.compact()
            await cluster.kill(leader)
            await cluster.leader("orders")
            cluster.network.cut.clear()
            await cluster.start(leader)
            await cluster.in_sync("orders", {1, 2, 3})
            await until(lambda: cluster.partition(leader, "orders").visible_offset == 2)
            assert everything(cluster, leader, "orders") == [b"acknowledged", b"acknowledged"]

    run(main())


async def alone(cluster: Cluster, leader: int, topic: str, count: int) -> None:
    """Its followers cannot reach the leader, which is given records that are on its disk only."""
    for other in cluster.brokers:
        if other != leader:
            cluster.network.cut.add(frozenset((leader, other)))
    broker = cluster.brokers[leader]
    for number in range(count):
        broker.messages.publish(topic, [Message(b"alone %d" % number)], 0)
    await broker.commit.join()
    assert log_of(cluster.partition(leader, topic)).durable_offset > cluster.partition(leader, topic).visible_offset


@pytest.mark.parametrize("flush", ["commit", "os"])
def test_what_a_leader_wrote_alone_is_not_among_the_newest_that_a_topic_keeps(tmp_path: Path, flush: str) -> None:
    """Retention by count: what only the leader has takes the place of nothing that is acknowledged."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1, {"waystation.retention.messages": "2"})
            leader = await cluster.leader("orders")
            cluster.brokers[leader].commit.configure("os" if flush == "os" else "commit", 1_000)
            for payload in (b"one", b"two", b"three"):
                await publish(cluster, leader, "orders", payload)
            assert everything(cluster, leader, "orders") == [b"two", b"three"]
            await alone(cluster, leader, "orders", 3)
            cluster.brokers[leader].topics.refresh(cluster.brokers[leader].topics.get("orders"))
            await cluster.brokers[leader].housekeeping.retain()
            assert everything(cluster, leader, "orders") == [b"two", b"three"]
            await cluster.kill(leader)
            cluster.network.cut.clear()
            await cluster.start(leader)
            assert cluster.partition(leader, "orders").start_offset == 1
            await cluster.in_sync("orders", {1, 2, 3})

    run(main())


def test_a_leader_that_dies_while_its_followers_begin_again_leaves_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that is behind the leader's start empties its log. What was acknowledged is not to be in it alone."""
    begin_again = truncation.begin_again

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1, {"waystation.retention.messages": "2"})
            leader = await cluster.leader("orders")
            others = [one for one in cluster.brokers if one != leader]

            async def dies(log: Log, offset: int, commit: GroupCommit) -> None:
                await begin_again(log, offset, commit)
                cluster.network.cut.update(frozenset((leader, other)) for other in others)

            monkeypatch.setattr(truncation, "begin_again", dies)
            await publish(cluster, leader, "orders", b"one", b"two")
            await alone(cluster, leader, "orders", 3)
            cluster.network.cut.clear()
            copied = [cluster.partition(one, "orders") for one in others]
            await until(lambda: cluster.network.cut or all(one.end_offset == 5 for one in copied))
            await cluster.kill(leader)
            second = await cluster.leader("orders")
            await until(lambda: cluster.partition(second, "orders").all_visible)
            assert everything(cluster, second, "orders") == [b"alone 1", b"alone 2"]

    run(main())


@pytest.mark.parametrize(
    ("settings", "start"), [({"retention.ms": "1"}, 32), ({"retention.bytes": "200"}, 2)], ids=["by time", "by bytes"]
)
def test_what_a_leader_wrote_alone_is_not_deleted_and_makes_nothing_too_much(
    tmp_path: Path, settings: dict[str, str], start: int
) -> None:
    """The log's start is never above the high watermark."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1, settings)
            leader = await cluster.leader("orders")
            partition, housekeeping = cluster.partition(leader, "orders"), cluster.brokers[leader].housekeeping
            await publish(cluster, leader, "orders", b"one", b"two")
            assert 0 < partition.size_bytes <= 200
            if "retention.bytes" in settings:
                assert partition.begin_segment()  # only what is complete is too much
            await alone(cluster, leader, "orders", 30)
            await until(lambda: time.time() * 1000 > log_of(partition).find_max_timestamp()[1] + 2)  # type: ignore[index]
            if "retention.bytes" in settings:
                assert partition.begin_segment()
            await housekeeping.retain()
            assert everything(cluster, leader, "orders") == [b"one", b"two"]
            cluster.network.cut.clear()
            await until(lambda: partition.visible_offset == 32)
            await housekeeping.retain()
            assert partition.start_offset == start

    run(main())


@pytest.mark.parametrize("before", [b"", b"older"], ids=["new", "behind"])
def test_a_follower_begins_with_the_batch_that_holds_the_leaders_start(tmp_path: Path, before: bytes) -> None:
    """The newest two messages are the end of one batch, and batches are copied whole."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1, {"waystation.retention.messages": "2"})
            leader = await cluster.leader("orders")
            if before:
                await publish(cluster, leader, "orders", before)
            away = next(one for one in cluster.brokers if one != leader)
            await cluster.kill(away)
            await publish(cluster, leader, "orders", b"one", b"two", b"three", b"four", b"five")
            await cluster.start(away)
            await cluster.in_sync("orders", {1, 2, 3})
            copied = cluster.partition(away, "orders")
            await until(lambda: copied.visible_offset == copied.end_offset == (6 if before else 5))
            assert copied.start_offset == cluster.partition(leader, "orders").start_offset
            await publish(cluster, leader, "orders", b"six")
            await until(lambda: copied.start_offset == cluster.partition(leader, "orders").start_offset)

    run(main())


def test_a_leader_reads_the_batch_at_its_start_once_for_each_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1, {"waystation.retention.messages": "2"})
            leader = await cluster.leader("orders")
            away = next(one for one in cluster.brokers if one != leader)
            await cluster.kill(away)
            await publish(cluster, leader, "orders", b"one", b"two", b"three", b"four", b"five")
            log = log_of(cluster.partition(leader, "orders"))
            await until(lambda: log.start_offset == 3)
            reads, behind = 0, 0
            answering = cluster.network.answering[leader]

            def counted(which: Log) -> int:
                nonlocal reads
                reads += which is log
                return copied_from(which)

            async def counting(request: Request, connection: str) -> Answer:
                nonlocal behind
                if isinstance(request, Fetch):
                    topic = cluster.brokers[leader].topics.get("orders").id
                    behind += sum(one.topic == topic and one.offset < log.start_offset for one in request.changed)
                return await answering(request, connection)

            monkeypatch.setattr(serving, "copied_from", counted)
            cluster.network.answering[leader] = counting
            await cluster.start(away)
            await cluster.in_sync("orders", {1, 2, 3})
            assert behind > 0
            assert reads == behind

    run(main())


def test_who_waits_is_told_when_another_node_leads(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1)
            leader = await cluster.leader("orders")
            await publish(cluster, leader, "orders", b"one")
            for other in cluster.brokers:
                if other != leader:
                    cluster.network.cut.add(frozenset((leader, other)))
            with pytest.raises(WaystationError) as told:  # cut off from all: it resigns, and another one leads
                await publish(cluster, leader, "orders", b"two")
            assert isinstance(told.value, NotLeader)
            second = await cluster.leader("orders")
            assert second != leader

    run(main())


def test_who_waits_for_a_coordinators_log_is_told_to_look_for_the_coordinator(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.in_sync("__consumer_offsets", {1, 2, 3})
            leader = await cluster.leader("__consumer_offsets")
            others = [one for one in cluster.brokers if one != leader]
            logs = {
                node_id: PartitionStateLog(
                    cluster.partition(node_id, "__consumer_offsets"), broker.commit, broker.world.clock
                )
                for node_id, broker in cluster.brokers.items()
            }
            with pytest.raises(NotCoordinator):
                logs[others[0]].append([(b"key", b"value")])
            for other in others:
                cluster.network.cut.add(frozenset((leader, other)))
            logs[leader].append([(b"key", b"value")])
            with pytest.raises(NotCoordinator):  # cut off from all: it resigns while somebody waits
                await logs[leader].committed()

    run(main())


def test_too_few_replicas_refuse_what_is_to_be_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1)
            leader = await cluster.leader("orders")
            await publish(cluster, leader, "orders", b"one")
            others = [one for one in cluster.brokers if one != leader]
            for other in others:
                await cluster.kill(other)

            await until(lambda: _refuses(cluster, leader))
            await cluster.start(others[0])
            await until(lambda: not _refuses(cluster, leader))
            await publish(cluster, leader, "orders", b"two")

    run(main())


def _refuses(cluster: Cluster, node_id: int) -> bool:
    try:
        cluster.partition(node_id, "orders").check_in_sync()
    except NotEnoughReplicas:
        return True
    return False


def test_a_clean_stop_hands_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1)
            leader = await cluster.leader("orders")
            await publish(cluster, leader, "orders", b"one")
            await cluster.stop(leader)
            second = await cluster.leader("orders")
            await publish(cluster, second, "orders", b"two")
            assert everything(cluster, second, "orders") == [b"one", b"two"]

    run(main())


def test_the_brokers_own_topics_get_replicas_on_nodes_that_join(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.in_sync("__consumer_offsets", {1, 2, 3})
            await cluster.in_sync("__queues", {1, 2, 3}, 2)

    run(main())


def test_what_nobody_waits_for_is_seen_by_readers_all_the_same(tmp_path: Path) -> None:
    """As with `acks=1`: it is on the disk of every replica soon, though no producer asks for it."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("quiet", 1)
            await cluster.in_sync("quiet", {1, 2, 3})
            leader = await cluster.leader("quiet")
            for count in (1, 2):
                cluster.brokers[leader].messages.publish("quiet", [Message(b"x")], 0, promised=False)
                for node in (1, 2, 3):
                    partition = cluster.partition(node, "quiet")
                    await until(lambda partition=partition, count=count: partition.visible_offset == count, 5.0)  # type: ignore[misc]

    run(main())


def test_what_a_coordinator_notes_and_does_not_wait_for_is_copied_all_the_same(tmp_path: Path) -> None:
    """As the end of a transaction. It waits in memory for a commit round, and nobody may ever join one: followers would
    be taken for slow, and out of the in-sync set again and again."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.in_sync("__transaction_state", {1, 2, 3})
            leader = await cluster.leader("__transaction_state")
            partition, broker = cluster.partition(leader, "__transaction_state"), cluster.brokers[leader]
            await until(lambda: partition.all_visible)
            PartitionStateLog(partition, broker.commit, broker.world.clock).append([(b"key", b"value")])
            end = partition.end_offset
            for node in (1, 2, 3):
                copy = cluster.partition(node, "__transaction_state")
                await until(lambda copy=copy: copy.visible_offset == end, 5.0)  # type: ignore[misc]

    run(main())


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_follower_whose_process_ends_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Neither for as long as a follower may be silent, or behind, nor for its lease: all of that is long here."""
    monkeypatch.setattr(in_process, "LEASE_S", 3 * DEADLINE_S)
    for wait in ("SILENT_S", "LAG_S"):
        monkeypatch.setattr(leadership, wait, 3 * DEADLINE_S)

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1)
            leader = await cluster.leader("orders")
            await publish(cluster, leader, "orders", b"one")
            follower = next(one for one in cluster.brokers if one != leader)
            await (cluster.stop if end == "stopped" else cluster.kill)(follower)
            await publish(cluster, leader, "orders", b"two")
            await cluster.in_sync("orders", {1, 2, 3} - {follower})
            await cluster.start(follower)
            await cluster.in_sync("orders", {1, 2, 3})
            await until(lambda: cluster.partition(follower, "orders").visible_offset == 2)

    run(main())
