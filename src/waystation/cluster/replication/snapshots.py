"""Snapshots of queue shards, copied to followers: without one, a shard's log says nothing once its start has moved.

A leader frees the beginning of a shard's log when a snapshot says what was there. A follower that does the same has to
have that snapshot, or it could never lead the shard. So a follower takes the leader's newest one before it moves the
start of its own log, and before it begins again behind the leader's start, as a new replica does. A snapshot that has
its name speaks only of what is below the high watermark: whoever may lead has that in its log.

What it had of its own is removed when it begins again: that may speak of a history that is no more.

Both sides are here; they run on the loop, and the files are read and written on a thread.
"""

from __future__ import annotations

from collections.abc import Callable

from waystation.cluster.links.link import LinkLost, NodeLink
from waystation.cluster.links.peer import Answer, Key, PeerRefusal, SnapshotAsk, SnapshotPart
from waystation.cluster.replication.led import Led
from waystation.encryption.key_ring import KeyRing
from waystation.encryption.sealed_file import SealedWriter, read_opened
from waystation.errors import Corrupt, NotFound, NotLeader, StorageFailed
from waystation.observe.events import event_logger
from waystation.queues.shard.snapshot import SUFFIX
from waystation.topics.partitions.partition import Partition, log_of
from waystation.topics.topics import QUEUES_TOPIC
from waystation.world import World
from waystation.world.disk import Disk

logger = event_logger("waystation.replication")

PART_BYTES = 1024 * 1024
"""What a snapshot takes of memory while it is copied, on either side."""
BESIDE = "snapshot.copied"
ANSWER_S = 10.0


def has_snapshots(partition: Partition) -> bool:
    """Whether its log is replayed from a snapshot on, and not from its start."""
    return partition.topic.name == QUEUES_TOPIC


# -- the leader --------------------------------------------------------------------------------------------------------


class SnapshotServer:
    """One per node."""

    def __init__(self, world: World, led: Callable[[Key], Led | None]) -> None:
        self._world = world
        self._led = led

    async def give(self, asked: SnapshotAsk) -> SnapshotPart:
        """NotLeader; NotFound: there is none, or not this one any more."""
        led = self._led((asked.topic, asked.index))
        if led is None or led.state.epoch != asked.epoch:
            raise NotLeader("this node does not lead the partition in that epoch")
        folder = log_of(led.partition).folder
        return await self._world.offload(_read, self._world.disk, folder, asked.name, asked.position, self._world.keys)


def _read(disk: Disk, folder: str, name: str, position: int, keys: KeyRing | None = None) -> SnapshotPart:
    names = sorted(one for one in disk.list(folder) if one.endswith(SUFFIX))
    if not names or (name and name not in names):
        raise NotFound("there is no such snapshot")
    name = name or names[-1]
    try:
        file = disk.open(f"{folder}/{name}")
    except FileNotFoundError as error:
        raise NotFound("there is a newer snapshot in its place") from error
    try:
        size, data = read_opened(keys, file, PART_BYTES, position)
        return SnapshotPart(name, size, data)
    except Corrupt as error:
        raise StorageFailed(f"{folder}/{name}: {error}") from error
    finally:
        file.close()


# -- the follower ------------------------------------------------------------------------------------------------------


async def copy(link: NodeLink, world: World, partition: Partition, epoch: int, *, alone: bool) -> None:
    """The leader's newest snapshot, durably, if there is one. `alone`: those that are here already are removed. A part
    at a time is in memory. LinkLost, StorageFailed: as before, and what was copied so far means nothing."""
    folder = log_of(partition).folder
    name, size, position, written = "", -1, 0, 0
    sealing = None if world.keys is None else SealedWriter(world.keys)
    try:
        while size < 0 or position < size:
            asked = SnapshotAsk(partition.topic.id, partition.index, epoch, name, position)
            answer = await link.ask(asked, ANSWER_S)
            if isinstance(answer, PeerRefusal) and answer.error == NotFound.__name__ and not name:
                break  # its log is whole
            part = _part(answer)
            if size >= 0 and part.size != size:
                raise LinkLost("a snapshot was replaced while it was copied")
            if not part.data and position < part.size:
                raise LinkLost("a snapshot ended before its end")
            name, size = part.name, part.size
            written += await world.offload(_write, world.disk, folder, part.data, written, sealing)
            position += len(part.data)
        await world.offload(_keep, world.disk, folder, name, alone)
    except OSError as error:
        raise StorageFailed(f"{folder}: a snapshot cannot be written: {error.strerror or error}") from error
    if name:
        logger.info(
            "replica.snapshot_copied",
            "{topic}-{partition}: a snapshot of queues was copied from the leader",
            topic=partition.topic.name,
            partition=partition.index,
            file=name,
            bytes=size,
        )


def _part(answer: Answer) -> SnapshotPart:
    if isinstance(answer, SnapshotPart):
        return answer
    raise LinkLost(
        f"no snapshot was given: {answer.text if isinstance(answer, PeerRefusal) else type(answer).__name__}"
    )


def _write(disk: Disk, folder: str, data: bytes, position: int, sealing: SealedWriter | None) -> int:
    """Beside: it has its name when it is whole. What an earlier attempt has left is overwritten. Says how many bytes
    were written."""
    pieces = [data] if sealing is None else sealing.piece([data])
    file = disk.open(f"{folder}/{BESIDE}", create=True)
    try:
        if position == 0:
            file.truncate(0)
        file.write(pieces, position)
    finally:
        file.close()
    return sum(map(len, pieces))


def _keep(disk: Disk, folder: str, name: str, alone: bool) -> None:
    if name:
        file = disk.open(f"{folder}/{BESIDE}")
        try:
            file.sync()
        finally:
            file.close()
        disk.rename(f"{folder}/{BESIDE}", f"{folder}/{name}")
        disk.sync_folder(folder)  # before others are removed: a power cut must not leave none
    if alone:
        for other in disk.list(folder):
            if other.endswith(SUFFIX) and other != name:
                disk.remove(f"{folder}/{other}")
        disk.sync_folder(folder)
