"""A shard's checkpoints: a snapshot in the background, stragglers written forward, and segments freed.

What may go: segments in which no living message is, and which no replay would need, not even one from the snapshot
before the last. A message that lives on long after its neighbours (delayed for a year) would keep its segment
(`stragglers.py`). When a shard has nothing to do and little or nothing in it lives, its last segment goes, too.

A snapshot is named only when the log is durable up to everything that it says: it never knows more than the log.

A shard may be dropped while a checkpoint of it is under way. Then its queues are gone, and what was written so far
speaks of too few: it is never named, and nothing is freed for its sake.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from waystation.encryption.key_ring import NotOpened, UnknownKey
from waystation.encryption.sealed_file import SealedWriter, opened_whole
from waystation.errors import Corrupt, StorageFailed, WaystationError
from waystation.observe.events import event_logger
from waystation.queues.shard import snapshot
from waystation.queues.shard.shard import Shard
from waystation.queues.shard.snapshot import Damaged, Head, Part, Tail
from waystation.queues.shard.stragglers import Stragglers
from waystation.world import World
from waystation.world.disk import File

logger = event_logger("waystation.queues")

FIRST_BYTES = 8 * 1024 * 1024
"""New log before a snapshot is worth its while; for a shard with a large snapshot, as much as that has."""
SLICE_QUEUES = 256
SLICE_PARTS = 256
FORGET_IDS = 100_000
"""Used ids of one queue that are let go of with each snapshot; where publishes come, they do it."""
KEPT = 2


class Checkpointer:
    """One shard's. `turn` is the partition's: a checkpoint that was under way when the shard was dropped may still be
    writing to the folder when it is led again."""

    def __init__(self, shard: Shard, world: World, turn: asyncio.Lock) -> None:
        self._shard = shard
        self._partition = shard.log.partition
        self._world = world
        self._last_bytes = 0  # of the last snapshot
        self._seen_bytes = -1  # how much had been appended then
        self._looked_bytes = -1  # how much had been appended when somebody last looked
        self._turn = turn
        self._stragglers = Stragglers(shard)
        self._kept: list[tuple[int, str]] = []  # (where a replay would begin, file), the newest last

    # -- start --------------------------------------------------------------------------------------------------------

    def load(self) -> int:
        """Takes the newest intact snapshot; returns where the replay of the log begins. Blocks."""
        disk, folder = self._world.disk, self._partition.folder
        names = sorted(name for name in disk.list(folder) if name.endswith(snapshot.SUFFIX))
        for name in reversed(names):
            path = f"{folder}/{name}"
            try:
                begin = self._load_file(path)
            except (Damaged, UnknownKey, OSError) as error:
                # A flipped bit may name a key that is not there; with an old file of keys, the snapshot is a good one.
                logger.error(
                    "checkpoint.unusable",
                    "a snapshot of queues cannot be used, taking the one before it: {file}: {error}",
                    file=path,
                    error=error,
                )
                if isinstance(error, Damaged):
                    with contextlib.suppress(OSError):
                        disk.remove(path)
                continue
            self._kept.insert(0, (begin, path))
            for older in names[: names.index(name)]:
                self._kept.insert(0, (0, f"{folder}/{older}"))
            return begin
        if self._partition.start_offset > 0:
            raise Corrupt(
                f"{folder}: the log of queues begins at {self._partition.start_offset}, but no snapshot of what was"
                " before can be read; restore the folder from a backup"
            )
        return 0

    def go_on(self) -> None:
        """Instead of `load`, for a shard that followed until now: the snapshots are those that were copied meanwhile.
        How far back they reach is not known, so nothing is freed before there are two new ones. If the disk does not
        tell, they stay until the next start: that is no reason not to lead. Blocks."""
        disk, folder = self._world.disk, self._partition.folder
        with contextlib.suppress(OSError):
            names = sorted(name for name in disk.list(folder) if name.endswith(snapshot.SUFFIX))
            self._kept = [(0, f"{folder}/{name}") for name in names]
            self._last_bytes = disk.size(self._kept[-1][1]) or 0 if names else 0
        self._shard.log.replayed_bytes = 0  # it was appended here, and is counted there

    def _load_file(self, path: str) -> int:
        try:
            data = opened_whole(self._world.keys, self._world.disk.read_file(path) or b"")
        except NotOpened as error:
            raise Damaged(str(error)) from error
        begin, queues = snapshot.queues_of(data)
        if not 0 <= begin <= self._partition.written_offset:
            raise Damaged(f"it speaks of offset {begin}, but the log ends at {self._partition.written_offset}")
        if begin < self._partition.start_offset:  # it was removed, and a power cut brought it back
            raise Damaged(f"it continues at offset {begin}, but the log begins at {self._partition.start_offset}")
        for queue in queues.values():
            self._shard.adopt(queue)
        self._last_bytes = len(data)
        return begin

    # -- now and then -------------------------------------------------------------------------------------------------

    async def run(self, *, force: bool = False, forward: bool | None = None) -> None:
        """A checkpoint, if enough has happened since the last one. `forward`: look for stragglers (unless forced)."""
        async with self._turn:
            self._shard.log.check_led()
            await self._run(force=force, forward=not force if forward is None else forward)

    async def cut_back(self) -> None:
        """Lets go of all that is dead, however little that is."""
        async with self._turn:
            self._shard.log.check_led()
            await self._cut_back()

    async def _run(self, *, force: bool, forward: bool) -> None:
        appended = self._partition.appended_bytes
        idle, self._looked_bytes = appended == self._looked_bytes, appended
        if self._partition.failure is not None:
            return
        if idle and not force and await self._is_mostly_dead():
            await self._cut_back()
            return
        if appended == self._seen_bytes:
            return
        if not force and self._new_bytes(appended) < max(FIRST_BYTES, self._last_bytes):
            return
        if forward:
            await self._stragglers.write_forward()
        await self._save()
        self._seen_bytes = appended
        await self._free()

    def _new_bytes(self, appended: int) -> int:
        """Log behind the last snapshot. What was replayed at the start is such: else a broker whose lives are short
        would never get to its next one, and replay all of them each time."""
        return appended - self._seen_bytes if self._seen_bytes >= 0 else appended + self._shard.log.replayed_bytes

    async def _save(self) -> None:
        replay_from, path = await self._write_snapshot()
        self._kept = [kept for kept in self._kept if kept[1] != path] + [(replay_from, path)]
        for _, old in self._kept[:-KEPT]:
            with contextlib.suppress(FileNotFoundError):  # removed by the checkpoint that a drop cut short
                await self._world.offload(self._world.disk.remove, old)
        del self._kept[:-KEPT]

    async def _write_snapshot(self, path: str | None = None) -> tuple[int, str]:
        """Returns where a replay begins, and the file; `path`: in place of that one."""
        shard, partition = self._shard, self._partition
        begin = partition.end_offset
        replay_from = shard.open.first_offset(begin)
        path = path or self._path(begin)
        beside = f"{path}.new"
        try:
            file = self._world.disk.open(beside, create=True)
            try:
                await self._world.offload(file.truncate, 0)
                size = await self._write_pieces(file, replay_from)
                await partition.until_durable(partition.end_offset)
                await self._world.offload(file.sync)
            finally:
                file.close()
            self._shard.log.check_led()
            await self._world.offload(self._name, beside, path)
        except (OSError, WaystationError):
            with contextlib.suppress(OSError):
                self._world.disk.remove(beside)  # on a full disk, every byte counts
            raise
        self._shard.log.check_led()
        self._last_bytes = size
        return replay_from, path

    def _path(self, begin: int) -> str:
        return f"{self._partition.folder}/{begin:020d}{snapshot.SUFFIX}"

    def _name(self, beside: str, path: str) -> None:
        self._world.disk.rename(beside, path)
        self._world.disk.sync_folder(self._partition.folder)

    async def _write_pieces(self, file: File, replay_from: int) -> int:
        """Writes all queues, some at a time, so that the loop goes on in between; returns how many bytes that is."""
        sealing = None if self._world.keys is None else SealedWriter(self._world.keys)
        position = await self._world.offload(_write, file, [Head(replay_from, snapshot.PRIORITIES)], 0, sealing)
        count = 0
        for queues, parts in self._slices():
            count += queues
            for at in range(0, len(parts), SLICE_PARTS):
                position = await self._world.offload(_write, file, parts[at : at + SLICE_PARTS], position, sealing)
        return await self._world.offload(_write, file, [Tail(count)], position, sealing)

    def _slices(self) -> Iterator[tuple[int, list[Part]]]:
        """(how many queues, their parts), true at the moment they are made: nothing happens to a queue between its
        stamp and its dump."""
        parts: list[Part] = []
        count = 0
        for queue in list(self._shard.queues.values()):
            # What is noted of deliveries is in the dump, so it must lie below the stamp.
            if not parts and not self._shard.log.flush():
                raise StorageFailed(f"{self._partition.folder}: the log takes no more")
            if self._shard.queues.get(queue.id) is not queue:
                continue
            self._shard.forget_old_ids(queue, FORGET_IDS)
            parts += snapshot.parts_of(queue, self._partition.end_offset)
            count += 1
            if len(parts) >= SLICE_QUEUES:
                yield count, parts
                parts, count = [], 0
        if parts:
            yield count, parts

    # -- room ---------------------------------------------------------------------------------------------------------

    async def _is_mostly_dead(self) -> bool:
        """Whether the log has much in it, and little or nothing of that lives."""
        if self._partition.size_bytes < FIRST_BYTES:
            return False
        return await self._is_empty() or await self._stragglers.few(FIRST_BYTES)

    async def _is_empty(self) -> bool:
        end = self._partition.end_offset
        return await self._stragglers.oldest_living(end) == end

    async def _cut_back(self) -> None:
        """Lets go of all that is dead, also in the last segment, which would else stay until it is full: what lives is
        written forward to a segment of its own.

        Both snapshots are made anew for that: neither may need what is removed.
        """
        if not await self._is_empty():
            await self._partition.until_durable(self._partition.end_offset)
            self._shard.log.check_led()
            if not self._partition.begin_segment():
                return
            await self._stragglers.write_all_forward()
        end, self._seen_bytes = self._partition.end_offset, self._partition.appended_bytes
        await self._save()
        if len(self._kept) < KEPT:
            self._kept.insert(0, (0, self._path(max(0, end - 1))))
        self._kept[0] = await self._write_snapshot(self._kept[0][1])
        await self._free_before(self._shard.open.first_offset(min(begin for begin, _ in self._kept)))

    async def _free(self) -> None:
        """Lets go of segments that nobody needs."""
        floor = self._shard.open.first_offset(self._kept[0][0])
        if len(self._kept) < KEPT or floor <= self._partition.start_offset or len(self._partition.segment_bases) < 2:
            return
        await self._free_before(floor)

    async def _free_before(self, floor: int) -> None:
        floor = await self._stragglers.oldest_living(floor)
        self._shard.log.check_led()  # else nothing seemed to live
        if floor > self._partition.start_offset and self._shard.log.flush():
            # What ended the messages below must be durable, or a power cut makes them alive again, and unreadable.
            await self._partition.until_durable(self._partition.end_offset)
            self._shard.log.check_led()
            await self._partition.remove_all_before(floor)


def _write(file: File, parts: list[Part], position: int, sealing: SealedWriter | None) -> int:
    """Runs on a thread; returns where it ends."""
    frames = [snapshot.frame(part) for part in parts]
    if position == 0:
        frames.insert(0, snapshot.MAGIC)
    if sealing is not None:
        frames = sealing.piece(frames)
    file.write(frames, position)
    return position + sum(map(len, frames))
