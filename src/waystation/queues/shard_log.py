"""The log of a shard, as its queues see it: commands in, in order; commands out again at the start.

Deliveries are noted and written with the next command (or after a moment): they need not be durable before anything
happens, and so a delivery costs no write of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from waystation.errors import CorruptBatch, StorageFailed
from waystation.log import batch as batches
from waystation.log.log import Log
from waystation.queues import commands
from waystation.queues.commands import Command, HandedOut, Run
from waystation.queues.feed import Receipt
from waystation.world.clock import Clock

logger = logging.getLogger("waystation.queues")

NOTES_AFTER_S = 0.1
MAX_NOTES = 4096


class Written(NamedTuple):
    """Where commands went: the offset of the first, and a receipt for all."""

    first: int
    receipt: Receipt


class Replayed(NamedTuple):
    """One batch, read back. `outcome` is set for the marker that ends a transaction, which has no commands."""

    producer_id: int  # -1: not in a transaction
    outcome: bool | None
    offset: int
    commands: list[tuple[int, Command]]


class ShardLog:
    """The only writer of its log."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self.log = log
        self._clock = clock
        self._notes: dict[int, list[Run]] = {}
        self._note_count = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, wanted: Sequence[Command], producer: tuple[int, int] | None = None) -> Written:
        """Appends the commands as one batch: all of them survive a crash, or none. Raises StorageFailed."""
        if producer is None:
            notes = self._take_notes()
            producer_id, epoch, attributes = -1, -1, 0
        else:
            notes = []  # what is noted is true whatever becomes of the transaction
            producer_id, epoch, attributes = producer[0], producer[1], batches.TRANSACTIONAL
        batch = batches.build(
            [(None, commands.encode(command), ()) for command in (*notes, *wanted)],
            self._clock.now_ms(),
            producer_id=producer_id,
            producer_epoch=epoch,
            attributes=attributes,
        )
        try:
            appended = self.log.append(batch, batches.read_header(batch))
        except StorageFailed:
            self._keep_notes(notes)
            raise
        return Written(appended.base_offset + len(notes), Receipt(self.log, appended.last_offset + 1))

    def note(self, queue_id: int, runs: list[Run]) -> None:
        """These were handed out; written before anything else is."""
        self._notes.setdefault(queue_id, []).extend(runs)
        self._note_count += len(runs)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NOTES_AFTER_S, self.flush)
        elif self._note_count > MAX_NOTES:
            self.flush()

    def _take_notes(self) -> list[HandedOut]:
        if not self._notes:
            return []
        notes = [HandedOut(queue_id, runs) for queue_id, runs in self._notes.items()]
        self._notes = {}
        self._note_count = 0
        self._stop_timer()
        return notes

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _keep_notes(self, notes: list[HandedOut]) -> None:
        """The disk refused: they are tried again with the next command, unless they have become too many."""
        self._note_count = sum(len(note.runs) for note in notes)
        if self._note_count > MAX_NOTES:
            logger.warning("how often messages were delivered cannot be noted: %d of them", self._note_count)
            notes, self._note_count = [], 0
        self._notes = {note.queue: note.runs for note in notes}

    def flush(self) -> bool:
        """Writes what is noted. False: the disk refused."""
        self._stop_timer()
        if self._notes:
            try:
                self.write([])
            except StorageFailed as error:
                # Nobody waits for it; what is to be kept is refused where it is asked for.
                logger.warning("how often messages were delivered cannot be noted now: %s", error)
                return False
        return True

    def close(self) -> None:
        self.flush()
        self._stop_timer()

    def replay(self, offset: int) -> Iterator[Replayed]:
        """Everything from `offset` on. A damaged batch is passed over, with a word in the log file."""
        log = self.log
        offset = max(offset, log.start_offset)
        told = ""
        while offset < log.written_offset:
            try:
                for data, header in log.batches_from(offset):
                    offset = header.last_offset + 1
                    if header.control:
                        outcome = batches.marker_commits(data, header)
                        if outcome is not None:
                            yield Replayed(header.producer_id, outcome, header.base_offset, [])
                        continue
                    found = [
                        (record.offset, commands.decode(record.value))
                        for record in batches.records_of(data, header)
                        if record.value is not None
                    ]
                    yield Replayed(header.producer_id if header.transactional else -1, None, header.base_offset, found)
                return
            except CorruptBatch as error:
                if str(error) != told:
                    told = str(error)
                    logger.error("what a damaged batch of queues said is not known, going on behind it: %s", error)
                offset += 1
