"""Deletions of topics are remembered until every node has removed its files, and at most so many of them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from tests.broker.kit import run
from tests.cluster.in_process import DEADLINE_S, Cluster, cluster_of, until
from waystation.catalog import rows
from waystation.catalog.rows import DeletedTopic
from waystation.cluster import deletions
from waystation.topics.folders import TopicFolders
from waystation.topics.topics import Topics

pytestmark = pytest.mark.timeout(120)


def remembered(cluster: Cluster) -> list[str]:
    found = cluster.store.face().read(rows.DELETED_TOPICS).entries.values()
    return sorted(rows.read_deleted_topic(entry.value).name for entry in found)


def folders(root: Path, node: int, inside: str = "topics") -> list[str]:
    """Names of topics whose files a node has."""
    there = root / str(node) / inside
    return sorted(one.name.partition(".")[0] for one in there.iterdir() if not one.name.startswith("__"))


async def make_and_delete(cluster: Cluster, name: str) -> None:
    await cluster.brokers[1].topics.create(name, 1)
    await cluster.in_sync(name, set(cluster.brokers))
    await cluster.brokers[1].topics.delete(name)


async def look(cluster: Cluster, most: int) -> None:
    """Each node looks, until at most so many are remembered: files are removed in the background."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            for broker in cluster.brokers.values():
                assert broker.member is not None
                await broker.follower.catch_up()
                await broker.member.deletions.look()
            if len(remembered(cluster)) <= most:
                return
            await asyncio.sleep(0.05)


async def marked(cluster: Cluster, nodes: set[int]) -> None:
    """Returns when these have nothing left of the only topic that is remembered."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await look(cluster, 1)
            (entry,) = cluster.store.face().read(rows.DELETED_TOPICS).entries.values()
            if set(rows.read_deleted_topic(entry.value).removed) == nodes:
                return


def test_a_deletion_is_forgotten_when_every_node_has_removed_its_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_and_delete(cluster, "orders")
            assert remembered(cluster) == ["orders"]
            await until(lambda: not any(folders(tmp_path, node) for node in (1, 2, 3)))
            await look(cluster, 0)

    run(main())


def test_a_node_that_was_away_removes_its_files_before_it_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("orders", 1)
            await cluster.in_sync("orders", {1, 2, 3})
            await until(lambda: folders(tmp_path, 3) == ["orders"])
            await cluster.stop(3)
            await cluster.brokers[1].topics.delete("orders")
            await marked(cluster, {1, 2})
            assert folders(tmp_path, 3) == ["orders"]
            await cluster.start(3)
            assert folders(tmp_path, 3) == []
            await look(cluster, 0)

    run(main())


def test_a_node_that_left_the_cluster_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.stop(3)
            await cluster.brokers[1].topics.create("orders", 1)
            await cluster.brokers[1].topics.delete("orders")
            await marked(cluster, {1, 2})
            face = cluster.store.face()
            face.write({"disks/3": None})
            await until(lambda: 3 not in cluster.view().known())
            await look(cluster, 0)

    run(main())


def test_deletions_that_wait_for_a_node_are_bounded_and_its_files_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "MOST", 2)

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            for number in range(4):
                await cluster.brokers[1].topics.create(f"t{number}", 1)
                await cluster.in_sync(f"t{number}", {1, 2, 3})
            await until(lambda: len(folders(tmp_path, 3)) == 4)
            await cluster.stop(3)
            for number in range(4):
                await cluster.brokers[1].topics.delete(f"t{number}")
            await look(cluster, 2)
            forgotten = {f"t{number}" for number in range(4)} - set(remembered(cluster))
            assert len(forgotten) == 2
            await cluster.start(3)
            assert folders(tmp_path, 3) == []
            assert set(folders(tmp_path, 3, "lost+found")) == forgotten

    run(main())


def test_a_topic_that_is_being_made_is_not_taken_for_removed(tmp_path: Path) -> None:
    """What the store says may be ahead of what this node was told."""

    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            face = cluster.faces[3]
            face.pause_watches()
            await cluster.brokers[1].topics.create("orders", 1)
            await cluster.brokers[1].topics.delete("orders")
            member = cluster.brokers[3].member
            assert member is not None
            await member.deletions.look()
            entries = cluster.store.face().read(rows.DELETED_TOPICS).entries
            (deleted,) = [rows.read_deleted_topic(entry.value) for entry in entries.values()]
            assert 3 not in deleted.removed
            face.resume_watches()
            await look(cluster, 0)

    run(main())


def test_a_disk_that_refuses_puts_the_looking_off_and_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_and_delete(cluster, "orders")
            clear = TopicFolders.clear
            refused: list[str] = []

            def refuses(self: TopicFolders, topic: DeletedTopic) -> bool:
                refused.append(topic.name)
                raise OSError(errno.EMFILE, "Too many open files")

            monkeypatch.setattr(TopicFolders, "clear", refuses)
            for _ in range(2):
                for broker in cluster.brokers.values():
                    assert broker.member is not None
                    await broker.follower.catch_up()
                    await broker.member.deletions.look()
            assert "orders" in refused
            monkeypatch.setattr(TopicFolders, "clear", clear)
            await look(cluster, 0)

    run(main())


def entries_of(cluster: Cluster, topic: UUID) -> int:
    return len(cluster.store.face().read(f"partitions/{topic}/").entries)


@pytest.mark.parametrize("partitions", [1, 250])
def test_entries_that_a_deletion_has_left_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """The node that deletes the topic dies when it has deleted the topic's own entry."""

    async def nothing(self: Topics, topic: str, keys: Sequence[str]) -> None:
        pass

    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            await cluster.brokers[1].topics.create("kept", 1)
            await cluster.brokers[1].topics.create("orders", partitions)
            kept, orders = (cluster.brokers[1].topics.get(name).id for name in ("kept", "orders"))
            await until(lambda: cluster.brokers[2].topics.find("orders") is not None)
            with monkeypatch.context() as patched:
                patched.setattr(Topics, "_delete_entries", nothing)
                await cluster.brokers[1].topics.delete("orders")
            assert entries_of(cluster, orders) == partitions
            await until(lambda: not any("orders" in folders(tmp_path, node) for node in (1, 2)))
            await look(cluster, 0)
            assert entries_of(cluster, orders) == 0
            assert entries_of(cluster, kept) == 1

    run(main())


def test_entries_of_partitions_that_were_being_added_go_with_their_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            topics = cluster.brokers[1].topics
            orders = await topics.create("orders", 1)
            await topics._write_entries(orders.row, orders.revision, 1, [(1, 2)])  # and then the node has died
            await topics.delete("orders")
            assert entries_of(cluster, orders.id) == 1
            await look(cluster, 0)
            assert entries_of(cluster, orders.id) == 0

    run(main())


def test_entries_of_a_topic_that_is_there_again_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            orders = await cluster.brokers[1].topics.create("orders", 2)
            cluster.store.face().write(
                {rows.deleted_topic_key(orders.id): rows.encode(DeletedTopic("orders", orders.id))}, {}
            )
            for _ in range(3):
                await look(cluster, 1)
            assert entries_of(cluster, orders.id) == 2

    run(main())
