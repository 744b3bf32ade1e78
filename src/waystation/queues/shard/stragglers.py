"""Stragglers: messages that live on in an old segment of a shard's log, long after their neighbours.

While one lives, its segment stays. When most of the log is dead, stragglers of its older half are written again at its
end (*forward*), so that the old segments can go; when the shard is idle, all that lives, if that is little. Nothing
changes but where they are. What is written forward is never more than a quarter of what else is written: if it turns
out that what looked dead is alive, little is lost.

The checkpoint calls this, in the background. The loop gets its turn after every step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from waystation.errors import Corrupt, StorageFailed
from waystation.message import Message, Run
from waystation.observe.events import event_logger
from waystation.queues.ledger.runs import add_run
from waystation.queues.ledger.states import CHUNK
from waystation.queues.shard import commands
from waystation.queues.shard.commands import Forward
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.shard import Shard

logger = event_logger("waystation.queues")

FORWARD_BYTES = 16 * 1024 * 1024
"""The most that is written forward in one go."""
NEW_BYTES_FOR_EACH = 4
STEP_QUEUES = 4096
STEP_CHUNKS = 64


class Stragglers:
    """One shard's."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._partition = shard.log.partition
        self._again_at = 0  # appended by then: time to look again

    async def oldest_living(self, limit: int) -> int:
        """A lower bound of the offsets at which living messages are. It only goes up while we look."""
        lowest = limit
        for place in self._chunks():
            if place is None:
                await asyncio.sleep(0)
            else:
                lowest = min(lowest, self._floor(*place, limit))
        return lowest

    async def write_forward(self) -> None:
        """Moves stragglers out of the oldest segments when most of the log is dead."""
        partition = self._partition
        if len(partition.segment_bases) < 3 or partition.appended_bytes < self._again_at:
            return
        if partition.size_bytes < 4 * await self._living_bytes() + 2 * partition.topic.settings.segment_bytes:
            return
        bases = partition.segment_bases
        boundary = bases[len(bases) // 2]
        await self._write_before(boundary)

    async def few(self, spare_bytes: int) -> bool:
        """Whether what lives is so little, beside all that is dead, that writing it forward is worth its while; what
        is left to lie dead is less than `spare_bytes` and three times what lives."""
        partition = self._partition
        if partition.appended_bytes < self._again_at or partition.size_bytes < spare_bytes:
            return False
        living = await self._living_bytes()
        return living <= FORWARD_BYTES and partition.size_bytes >= 4 * living + spare_bytes

    async def write_all_forward(self) -> None:
        """Moves all that lives to the end of the log, up to a bound."""
        await self._write_before(self._partition.end_offset)

    async def _write_before(self, boundary: int) -> None:
        """Moves what lives before the offset."""
        partition = self._partition
        written = 0
        for place in self._chunks():
            if place is None:
                await asyncio.sleep(0)
            elif self._floor(*place, boundary) < boundary:
                written += await self._move_chunk(*place)
                self._again_at = partition.appended_bytes + NEW_BYTES_FOR_EACH * written
                if written >= FORWARD_BYTES:
                    break
        if written:
            logger.info("stragglers.moved", "stragglers written forward: {log}", log=partition.folder, bytes=written)

    # -- looking ------------------------------------------------------------------------------------------------------

    def _queues(self) -> Iterator[Queue | None]:
        """All queues that have messages, and None now and then: time for the loop to have its turn."""
        for i, queue in enumerate(list(self._shard.queues.values())):
            if i % STEP_QUEUES == STEP_QUEUES - 1:
                yield None
            if queue.places is not None and self._shard.queues.get(queue.id) is queue:
                yield queue

    def _chunks(self) -> Iterator[tuple[Queue, int] | None]:
        """Every chunk of every queue, at a moment when it is there; and None now and then."""
        i = 0
        for queue in self._queues():
            if queue is None:
                yield None
                continue
            for number in queue.places.chunks() if queue.places is not None else ():
                i += 1
                if i % STEP_CHUNKS == 0:
                    yield None
                if queue.places is not None and number in queue.places:
                    yield queue, number

    async def _living_bytes(self) -> int:
        total = 0
        for queue in self._queues():
            if queue is None:
                await asyncio.sleep(0)
            else:
                total += queue.bytes
        return total

    def _floor(self, queue: Queue, number: int, limit: int) -> int:
        places = queue.places
        if places is None:
            return limit
        floor = places.floor(number)
        if floor >= self._partition.start_offset:
            return floor
        # The index of what is dead may point to what is gone already; look at the living alone.
        return min((block[2] for run in _alive(queue, number) for block in places.blocks(*run)), default=limit)

    # -- moving -------------------------------------------------------------------------------------------------------

    async def _move_chunk(self, queue: Queue, number: int) -> int:
        """Writes what lives in a chunk again, a part at a time; returns how many bytes that took."""
        written = 0
        after = number * CHUNK - 1
        while queue.places is not None and number in queue.places and self._shard.queues.get(queue.id) is queue:
            runs = _some(queue, number, after)
            if not runs:
                queue.places.keep_only(number, _alive(queue, number))
                break
            try:
                written += self._move(queue, runs)
            except (Corrupt, StorageFailed) as error:
                if self._partition.failure is not None:
                    raise
                logger.error(
                    "stragglers.unreadable",
                    "messages of queue {queue} cannot be written forward, their segment stays: {error}",
                    queue=queue.name,
                    error=error,
                )
                break
            after = sum(runs[-1]) - 1
            await asyncio.sleep(0)
        return written

    def _move(self, queue: Queue, runs: list[Run]) -> int:
        wanted: list[Forward] = []
        size = 0
        for first, count in runs:
            taken: list[int] = []
            messages: list[Message] = []
            for entry in range(first, first + count):
                when, message = self._shard.message_at(queue, entry)
                taken.append(when)
                messages.append(message)
            forward = Forward(queue.id, first, taken, commands.encode_messages(messages))
            size += len(forward.messages)
            wanted.append(forward)
        written = self._shard.log.write(wanted)
        for i, (first, count) in enumerate(runs):
            queue.places.move(first, count, written.first + i)  # type: ignore[union-attr]  # the caller has looked
        return size


def _alive(queue: Queue, number: int, after: int = -1) -> list[Run]:
    """The living entries of a chunk, as runs."""
    runs: list[Run] = []
    end = (number + 1) * CHUNK
    if queue.ledger is not None:
        for _, first, count in queue.ledger.alive_runs(after=max(after, number * CHUNK - 1)):
            if first >= end:
                break
            add_run(runs, first, min(first + count, end) - first)
    return runs


def _some(queue: Queue, number: int, after: int) -> list[Run]:
    """The next living entries of a chunk: not more than one command should hold."""
    runs: list[Run] = []
    size = 0
    for entry in commands.entries_of(_alive(queue, number, after)):
        size += queue.places.bytes_of(entry, 1)  # type: ignore[union-attr]  # the caller has looked
        if size > commands.MAX_BLOCK_BYTES and runs:
            break
        add_run(runs, entry, 1)
    return runs
