"""Topics come, grow, change and go, and a restart or a crash at any moment leaves them whole."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.broker.kit import HandClock, broker_on, run, send, snapshot, values
from waystation.errors import (
    AlreadyExists,
    InvalidPartitions,
    InvalidSetting,
    InvalidTopicName,
    NotAllowed,
    UnknownTopic,
    UnknownTopicId,
)
from waystation.topics.partitions.partition import log_of


def is_gone(folder: str) -> bool:
    return not Path(folder).exists()


def test_a_topic_and_its_records_survive_a_restart_and_a_kill(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            topic = await broker.topics.create("orders", 3, {"retention.ms": "-1"})
            for i in range(3):
                send(broker, "orders", b"%d" % i)
            await broker.commit.join()
            killed = snapshot(tmp_path / "a", "killed")
        for folder in (tmp_path / "a", killed):
            async with broker_on(folder) as broker:
                again = broker.topics.get("orders")
                assert (again.id, len(again.partitions), again.overrides) == (topic.id, 3, {"retention.ms": "-1"})
                assert again.settings.retention_ms == -1
                assert broker.topics.by_id(topic.id) is again
                assert values(broker, "orders") == [b"0", b"1", b"2"]

    run(main())


def test_partitions_are_added_and_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 2)
            told: list[int] = []
            broker.topics.subscribe_changes(lambda: told.append(len(broker.topics.get("t").partitions)))
            await broker.topics.add_partitions("t", 5)
            assert told == [5]
            for total in (5, 1, 0, 100_000):
                with pytest.raises(InvalidPartitions):
                    await broker.topics.add_partitions("t", total)
            broker.topics.get("t").partition(4)
            with pytest.raises(UnknownTopic):
                broker.topics.get("t").partition(5)
        async with broker_on(tmp_path / "a") as broker:
            assert len(broker.topics.get("t").partitions) == 5

    run(main())


def test_settings_change_at_once_and_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"segment.bytes": "2048"})
            log = log_of(broker.topics.get("t").partition(0))
            assert log.settings.segment_bytes == 2048
            await broker.topics.alter("t", {"segment.bytes": "4096"})
            assert log.settings.segment_bytes == 4096
            with pytest.raises(InvalidSetting):
                await broker.topics.alter("t", {"segment.bytes": "7"})
            with pytest.raises(InvalidSetting, match=r"did you mean 'segment\.bytes'"):
                await broker.topics.alter("t", {"segment.byte": "4096"})
            assert log.settings.segment_bytes == 4096
            await broker.alter_settings({"log.retention.ms": "77"})
            assert log.settings.retention_ms == 77
        async with broker_on(tmp_path / "a") as broker:
            settings = broker.topics.get("t").settings
            assert (settings.segment_bytes, settings.retention_ms) == (4096, 77)

    run(main())


def test_a_topic_that_is_deleted_and_made_again_shows_nothing_of_its_past(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            first = await broker.topics.create("t", 1)
            send(broker, "t", b"old")
            waiting = asyncio.ensure_future(broker.commit.durable(log_of(first.partition(0)), 2))
            await broker.topics.delete("t")
            with pytest.raises(UnknownTopic):
                await waiting
            with pytest.raises(UnknownTopic):
                broker.topics.get("t")
            with pytest.raises(UnknownTopicId):
                broker.topics.by_id(first.id)
            with pytest.raises(UnknownTopic):
                first.partition(0).append(bytearray(100), None)  # type: ignore[arg-type]
            second = await broker.topics.create("t", 1)
            assert second.id != first.id
            assert values(broker, "t") == []
            send(broker, "t", b"new")
            assert is_gone(first.folder)
        async with broker_on(tmp_path / "a") as broker:
            assert values(broker, "t") == [b"new"]

    run(main())


def test_a_crash_after_the_catalog_and_before_the_files_makes_them_at_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            topic = await broker.topics.create("t", 2)
            await broker.topics.create("grown", 3)
        shutil.rmtree(topic.folder)
        shutil.rmtree(next((tmp_path / "a" / "topics").glob("grown.*")) / "2")
        async with broker_on(tmp_path / "a") as broker:
            assert values(broker, "t", 1) == []
            assert send(broker, "t", b"v").base_offset == 0
            assert len(broker.topics.get("grown").partitions) == 3

    run(main())


def test_a_crash_between_the_catalog_and_the_removal_of_files_ends_it_at_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            topic = await broker.topics.create("t", 2)
            send(broker, "t", b"old")
            await broker.follower.stop()  # it would react to the deletion
            await broker.world.offload(broker.catalog.delete_topic, topic.id)  # and then the process dies
            killed = snapshot(tmp_path / "a", "killed")
        async with broker_on(killed) as broker:
            assert "t" not in broker.topics
            assert is_gone(topic.folder.replace(str(tmp_path / "a"), str(killed)))
            await broker.topics.create("t", 1)
            assert values(broker, "t") == []

    run(main())


def test_many_changes_at_once_are_made_one_after_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            results = await asyncio.gather(*(broker.topics.create("t", 1) for _ in range(5)), return_exceptions=True)
            assert sum(isinstance(result, AlreadyExists) for result in results) == 4
            for _ in range(3):
                await asyncio.gather(broker.topics.delete("t"), _patiently(broker.topics.create, "t"))
            assert [row.name for row in broker.catalog.topics()].count("t") == 1

    run(main())


async def _patiently(create: object, name: str) -> None:
    while True:
        try:
            await create(name, 1)  # type: ignore[operator]
        except AlreadyExists:
            await asyncio.sleep(0)
        else:
            return


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "a\0b", "a:b"])
def test_names_that_cannot_be_are_refused(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            with pytest.raises(InvalidTopicName):
                await broker.topics.create(name, 1)

    run(main())


def test_long_and_odd_names_are_fine(tmp_path: Path) -> None:
    names = ["x" * 249, "x" * 248 + "y", "...", "a.b-c_d", "UPPER", "upper"]

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            for name in names:
                await broker.topics.create(name, 1)
                send(broker, name, name.encode())
            with pytest.raises(InvalidTopicName):
                await broker.topics.create("a_b-c_d", 1)
        async with broker_on(tmp_path / "a") as broker:
            assert [values(broker, name) for name in names] == [[name.encode()] for name in names]

    run(main())


def test_the_brokers_own_topics_are_not_the_users(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            for name in ("__consumer_offsets", "__transaction_state"):
                with pytest.raises(NotAllowed):
                    await broker.topics.delete(name)
                with pytest.raises(NotAllowed):
                    send(broker, name, b"v", key=b"k")
                assert name not in broker.topics.names()

    run(main())


def test_records_are_deleted_up_to_an_offset_and_stay_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            for i in range(10):
                send(broker, "t", b"%d" % i)
            partition = broker.topics.get("t").partition(0)
            assert await partition.delete_records(4) == 4
            assert await partition.delete_records(2) == 4
            assert await partition.delete_records(-1) == 10
        async with broker_on(tmp_path / "a") as broker:
            log = log_of(broker.topics.get("t").partition(0))
            assert (log.start_offset, log.end_offset) == (10, 10)

    run(main())


def test_housekeeping_retires_compacts_and_notes(tmp_path: Path) -> None:
    clock = HandClock()

    async def main() -> None:
        async with broker_on(tmp_path / "a", clock) as broker:
            await broker.topics.create("old", 1, {"retention.ms": "1000", "segment.bytes": "1024"})
            await broker.topics.create("keyed", 1, {"cleanup.policy": "compact", "segment.bytes": "1024"})
            for i in range(40):
                send(broker, "old", b"x" * 200)
                send(broker, "keyed", b"%d" % i + b"x" * 200, key=b"k%d" % (i % 2))
            await broker.commit.join()
            await broker.housekeeping.checkpoint()
            await broker.housekeeping.compact()
            assert len(values(broker, "keyed")) < 10
            assert values(broker, "keyed")[-1] == b"39" + b"x" * 200
            clock.ms += 2_000
            await broker.housekeeping.retain()
            assert values(broker, "old") == []
            assert log_of(broker.topics.get("old").partition(0)).start_offset == 40
        async with broker_on(tmp_path / "a", clock) as broker:
            assert len(values(broker, "keyed")) < 10
            assert send(broker, "old", b"next").base_offset == 40

    run(main())
