"""A queue shard whose log has lost its beginning is led by any of its replicas: they have the snapshot that says what
was there. With the copying taken out, the audit fails.
"""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from msgspec.structs import replace

from tests.broker.kit import run
from tests.cluster import in_process
from tests.cluster.in_process import Cluster, cluster_of, until
from waystation.broker.broker import Broker
from waystation.cluster.links.link import NodeLink
from waystation.cluster.replication import snapshots
from waystation.encryption.key_ring import KeyRing
from waystation.encryption.sealed_file import MAGIC
from waystation.message import Message
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.shards import Shards
from waystation.queues.shard.snapshot import SUFFIX
from waystation.topics.partitions.partition import Partition
from waystation.topics.topics import QUEUES_TOPIC
from waystation.world import SystemRandom, World, real_world
from waystation.world.disk import OsDisk

pytestmark = pytest.mark.timeout(120)

NAME = "jobs"
INDEX = crc32c(NAME.encode()) % 3


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """As followers that have just started: they have applied nothing, and need the snapshot to lead."""
    monkeypatch.setattr(Shards, "follow", lambda self, partition: None)


async def shard_led(cluster: Cluster, deadline_s: float = 20.0) -> int:
    def found() -> int | None:
        leads = [one for one, broker in cluster.brokers.items() if broker.shards.find(INDEX) is not None]
        return leads[0] if len(leads) == 1 else None

    return await until(found, deadline_s)


async def fill_and_cut_back(broker: Broker) -> None:
    """Three messages live, a thousand are done, and the log has forgotten those."""
    await broker.queues.declare(NAME, QueueSettings())
    await broker.queues.put_durable(NAME, [Message(b"%d" % number) for number in range(1000)])
    getter = broker.queues.getter(NAME, "worker")
    taken = getter.take(1000)
    settled = getter.settle(Verdict.ACK, [(one.tag, 1) for one in taken])
    await broker.durable(settled.receipt)
    await broker.queues.put_durable(NAME, [Message(b"alive %d" % number) for number in range(3)])
    (checkpointer,) = [led.checkpointer for index, led in broker.shards._led.items() if index == INDEX]
    await checkpointer.cut_back()


def living(broker: Broker) -> list[bytes]:
    return [one.message.payload for one in broker.queues.getter(NAME, "audit").take(2000)]


async def left_after_failover(folder: Path, deadline_s: float = 20.0) -> list[bytes]:
    async with cluster_of(folder) as cluster:
        await cluster.in_sync(QUEUES_TOPIC, {1, 2, 3}, INDEX)
        node = await shard_led(cluster)
        await fill_and_cut_back(cluster.brokers[node])
        begin = cluster.partition(node, QUEUES_TOPIC, INDEX).start_offset
        assert begin > 0
        await cluster.brokers[node].queues.put_durable(NAME, [Message(b"and one more")])
        others = [one for one in (1, 2, 3) if one != node]
        await until(lambda: all(cluster.partition(one, QUEUES_TOPIC, INDEX).start_offset == begin for one in others))
        await cluster.kill(node)
        return living(cluster.brokers[await shard_led(cluster, deadline_s)])


def test_a_follower_leads_a_shard_whose_log_has_lost_its_beginning(tmp_path: Path) -> None:
    assert run(left_after_failover(tmp_path)) == [b"alive 0", b"alive 1", b"alive 2", b"and one more"]


def test_nodes_with_keys_of_their_own_copy_snapshots_and_encrypt_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count(1)

    def encrypting() -> World:
        number = next(numbers)
        return replace(real_world(), keys=KeyRing({number: os.urandom(32)}, number, SystemRandom()))

    monkeypatch.setattr(in_process, "real_world", encrypting)
    monkeypatch.setattr(snapshots, "PART_BYTES", 100)
    assert run(left_after_failover(tmp_path)) == [b"alive 0", b"alive 1", b"alive 2", b"and one more"]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.suffix == SUFFIX for file in files)
    assert [file for file in files if b"alive" in file.read_bytes()] == []
    assert all(file.read_bytes()[:4] == MAGIC for file in files if file.suffix == SUFFIX)


def test_the_audit_sees_a_follower_without_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(link: NodeLink, world: World, partition: Partition, epoch: int, *, alone: bool) -> None:
        pass

    monkeypatch.setattr(snapshots, "copy", nothing)
    with pytest.raises(TimeoutError):
        run(left_after_failover(tmp_path, 3.0))


class Refuses:
    """A disk, or a file of it, whose next call of one verb fails."""

    def __init__(self, inner: Any, verb: str, struck: list[str]) -> None:
        self._inner, self._verb, self._struck = inner, verb, struck

    def __getattr__(self, name: str) -> Any:
        if name == self._verb and not self._struck:
            self._struck.append(name)
            raise OSError(errno.EIO, "Input/output error")
        found = getattr(self._inner, name)
        opened = lambda path, **named: Refuses(found(path, **named), self._verb, self._struck)  # noqa: E731
        return opened if name == "open" else found


@pytest.mark.parametrize(
    ("side", "verb"),
    [
        ("_read", "list"),
        ("_read", "open"),
        ("_read", "size"),
        ("_read", "read"),
        ("_write", "open"),
        ("_write", "truncate"),
        ("_write", "write"),
        ("_keep", "open"),
        ("_keep", "sync"),
        ("_keep", "rename"),
        ("_keep", "sync_folder"),
    ],
)
def test_a_snapshot_is_copied_though_the_disk_refuses_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str, verb: str
) -> None:
    original, struck = getattr(snapshots, side), []  # type: ignore[var-annotated]
    monkeypatch.setattr(snapshots, side, lambda disk, *rest: original(Refuses(disk, verb, struck), *rest))
    assert run(left_after_failover(tmp_path)) == [b"alive 0", b"alive 1", b"alive 2", b"and one more"]
    assert struck == [verb]


@pytest.mark.parametrize("verb", ["list", "remove"])
def test_older_snapshots_are_removed_by_the_next_attempt_if_the_disk_refuses(tmp_path: Path, verb: str) -> None:
    old, new, disk, folder = f"1{SUFFIX}", f"2{SUFFIX}", OsDisk(), str(tmp_path)
    (tmp_path / old).write_bytes(b"old")
    snapshots._write(disk, folder, b"new", 0, None)
    with pytest.raises(OSError, match="Input/output"):
        snapshots._keep(Refuses(disk, verb, []), folder, new, True)
    assert (tmp_path / new).read_bytes() == b"new"
    snapshots._write(disk, folder, b"new", 0, None)
    snapshots._keep(disk, folder, new, True)
    assert [file.name for file in tmp_path.iterdir()] == [new]


def test_a_snapshot_is_copied_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, parts = snapshots._write, []

    def counted(disk: Any, folder: str, data: bytes, *rest: Any) -> int:
        parts.append(len(data))
        return original(disk, folder, data, *rest)

    monkeypatch.setattr(snapshots, "PART_BYTES", 50)
    monkeypatch.setattr(snapshots, "_write", counted)
    assert run(left_after_failover(tmp_path)) == [b"alive 0", b"alive 1", b"alive 2", b"and one more"]
    assert len(parts) > 2
    assert max(parts) == 50


def test_what_is_left_of_a_longer_copy_is_not_part_of_the_next_one(tmp_path: Path) -> None:
    disk, folder = OsDisk(), str(tmp_path)
    snapshots._write(disk, folder, b"a copy that was given up", 0, None)
    snapshots._write(disk, folder, b"ab", 0, None)
    snapshots._write(disk, folder, b"cd", 2, None)
    snapshots._keep(disk, folder, f"3{SUFFIX}", False)
    assert (tmp_path / f"3{SUFFIX}").read_bytes() == b"abcd"


def test_a_new_replica_gets_the_snapshot_and_leads(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as cluster:
            await cluster.in_sync(QUEUES_TOPIC, {1, 2}, INDEX)
            node = await shard_led(cluster)
            await fill_and_cut_back(cluster.brokers[node])
            await cluster.start(3)
            await cluster.in_sync(QUEUES_TOPIC, {1, 2, 3}, INDEX)
            topic_id = cluster.brokers[3].topics.get(QUEUES_TOPIC).id
            await cluster.brokers[3].operations.reassign(topic_id, INDEX, [3, 1, 2])
            await until(lambda: cluster.brokers[3].shards.find(INDEX) is not None)
            assert living(cluster.brokers[3]) == [b"alive 0", b"alive 1", b"alive 2"]

    run(main())
