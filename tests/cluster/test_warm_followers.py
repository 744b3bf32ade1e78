"""A follower of a queue shard has applied what is committed: to lead the shard costs the end of its log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.broker.kit import run
from tests.cluster import in_process
from tests.cluster.in_process import Cluster, cluster_of, until
from tests.cluster.test_snapshots import INDEX, NAME, fill_and_cut_back, living, shard_led
from tests.simulation.warm_check import meaning, replayed
from waystation.broker.broker import Broker
from waystation.encryption.key_ring import KeyRing
from waystation.log.cleaning import truncation
from waystation.message import Message
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.shard import Shard
from waystation.queues.shard.shards import FollowedShard, Shards
from waystation.topics.partitions import warm_state
from waystation.topics.partitions.partition import Partition, log_of
from waystation.topics.partitions.warm_state import WarmState
from waystation.topics.topics import QUEUES_TOPIC
from waystation.world import SystemRandom, real_world

pytestmark = pytest.mark.timeout(120)

BLOCKS = 40
MESSAGES = 25


async def filled(cluster: Cluster) -> tuple[int, list[int]]:
    """Messages in a queue, of which both followers know; who leads the shard, and who follows."""
    await cluster.in_sync(QUEUES_TOPIC, {1, 2, 3}, INDEX)
    node = await shard_led(cluster)
    queues = cluster.brokers[node].queues
    await queues.declare(NAME, QueueSettings())
    for block in range(BLOCKS):
        await queues.put_durable(NAME, [Message(b"%d" % (block * MESSAGES + at)) for at in range(MESSAGES)])
    others = [one for one in (1, 2, 3) if one != node]
    await until(lambda: all(applied(cluster, one) == end_of(cluster, node) for one in others))
    return node, others


def applied(cluster: Cluster, node: int) -> int:
    return cluster.brokers[node].shards.followed_to(INDEX)


def end_of(cluster: Cluster, node: int) -> int:
    return cluster.partition(node, QUEUES_TOPIC, INDEX).end_offset


def state_of(broker: Broker) -> Shard:
    machine = broker.shards._followed[INDEX]._machine
    assert machine is not None
    return machine.shard


def test_a_follower_leads_a_shard_by_the_end_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    lead = Shards.lead

    def counted(self: Shards, partition: Partition) -> None:
        if partition.index == INDEX:
            left.append(partition.end_offset - self.followed_to(INDEX))
        lead(self, partition)

    async def main() -> list[bytes]:
        async with cluster_of(tmp_path) as cluster:
            node, _ = await filled(cluster)
            monkeypatch.setattr(Shards, "lead", counted)
            await cluster.kill(node)
            return living(cluster.brokers[await shard_led(cluster)])

    assert run(main()) == [b"%d" % number for number in range(BLOCKS * MESSAGES)]
    assert left[0] == 0  # the other one leads it when the cluster is stopped


def test_a_follower_has_no_bodies_of_messages_in_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            node, others = await filled(cluster)
            for one in others:
                shard = state_of(cluster.brokers[one])
                assert [len(queue) for queue in shard.queues.values()] == [BLOCKS * MESSAGES]
                assert shard.bodies.cached == 0
            leads = cluster.brokers[node].shards.find(INDEX)
            assert leads is not None
            assert leads.bodies.cached > 0

    run(main())


def test_ids_that_were_used_long_ago_leave_the_memory_of_a_follower(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.in_sync(QUEUES_TOPIC, {1, 2, 3}, INDEX)
            node = await shard_led(cluster)
            queues = cluster.brokers[node].queues
            await queues.declare(NAME, QueueSettings(dedup_window_ms=1))
            for number in range(200):
                await queues.put_durable(NAME, [Message(b"", id=f"id {number}")])
            other = next(one for one in (1, 2, 3) if one != node)
            await until(lambda: applied(cluster, other) == end_of(cluster, node))
            (queue,) = state_of(cluster.brokers[other]).queues.values()
            assert len(queue) == 200
            assert len(queue.ids or ()) < 50

    run(main())


async def truncated_below_what_is_committed(folder: Path) -> bool:
    """Whether a follower's queues are what its log says, when an unclean election has taken back committed records."""
    async with cluster_of(folder) as cluster:
        _, others = await filled(cluster)
        for other in {1, 2, 3} - {others[0]}:
            cluster.network.cut.add(frozenset((others[0], other)))
        broker = cluster.brokers[others[0]]
        partition = cluster.partition(others[0], QUEUES_TOPIC, INDEX)
        await truncation.truncate(log_of(partition), partition.end_offset // 2, broker.commit)
        partition.truncated()
        partition.wake()
        try:
            await until(lambda: applied(cluster, others[0]) == partition.end_offset, 5.0)
        except TimeoutError:
            return False
        shard = state_of(broker)
        return meaning(shard) == meaning(replayed(shard))


def test_what_a_truncation_took_back_is_not_applied_any_more(tmp_path: Path) -> None:
    assert run(truncated_below_what_is_committed(tmp_path))


def test_the_audit_sees_what_a_truncation_took_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WarmState, "_is_stale", lambda self, machine: False)
    assert not run(truncated_below_what_is_committed(tmp_path))


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_new_replica_follows_from_the_snapshot_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    if encrypted:
        keys = KeyRing({1: os.urandom(32)}, 1, SystemRandom())
        monkeypatch.setattr(in_process, "real_world", lambda: replace(real_world(), keys=keys))

    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            await cluster.in_sync(QUEUES_TOPIC, {1, 2}, INDEX)
            node = await shard_led(cluster)
            await fill_and_cut_back(cluster.brokers[node])
            await cluster.start(3)
            await cluster.in_sync(QUEUES_TOPIC, {1, 2, 3}, INDEX)
            await until(lambda: applied(cluster, 3) == end_of(cluster, node))
            assert cluster.partition(3, QUEUES_TOPIC, INDEX).start_offset > 0
            (queue,) = state_of(cluster.brokers[3]).queues.values()
            assert len(queue) == 3

    run(main())


def test_a_follower_that_was_stopped_in_the_middle_of_it_leads_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch at a time, and half of them are not applied when the leader dies."""
    monkeypatch.setattr(warm_state, "SLICE_BYTES", 1)
    monkeypatch.setattr(warm_state, "TOGETHER_S", 3600.0)
    slices: list[int] = []
    apply = FollowedShard.apply

    def counted(self: FollowedShard, before: int, most_bytes: int) -> None:
        slices.append(before)
        apply(self, before, most_bytes)

    async def main() -> list[bytes]:
        async with cluster_of(tmp_path) as cluster:
            await cluster.in_sync(QUEUES_TOPIC, {1, 2, 3}, INDEX)
            node = await shard_led(cluster)
            queues = cluster.brokers[node].queues
            await queues.declare(NAME, QueueSettings())
            await queues.put_durable(NAME, [Message(b"1")])
            await queues.put_durable(NAME, [Message(b"2")])
            monkeypatch.setattr(FollowedShard, "apply", counted)
            await cluster.kill(node)
            return living(cluster.brokers[await shard_led(cluster)])

    assert run(main()) == [b"1", b"2"]
    assert len(slices) > 1
