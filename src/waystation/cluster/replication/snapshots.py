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

from waystation.cluster.links.link import Link, LinkLost
from waystation.cluster.links.peer import Answer, Key, Refused, SnapshotAsk, SnapshotPart
from waystation.cluster.replication.led import Led
from waystation.errors import NotFound, NotLeader, StorageFailed
from waystation.observe.events import event_logger
from waystation.queues.shard.snapshot import SUFFIX
from waystation.topics.partitions.partition import Partition, log_of
from waystation.topics.topics import QUEUES_TOPIC
from waystation.world import World
from waystation.world.disk import Disk

logger = event_logger("waystation.replication")

PART_BYTES = 1024 * 1024
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
        return await self._world.offload(_read, self._world.disk, folder, asked.name, asked.position)


def _read(disk: Disk, folder: str, name: str, position: int) -> SnapshotPart:
    names = sorted(one for one in disk.list(folder) if one.endswith(SUFFIX))
    if not names or (name and name not in names):
        raise NotFound("there is no such snapshot")
    name = name or names[-1]
    try:
        file = disk.open(f"{folder}/{name}")
    except FileNotFoundError as error:
        raise NotFound("there is a newer snapshot in its place") from error
    try:
        return SnapshotPart(name, file.size(), file.read(PART_BYTES, position))
    finally:
        file.close()


# -- the follower ------------------------------------------------------------------------------------------------------


async def copy(link: Link, world: World, partition: Partition, epoch: int, *, alone: bool) -> None:
    """The leader's newest snapshot, durably, if there is one. `alone`: those that are here already are removed.
    LinkLost, StorageFailed: as before, or with a part of it that means nothing."""
    folder = log_of(partition).folder
    name, size, data = "", -1, bytearray()
    while size < 0 or len(data) < size:
        asked = SnapshotAsk(partition.topic.id, partition.index, epoch, name, len(data))
        answer = await link.ask(asked, ANSWER_S)
        if isinstance(answer, Refused) and answer.error == NotFound.__name__ and not name:
            break  # its log is whole
        part = _part(answer)
        name, size = part.name, part.size
        data += part.data
        if not part.data and len(data) < size:
            raise LinkLost("a snapshot ended before its end")
    try:
        await world.offload(_keep, world.disk, folder, name, bytes(data), alone)
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
    raise LinkLost(f"no snapshot was given: {answer.text if isinstance(answer, Refused) else type(answer).__name__}")


def _keep(disk: Disk, folder: str, name: str, data: bytes, alone: bool) -> None:
    if name:
        disk.replace_file(f"{folder}/{name}", data)
    if alone:
        for other in disk.list(folder):
            if other.endswith(SUFFIX) and other != name:
                disk.remove(f"{folder}/{other}")
    disk.sync_folder(folder)
