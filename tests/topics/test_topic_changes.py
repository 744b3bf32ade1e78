"""Changes to topics are made one after another and to their end, whoever asks and whoever hangs up in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from waystation.broker.broker import Broker
from waystation.catalog.sqlite import SqliteCatalog
from waystation.config import BrokerSettings
from waystation.errors import AlreadyExists
from waystation.world.world import real_world

Work = Callable[[Broker], Coroutine[Any, Any, None]]


def with_broker(root: Path, work: Work) -> None:
    async def main() -> None:
        world = real_world()
        broker = Broker(world, str(root), BrokerSettings(), SqliteCatalog(str(root), world.random))
        await broker.start()
        try:
            await asyncio.wait_for(work(broker), 30)
        finally:
            await broker.stop()

    asyncio.run(main())


def is_gone(folder: str) -> bool:
    return not Path(folder).exists()


async def hang_up(work: Coroutine[Any, Any, Any]) -> None:
    """Begins the work and cancels it, as a connection that ends does with what it had asked for."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_topic_can_be_created_after_its_first_creator_hung_up(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        await hang_up(broker.topics.create("a", 2))
        while "a" not in broker.topics:  # it is being made, or it was not: then this makes it
            try:
                await broker.topics.create("a", 2)
            except AlreadyExists:
                await asyncio.sleep(0.01)
        assert len(broker.topics.get("a").partitions) == 2

    with_broker(tmp_path, work)


def test_topic_is_wholly_deleted_when_its_deleter_hangs_up(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        folder = (await broker.topics.create("a", 1)).folder
        told: list[str] = []
        broker.topics.subscribe_deletions(told.extend)
        await hang_up(broker.topics.delete("a"))
        for _ in range(200):
            if told and is_gone(folder):
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"told={told} folder is gone={is_gone(folder)}")

    with_broker(tmp_path, work)


def test_growing_and_altering_at_once_keeps_both(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        await broker.topics.create("a", 1)
        await asyncio.gather(broker.topics.add_partitions("a", 3), broker.topics.alter("a", {"retention.ms": "5"}))
        (row,) = [row for row in broker.catalog.topics() if row.name == "a"]
        assert (row.partitions, row.overrides) == (3, {"retention.ms": "5"})
        assert (len(broker.topics.get("a").partitions), broker.topics.get("a").overrides) == (3, {"retention.ms": "5"})

    with_broker(tmp_path, work)


def test_topic_grown_twice_at_once_has_each_partition_once(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        await broker.topics.create("a", 1)
        await asyncio.gather(
            broker.topics.add_partitions("a", 3), broker.topics.add_partitions("a", 4), return_exceptions=True
        )
        assert [one.index for one in broker.topics.get("a").partitions] == [0, 1, 2, 3]
        (row,) = [row for row in broker.catalog.topics() if row.name == "a"]
        assert row.partitions == 4

    with_broker(tmp_path, work)


def test_two_changes_of_settings_at_once_keep_both(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        await asyncio.gather(
            broker.alter_settings({"num.partitions": "2"}), broker.alter_settings({"log.retention.ms": "5"})
        )
        assert broker.catalog.settings() == {"num.partitions": "2", "log.retention.ms": "5"}

    with_broker(tmp_path, work)


def test_topic_deleted_while_it_grows_leaves_nothing(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        folder = (await broker.topics.create("a", 1)).folder
        await asyncio.gather(broker.topics.add_partitions("a", 3), broker.topics.delete("a"), return_exceptions=True)
        assert [row.name for row in broker.catalog.topics() if not row.internal] == []
        assert is_gone(folder)

    with_broker(tmp_path, work)
