"""Deletions of topics are remembered until every node has removed its files, and at most so many of them."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.cluster.in_process import DEADLINE_S, Cluster, cluster_of, until
from waystation.catalog import rows
from waystation.catalog.rows import DeletedTopic
from waystation.cluster import deletions
from waystation.topics.folders import TopicFolders

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
