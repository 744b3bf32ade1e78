"""What a node's disk, or a mistake, keeps it from doing is done later, and nobody waits for that node meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.kit import run
from tests.cluster.in_process import Cluster, cluster_of, until
from tests.cluster.test_replication import everything, publish
from waystation.cluster import leadership
from waystation.cluster.replica_placement import WantedReplicas
from waystation.errors import NotLeader, StorageFailed
from waystation.groups.machines.calls import OffsetToCommit
from waystation.groups.machines.errors import NotCoordinator
from waystation.topics.topics import OFFSETS_TOPIC

pytestmark = pytest.mark.timeout(120)

TOPIC = "orders"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "UNLED_S", 0.3)
    monkeypatch.setattr(leadership, "AGAIN_S", 0.05)
    monkeypatch.setattr("waystation.catalog.follower.MAKE_AGAIN_S", 0.05)


class Refusing:
    """In the place of a method: the disk refuses, as long as it is full."""

    def __init__(self, method: Any) -> None:
        self._method = method
        self.full = True
        self.asked = 0

    def __call__(self, *args: Any) -> Any:
        self.asked += 1
        if self.full:
            raise OSError(28, "No space left on device")
        return self._method(*args)


async def make_elsewhere(cluster: Cluster, full: int) -> None:
    """Another node creates the topic, whose preferred leader has the full disk."""
    other = next(one for one in cluster.brokers if one != full)
    order = [full, *(one for one in cluster.brokers if one != full)]
    await cluster.brokers[other].topics.create(TOPIC, 1, wanted=WantedReplicas(assignment=[order]))


def test_a_topic_whose_files_the_leaders_disk_refuses_is_led_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            disk = Refusing(cluster.brokers[3].topics.folders.describe)
            monkeypatch.setattr(cluster.brokers[3].topics.folders, "describe", disk)
            await make_elsewhere(cluster, full=3)
            leader = await cluster.leader(TOPIC)
            assert leader != 3
            disk.full = False
            await until(lambda: cluster.brokers[3].topics.find(TOPIC) is not None)
            await publish(cluster, leader, TOPIC, b"1")
            await cluster.in_sync(TOPIC, {1, 2, 3})
            await until(lambda: cluster.partition(3, TOPIC).visible_offset == 1)
            assert everything(cluster, 3, TOPIC) == [b"1"]

    run(main())


def test_a_replica_that_the_disk_refuses_is_made_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create(TOPIC, 1, wanted=WantedReplicas(assignment=[[1, 2]]))
            await publish(cluster, await cluster.leader(TOPIC), TOPIC, b"1")
            disk = Refusing(cluster.brokers[3].topics.open_log_of)
            monkeypatch.setattr(cluster.brokers[3].topics, "open_log_of", disk)
            topic_id = cluster.brokers[1].topics.get(TOPIC).id
            await cluster.brokers[1].operations.reassign(topic_id, 0, [1, 2, 3])
            await until(lambda: disk.asked >= 2)
            disk.full = False
            await cluster.in_sync(TOPIC, {1, 2, 3})

    run(main())


def test_a_leader_whose_log_has_failed_before_it_led_lets_another_lead(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create(TOPIC, 1, wanted=WantedReplicas(assignment=[[1, 2, 3]]))
            await cluster.leader(TOPIC)
            await until(lambda: all(broker.topics.find(TOPIC) is not None for broker in cluster.brokers.values()))
            heir = cluster.partition(2, TOPIC)
            heir._log.fail(StorageFailed("the disk failed to sync"))
            topic_id = cluster.brokers[1].topics.get(TOPIC).id
            await cluster.brokers[1].operations.reassign(topic_id, 0, [2, 1, 3])
            await cluster.brokers[1].operations.elect_preferred(topic_id, 0)
            leading = await until(lambda: next((one for one in (1, 3) if cluster.partition(one, TOPIC).leads), None))
            await publish(cluster, leading, TOPIC, b"1")

    run(main())


@pytest.mark.parametrize("error", [StorageFailed("cannot read"), OSError(24, "Too many open files"), KeyError("ours")])
def test_a_coordinator_whose_log_cannot_be_read_says_nothing_and_tries_again(tmp_path: Path, error: Exception) -> None:
    """It must not answer from the half of the log that it could read: a group's offset would be that of long ago."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create(TOPIC, 1)
            first = cluster.brokers[1]
            await cluster.in_sync(OFFSETS_TOPIC, {1, 2, 3}, first.groups.partition_for("g"))
            for offset in (1, 2):
                assert [one.error for one in await first.groups.commit_offsets("g", [at(offset)])] == [None]
            readable = False
            index = first.groups.partition_for("g")

            def half(found: Iterable[Any]) -> Iterator[Any]:
                for number, one in enumerate(found):
                    if number and not readable:
                        raise error
                    yield one

            for node in (2, 3):
                replica = cluster.partition(node, OFFSETS_TOPIC, index)
                replica.batches_from = lambda offset, read=replica.batches_from: half(read(offset))  # type: ignore[misc]
            await cluster.kill(1)
            heir = cluster.brokers[await cluster.leader(OFFSETS_TOPIC, index)]
            give_up = asyncio.get_running_loop().time() + 0.5
            while asyncio.get_running_loop().time() < give_up:
                with pytest.raises((NotCoordinator, NotLeader)):
                    heir.groups.fetch_offsets("g")
                await asyncio.sleep(0.02)
            readable = True

            def known() -> int | None:
                try:
                    return heir.groups.fetch_offsets("g")[0].offset
                except NotCoordinator:
                    return None

            assert await until(known) == 2

    run(main())


def at(offset: int) -> OffsetToCommit:
    return OffsetToCommit(TOPIC, 0, offset)
