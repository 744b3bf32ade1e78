"""A shard's checkpoints: a snapshot in the background, stragglers written forward, and segments freed.

What may go: segments in which no living message is, and which no replay would need, not even one from the snapshot
before the last. A message that lives on long after its neighbours (parked for a year) would keep its segment; when
most of the log is dead, such stragglers are written again at the end of the log.

A snapshot is named only when the log is durable up to everything that it says: it never knows more than the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from waystation.errors import Corrupt, CorruptBatch
from waystation.log import retention
from waystation.log.log import Log
from waystation.message import Message
from waystation.queues import commands, snapshot
from waystation.queues.commands import Forward, Run
from waystation.queues.queue import Queue
from waystation.queues.shard import Shard
from waystation.queues.snapshot import Damaged, Head, Piece, Tail
from waystation.queues.states import CHUNK
from waystation.world import World
from waystation.world.disk import File

logger = logging.getLogger("waystation.queues")

FIRST_BYTES = 8 * 1024 * 1024
"""New log before a snapshot is worth its while; for a shard with a large snapshot, as much as that has."""
SLICE_QUEUES = 256
SLICE_BYTES = 1024 * 1024
FORWARD_BYTES = 16 * 1024 * 1024
"""The most that is written forward in one go."""
KEPT = 2


class Checkpointer:
    """One shard's. `durable(log, offset)` waits until the log is on the disk up to there."""

    def __init__(self, shard: Shard, world: World, durable: Callable[[Log, int], Awaitable[object]]) -> None:
        self._shard = shard
        self._log = shard.log.log
        self._world = world
        self._durable = durable
        self._last_bytes = 0  # of the last snapshot
        self._seen_bytes = -1  # how much had been appended then
        self._turn = asyncio.Lock()
        self._kept: list[tuple[int, str]] = []  # (where a replay would begin, file), the newest last

    # -- start --------------------------------------------------------------------------------------------------------

    def load(self) -> int:
        """Takes the newest intact snapshot; returns where the replay of the log begins. Blocks."""
        disk, folder = self._world.disk, self._log.folder
        names = sorted(name for name in disk.list(folder) if name.endswith(snapshot.SUFFIX))
        for name in [name for name in disk.list(folder) if name.endswith(f"{snapshot.SUFFIX}.new")]:
            disk.remove(f"{folder}/{name}")
        for name in reversed(names):
            path = f"{folder}/{name}"
            try:
                begin = self._load_file(path)
            except Damaged as error:
                logger.error("a snapshot of queues cannot be used, taking the one before it: %s: %s", path, error)
                self._shard.queues.clear()
                disk.remove(path)
                continue
            self._kept.insert(0, (begin, path))
            for older in names[: names.index(name)]:
                self._kept.insert(0, (0, f"{folder}/{older}"))
            return begin
        if self._log.start_offset > 0:
            raise Corrupt(
                f"{folder}: the log of queues begins at {self._log.start_offset}, but no snapshot of what was before"
                " can be read; restore the folder from a backup"
            )
        return 0

    def _load_file(self, path: str) -> int:
        data = self._world.disk.read_file(path) or b""
        begin = -1
        for part in snapshot.parts(data):
            if isinstance(part, Head):
                begin = part.replay_from
            elif isinstance(part, Piece):
                self._shard.adopt(snapshot.queue_of(part))
        if not 0 <= begin <= self._log.written_offset:
            raise Damaged(f"it speaks of offset {begin}, but the log ends at {self._log.written_offset}")
        self._last_bytes = len(data)
        return begin

    # -- now and then -------------------------------------------------------------------------------------------------

    async def run(self, *, force: bool = False, forward: bool | None = None) -> None:
        """A checkpoint, if enough has happened since the last one. `forward`: look for stragglers (unless forced)."""
        async with self._turn:
            await self._run(force=force, forward=not force if forward is None else forward)

    async def _run(self, *, force: bool, forward: bool) -> None:
        appended = self._log.appended_bytes
        if appended == self._seen_bytes or self._log.failure is not None:
            return
        if not force and appended - max(0, self._seen_bytes) < max(FIRST_BYTES, self._last_bytes):
            return
        if forward:
            await self._write_forward()
        await self._save()
        self._seen_bytes = appended
        await self._free()

    async def _save(self) -> None:
        shard, log = self._shard, self._log
        begin = log.end_offset
        replay_from = min([begin, *(written[0][0] for written in shard.open.values() if written)])
        path = f"{log.folder}/{begin:020d}{snapshot.SUFFIX}"
        beside = f"{path}.new"
        file = self._world.disk.open(beside, create=True)
        try:
            await self._world.offload(file.truncate, 0)
            size = await self._write_pieces(file, replay_from)
            await self._durable(log, log.end_offset)
            await self._world.offload(file.sync)
        finally:
            file.close()
        await self._world.offload(self._name, beside, path)
        self._last_bytes = size
        self._kept = [kept for kept in self._kept if kept[1] != path] + [(replay_from, path)]
        for _, old in self._kept[:-KEPT]:
            await self._world.offload(self._world.disk.remove, old)
        del self._kept[:-KEPT]

    def _name(self, beside: str, path: str) -> None:
        self._world.disk.rename(beside, path)
        self._world.disk.sync_folder(self._log.folder)

    async def _write_pieces(self, file: File, replay_from: int) -> int:
        """Writes all queues, some at a time, so that the loop goes on in between."""
        position = 0
        pending = [snapshot.MAGIC, snapshot.frame(Head(replay_from))]
        count = 0
        for part in self._slices():
            count += len(part)
            pending += part
            size = sum(map(len, pending))
            await self._world.offload(file.write, pending, position)
            position += size
            pending = []
        pending.append(snapshot.frame(Tail(count)))
        await self._world.offload(file.write, pending, position)
        return position + sum(map(len, pending))

    def _slices(self) -> Iterator[list[bytes]]:
        """Pieces, each true at the moment it is made: nothing may happen to a queue between its stamp and its dump."""
        part: list[bytes] = []
        size = 0
        for queue in list(self._shard.queues.values()):
            if not part:
                self._shard.log.flush()  # what is noted of deliveries is in the dump, so it must lie below the stamp
            if self._shard.queues.get(queue.id) is not queue:
                continue
            part.append(snapshot.frame(snapshot.piece_of(queue, self._log.end_offset)))
            size += len(part[-1])
            if len(part) >= SLICE_QUEUES or size >= SLICE_BYTES:
                yield part
                part, size = [], 0
        if part:
            yield part

    # -- room ---------------------------------------------------------------------------------------------------------

    async def _free(self) -> None:
        """Lets go of segments that nobody needs."""
        floor = min([self._kept[0][0], *(written[0][0] for written in self._shard.open.values() if written)])
        if len(self._kept) < KEPT:
            floor = self._log.start_offset
        floor = min(floor, await self._oldest_living(floor))
        if floor > self._log.start_offset and len(self._log.segments) > 1:
            await retention.remove_before(self._log, floor)

    async def _oldest_living(self, limit: int) -> int:
        """A lower bound of the offsets at which living messages are. It only goes up while we look."""
        lowest = limit
        for i, queue in enumerate(list(self._shard.queues.values())):
            for number in queue.places.chunks() if queue.places is not None else ():
                lowest = min(lowest, self._floor(queue, number))
            if i % SLICE_QUEUES == 0:
                await asyncio.sleep(0)
        return lowest

    def _floor(self, queue: Queue, number: int) -> int:
        places = queue.places
        if places is None:
            return self._log.end_offset
        floor = places.floor(number)
        if floor >= self._log.start_offset:
            return floor
        # Places of what is dead may point to what is gone already; look at the living alone.
        offsets = [block[2] for first, count in self._alive(queue, number) for block in places.blocks(first, count)]
        return min(offsets, default=self._log.end_offset)

    @staticmethod
    def _alive(queue: Queue, number: int) -> list[Run]:
        """The living entries of a chunk, as runs."""
        runs: list[Run] = []
        start, end = number * CHUNK, (number + 1) * CHUNK
        if queue.ledger is None:
            return runs
        for _, first, count in queue.ledger.alive_runs(after=start - 1):
            if first >= end:
                break
            count = min(first + count, end) - first
            if runs and sum(runs[-1]) == first:
                runs[-1] = (runs[-1][0], runs[-1][1] + count)
            else:
                runs.append((first, count))
        return runs

    async def _write_forward(self) -> None:
        """Moves stragglers out of the oldest segments when most of the log is dead."""
        log = self._log
        living = sum(queue.bytes for queue in self._shard.queues.values())
        if len(log.segments) < 3 or log.size_bytes < 4 * living + 2 * log.settings.segment_bytes:
            return
        boundary = log.segments[len(log.segments) // 2].base_offset
        moved = 0
        for queue in list(self._shard.queues.values()):
            for number in queue.places.chunks() if queue.places is not None else ():
                if moved < FORWARD_BYTES and queue.places is not None and self._floor(queue, number) < boundary:
                    moved += self._forward_chunk(queue, number)
                    await asyncio.sleep(0)
        if moved:
            logger.info("stragglers written forward: %s bytes=%d", log.folder, moved)

    def _forward_chunk(self, queue: Queue, number: int) -> int:
        places = queue.places
        if places is None or number not in places.chunks():
            return 0
        runs = [run for whole in self._alive(queue, number) for run in _cut(queue, whole)]
        wanted: list[Forward] = []
        size = 0
        for first, count in runs:
            taken: list[int] = []
            messages: list[Message] = []
            for entry in range(first, first + count):
                try:
                    when, message = self._shard.message_at(queue, entry)
                except CorruptBatch as error:
                    logger.error(
                        "a message cannot be written forward, its segment stays: queue=%r: %s", queue.name, error
                    )
                    return 0
                taken.append(when)
                messages.append(message)
                size += len(message.payload)
            wanted.append(Forward(queue.id, first, taken, commands.encode_messages(messages)))
        if wanted:
            written = self._shard.log.write(wanted)
            for i, (first, count) in enumerate(runs):
                places.move(first, count, written.first + i)
            places.rewritten(number, runs)
        return size


def _cut(queue: Queue, run: Run) -> Iterator[Run]:
    """A run in parts that are not too large for one command."""
    first, count = run
    start, size = first, 0
    for entry in range(first, first + count):
        size += queue.places.bytes_of(entry, 1) if queue.places is not None else 0
        if size > commands.MAX_BLOCK_BYTES and entry > start:
            yield start, entry - start
            start, size = entry, 0
    yield start, first + count - start
