"""A catalog that is behind, ahead or gone never costs a message: what it does not know is set aside and comes back."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.broker.kit import broker_on, run, send, snapshot, values
from tests.catalog.old_catalogs import make_version_3
from tests.simulation.catalog import DiskCatalog
from tests.simulation.disk import Fault, SimDisk
from tests.simulation.world import Simulation
from waystation.broker.broker import Broker
from waystation.broker.lost_restoring import find_lost, lost_and_found
from waystation.catalog import DeletedTopic, TopicRow
from waystation.config import BrokerSettings
from waystation.errors import AlreadyExists, Corrupt, Invalid, NotFound, StorageFailed
from waystation.groups.machines.calls import OffsetToCommit
from waystation.health.health import health_of
from waystation.message import Message
from waystation.topics.folders import folder_name
from waystation.topics.partitions.partition import log_of

ROOT = "/data"
CATALOG = "catalog.sqlite"


def older_catalog(tmp_path: Path) -> Path:
    """A data folder whose catalog was put back from a backup that is older than the topic `late`."""
    data = tmp_path / "data"

    async def main() -> None:
        async with broker_on(data) as broker:
            await broker.topics.create("early", 1)
            send(broker, "early", b"one")
        shutil.copy(data / CATALOG, tmp_path / "backup")
        async with broker_on(data) as broker:
            await broker.topics.create("late", 2, {"retention.ms": "-1"})
            send(broker, "late", b"kept")
            await broker.groups.commit_offsets("readers", [OffsetToCommit("late", 0, 1)])

    run(main())
    shutil.copy(tmp_path / "backup", data / CATALOG)
    return data


def folder_of(data: Path, name: str, where: str = "topics") -> Path:
    (found,) = (data / where).glob(f"{name}.*")
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def reasons(broker: Broker) -> list[str]:
    return [reason.what for reason in health_of(broker).reasons]


def test_a_topic_that_the_catalog_does_not_know_is_set_aside_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = older_catalog(tmp_path)
    before = folder_of(data, "late")
    files = content(before)

    async def main() -> None:
        for _ in range(2):  # the second start finds nothing more to do, and still says so
            async with broker_on(data) as broker:
                assert values(broker, "early") == [b"one"]
                assert "late" not in broker.topics
                assert not before.exists()
                assert content(data / "lost+found" / before.name) == files
                (what,) = reasons(broker)
                assert before.name in what

    run(main())
    (line,) = [record.getMessage() for record in caplog.records if before.name in record.getMessage()]
    assert f"waystation lost restore {data} {before.name}" in line


def restore(data: Path, *names: str, new_name: str | None = None) -> list[TopicRow]:
    with lost_and_found(str(data)) as lost:
        return [lost.restore(name, new_name) for name in names or lost.names()]


def start_and_stop(data: Path) -> None:
    async def main() -> None:
        async with broker_on(data):
            pass

    run(main())


def test_a_restored_topic_has_its_messages_its_settings_and_its_offsets(tmp_path: Path) -> None:
    data = older_catalog(tmp_path)
    name = folder_of(data, "late").name
    start_and_stop(data)
    (lost,) = find_lost(str(data))
    assert (lost.folder, lost.topic, lost.partitions, lost.exact) == (name, "late", 2, True)
    (row,) = restore(data)
    assert folder_name(row) == name

    async def main() -> None:
        for _ in range(2):
            async with broker_on(data) as broker:
                topic = broker.topics.get("late")
                assert (topic.row, len(topic.partitions)) == (row, 2)
                assert topic.overrides == {"retention.ms": "-1"}
                assert values(broker, "late")[0] == b"kept"
                (offset,) = broker.groups.fetch_offsets("readers", [("late", 0)])
                assert offset.offset == 1
                assert reasons(broker) == []
                send(broker, "late", b"more")

    run(main())
    with pytest.raises(NotFound, match="waystation lost list"):
        restore(data, name)


def test_a_folder_of_an_older_version_is_restored_by_its_name_and_kept_for_ever(tmp_path: Path) -> None:
    data = older_catalog(tmp_path)
    folder = folder_of(data, "late")
    (folder / "topic.json").unlink()
    start_and_stop(data)
    assert [(one.topic, one.partitions, one.exact) for one in find_lost(str(data))] == [("late", 2, False)]
    (row,) = restore(data)
    assert (row.name, row.partitions, row.internal) == ("late", 2, False)
    assert row.overrides == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert folder_name(row) == folder.name

    async def main() -> None:
        async with broker_on(data) as broker:
            assert values(broker, "late") == [b"kept"]

    run(main())


def test_a_name_that_is_longer_than_its_folders_is_whole_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    names = ["x" * 240, "x" * 239 + "y"]

    async def main() -> None:
        async with broker_on(data):
            pass
        shutil.copy(data / CATALOG, tmp_path / "backup")
        async with broker_on(data) as broker:
            for name in names:
                await broker.topics.create(name, 1)
                send(broker, name, name.encode())
        shutil.copy(tmp_path / "backup", data / CATALOG)
        async with broker_on(data):
            pass
        bare, described = sorted((data / "lost+found").iterdir())
        kept = described.joinpath("topic.json").read_text()
        bare.joinpath("topic.json").unlink()
        with pytest.raises(Invalid, match="--as"):
            restore(data, bare.name)
        (other,) = [name for name in names if name not in kept]
        restore(data, bare.name, new_name=other)
        restore(data, described.name)
        async with broker_on(data) as broker:
            assert [values(broker, name) for name in names] == [[name.encode()] for name in names]

    run(main())


def test_a_name_that_is_taken_is_not_taken_twice(tmp_path: Path) -> None:
    data = older_catalog(tmp_path)

    async def take() -> None:
        async with broker_on(data) as broker:
            await broker.topics.create("late", 1)
            send(broker, "late", b"new")

    run(take())
    (name,) = [one.folder for one in find_lost(str(data))]
    with pytest.raises(AlreadyExists, match="--as"):
        restore(data, name)
    restore(data, name, new_name="late.before")

    async def main() -> None:
        async with broker_on(data) as broker:
            assert values(broker, "late") == [b"new"]
            assert values(broker, "late.before") == [b"kept"]

    run(main())


def test_what_is_set_aside_does_not_replace_what_was_set_aside_before(tmp_path: Path) -> None:
    data = older_catalog(tmp_path)
    folder = folder_of(data, "late")
    shutil.copytree(folder, data / "lost+found" / folder.name)
    (data / "lost+found" / folder.name / "mark").touch()
    start_and_stop(data)
    names = sorted(one.folder for one in find_lost(str(data)))
    assert names == [folder.name, f"{folder.name}~2"]
    assert (data / "lost+found" / folder.name / "mark").exists()
    assert not (data / "lost+found" / names[1] / "mark").exists()
    first = restore(data, names[0])[0]
    copy = restore(data, names[1], new_name="copy")[0]
    assert first.id != copy.id

    async def main() -> None:
        async with broker_on(data) as broker:
            assert values(broker, "late") == values(broker, "copy") == [b"kept"]

    run(main())


def test_a_topic_comes_back_by_itself_with_the_catalog_that_knows_it(tmp_path: Path) -> None:
    data = older_catalog(tmp_path)
    newer = tmp_path / "newer"

    async def main() -> None:
        shutil.copytree(data, tmp_path / "other")
        restored = tmp_path / "other"
        async with broker_on(restored):
            pass
        restore(restored)
        shutil.copy(restored / CATALOG, newer)
        async with broker_on(data) as broker:
            assert "late" not in broker.topics
        shutil.copy(newer, data / CATALOG)
        async with broker_on(data) as broker:
            assert values(broker, "late") == [b"kept"]
            assert reasons(broker) == []
        assert find_lost(str(data)) == []

    run(main())


def test_partitions_that_an_older_catalog_does_not_know_are_there(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def main() -> None:
        async with broker_on(data) as broker:
            await broker.topics.create("t", 1)
        shutil.copy(data / CATALOG, tmp_path / "backup")
        async with broker_on(data) as broker:
            await broker.topics.add_partitions("t", 3)
            broker.messages.publish("t", [Message(b"kept")], partition=2)
            await broker.commit.join()
        shutil.copy(tmp_path / "backup", data / CATALOG)
        for _ in range(2):
            async with broker_on(data) as broker:
                assert len(broker.topics.get("t").partitions) == 3
                assert values(broker, "t", 2) == [b"kept"]

    run(main())


def test_without_any_catalog_everything_but_settings_comes_back(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def fill() -> None:
        async with broker_on(data) as broker:
            await broker.topics.create("t", 2)
            send(broker, "t", b"kept")
            await broker.groups.commit_offsets("readers", [OffsetToCommit("t", 0, 1)])
            await broker.queues.declare("jobs")
            broker.queues.put("jobs", [Message(b"work")])
            await broker.commit.join()

    run(fill())
    (data / CATALOG).unlink()
    with pytest.raises(Corrupt, match=r"waystation lost restore .* --all"):
        start_and_stop(data)
    (data / "lost+found").mkdir()
    for folder in (data / "topics").iterdir():
        folder.rename(data / "lost+found" / folder.name)
    assert len(restore(data)) == 5

    async def main() -> None:
        async with broker_on(data) as broker:
            assert values(broker, "t") == [b"kept"]
            assert broker.groups.fetch_offsets("readers", [("t", 0)])[0].offset == 1
            assert broker.queues.describe("jobs").ready == 1
            assert reasons(broker) == []

    run(main())


def test_a_folder_that_cannot_be_moved_stays_where_it_is_and_can_be_restored_there(tmp_path: Path) -> None:
    data = older_catalog(tmp_path)
    folder = folder_of(data, "late")
    (data / "lost+found").write_text("not a folder")  # as one of root's, that others may not write to

    async def main() -> None:
        async with broker_on(data) as broker:
            assert "late" not in broker.topics
            (what,) = reasons(broker)
            assert str(folder) in what
        assert folder.exists()
        restore(data, folder.name)
        async with broker_on(data) as broker:
            assert values(broker, "late") == [b"kept"]

    run(main())


def test_a_folder_that_a_deletion_of_an_older_version_left_is_set_aside(tmp_path: Path) -> None:
    """Format 3 did not remember deletions: what it left cannot be told from a topic that its catalog has lost."""
    data = older_catalog(tmp_path)
    folder = folder_of(data, "late")
    for path in data.rglob("topic.json"):
        path.unlink()
    make_version_3(data / CATALOG)
    start_and_stop(data)
    assert [one.folder for one in find_lost(str(data))] == [folder.name]
    assert len(list((data / "topics").glob("*/topic.json"))) == len(list((data / "topics").iterdir()))


# -- a catalog that is ahead of the files ---------------------------------------------------------------------------


def test_a_topic_whose_records_were_taken_away_is_not_recreated(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def fill() -> None:
        async with broker_on(data) as broker:
            await broker.topics.create("t", 2)
            send(broker, "t", b"kept")

    run(fill())
    folder = folder_of(data, "t")
    shutil.move(folder, tmp_path / "away")
    with pytest.raises(Corrupt, match=f"mkdir -p '{folder}/0'"):
        start_and_stop(data)
    assert not folder.exists()
    whole = snapshot(data, "whole")
    shutil.move(tmp_path / "away", whole / "topics" / folder.name)
    (folder / "0").mkdir(parents=True)

    async def main() -> None:
        async with broker_on(whole) as broker:
            assert values(broker, "t") == [b"kept"]
        async with broker_on(data) as broker:
            assert values(broker, "t") == []
            assert len(broker.topics.get("t").partitions) == 2

    run(main())


def test_a_topic_that_an_older_catalog_still_lists_starts_empty_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"

    async def main() -> None:
        async with broker_on(data) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"old")
        shutil.copy(data / CATALOG, tmp_path / "backup")
        async with broker_on(data) as broker:
            await broker.topics.delete("t")
        shutil.copy(tmp_path / "backup", data / CATALOG)
        async with broker_on(data) as broker:
            assert values(broker, "t") == []

    run(main())
    assert any("'t' is in the catalog and has no files" in record.getMessage() for record in caplog.records)


# -- deletions, on a disk that fails --------------------------------------------------------------------------------


class Lives:
    """Brokers one after the other on a simulated disk, with their catalog on it."""

    def __init__(self) -> None:
        self.disk = SimDisk(1)

    def live(self, life: Callable[[Broker], Awaitable[None]], *, crash: bool = False) -> None:
        simulation = Simulation(1, self.disk)

        async def main() -> None:
            broker = Broker(simulation.world, ROOT, BrokerSettings(), DiskCatalog(self.disk, ROOT))
            await broker.start()
            await life(broker)
            if not crash:
                await broker.stop()

        simulation.run(main())
        self.disk = self.disk.power_cut() if crash else self.disk.process_crash()

    def folders(self) -> list[str]:
        return [name for name in self.disk.list(f"{ROOT}/topics") if not name.startswith("__")]


async def publish(broker: Broker, topic: str) -> None:
    await broker.durable(*broker.messages.publish(topic, [Message(b"kept")]).receipts)


@pytest.mark.parametrize("kind", ["rmdir", "remove", "sync_folder"])
def test_files_that_cannot_be_removed_are_removed_at_the_next_start(kind: str) -> None:
    lives = Lives()

    async def delete(broker: Broker) -> None:
        topic = await broker.topics.create("t", 1)
        await publish(broker, "t")
        told: list[list[str]] = []
        broker.topics.subscribe_deletions(told.append)
        path = f"{ROOT}/topics" if kind == "sync_folder" else "/topics/t."
        lives.disk.inject(Fault(kind, path, errno.EIO))
        await broker.topics.delete("t")
        assert told == [["t"]]
        assert broker.catalog.deleted_topics() == [DeletedTopic("t", topic.id)]

    async def look(broker: Broker) -> None:
        assert "t" not in broker.topics
        assert broker.catalog.deleted_topics() == []
        assert broker.topics.folders.lost() == []
        assert lives.folders() == []

    lives.live(delete, crash=True)
    lives.live(look)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_deletion_that_failed_costs_no_message_that_is_acknowledged_after_it(failures: int) -> None:
    """The first sync that fails leaves a catalog that may say either; a second one, one that cannot be put right."""
    lives = Lives()

    async def fail(broker: Broker) -> None:
        await broker.topics.create("t", 1)
        lives.disk.inject(Fault("sync_folder", ROOT, errno.EIO, times=failures))
        with pytest.raises(StorageFailed):
            await broker.topics.delete("t")
        if failures == 1:
            await publish(broker, "t")
        else:
            with pytest.raises(StorageFailed, match="deleted"):
                await publish(broker, "t")

    async def look(broker: Broker) -> None:
        if failures == 1:
            assert log_of(broker.topics.get("t").partition(0)).end_offset == 1

    lives.live(fail, crash=failures == 1)
    lives.live(look)


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "mkdir", "sync_folder"])
def test_a_creation_that_failed_leaves_nothing(kind: str) -> None:
    lives = Lives()

    async def fail(broker: Broker) -> None:
        handles = len(lives.disk.open_files)
        fault = lives.disk.inject(Fault(kind, "/topics/t.", errno.EIO))
        with pytest.raises((StorageFailed, OSError)):
            await broker.topics.create("t", 3)
        fault.times = 0
        assert "t" not in broker.topics
        assert lives.folders() == []
        assert len(lives.disk.open_files) == handles
        await broker.topics.create("t", 2)
        await publish(broker, "t")

    async def look(broker: Broker) -> None:
        assert [len(topic.partitions) for topic in broker.topics if not topic.internal] == [2]
        assert broker.topics.folders.lost() == []
        assert broker.catalog.deleted_topics() == []

    lives.live(fail, crash=True)
    lives.live(look)
