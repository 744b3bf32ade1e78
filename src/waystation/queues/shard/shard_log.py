"""The log of a shard, as its queues see it: commands in, in order; commands out again at the start.

Deliveries are written with the next command (or after a moment): they need not be durable before anything happens, and
so a delivery costs no batch of its own. Until then they are noted beside the log, where a crash of the broker leaves
them (`delivery_notes.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from waystation.encryption.key_ring import KeyRing
from waystation.errors import CorruptBatch, NotLeader, StorageFailed, WaystationError
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header
from waystation.message import Run
from waystation.observe.events import event_logger
from waystation.queues.shard import commands
from waystation.queues.shard.commands import Command, HandedOut, Stored, changes_of
from waystation.queues.shard.delivery_notes import DeliveryNotes
from waystation.topics.partitions.partition import Partition, Receipt
from waystation.world.clock import Clock
from waystation.world.disk import Disk

logger = event_logger("waystation.queues")

NOTES_AFTER_S = 0.1
MAX_NOTES = 4096
MAX_REFUSED = 10_000
READ_BYTES = 1024 * 1024
"""Of the log at a time, while it is replayed."""


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


def not_leader(partition: Partition) -> NotLeader:
    return NotLeader(
        f"this broker no longer leads {partition.topic.name}-{partition.index}; refresh metadata and ask who does"
    )


class ShardLog:
    """The only writer of its log."""

    def __init__(self, partition: Partition, clock: Clock, disk: Disk, keys: KeyRing | None = None) -> None:
        self.partition = partition
        self.replayed_bytes = 0  # at the start: what no snapshot had
        self.replayed_to = 0
        """Everything before it was replayed."""
        self._clock = clock
        self._beside = DeliveryNotes(disk, partition.folder, keys)
        self._no_command_from = 0  # as far as the replay saw
        self._refused: list[Stored] = []  # done in memory, but the disk had no room
        self._notes: dict[int, list[Run]] = {}
        self._note_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._dropped = False

    def write(
        self, wanted: Sequence[Stored], producer: tuple[int, int] | None = None, *, done: bool = False
    ) -> Written:
        """Appends the commands as one batch: all of them survive a crash, or none. Raises StorageFailed.

        `done`: it has happened in memory already. Whoever asked is told that the disk refused, but it is written with
        the next command, so that the log says again what memory says.
        """
        if self._dropped:
            self.check_led()
        if producer is None:
            before = self._take_waiting()
            producer_id, epoch, attributes = -1, -1, 0
        else:
            before = []  # what waits is true whatever becomes of the transaction
            producer_id, epoch, attributes = producer[0], producer[1], batches.TRANSACTIONAL
        batch, header = batches.build_values(
            [commands.encode_pieces(command) for command in (*before, *wanted)],
            self._clock.now_ms(),
            producer_id=producer_id,
            producer_epoch=epoch,
            attributes=attributes,
        )
        try:
            appended = self.partition.append(batch, header)
        except StorageFailed:
            self._keep_waiting([*before, *wanted] if done else before)
            raise
        if before:
            self._beside.logged()
        return Written(appended.base_offset + len(before), Receipt(self.partition, appended.last_offset + 1))

    def note(self, queue_id: int, runs: list[Run]) -> None:
        """These are about to be handed out. Written to the log before anything else is, and beside it now."""
        self._notes.setdefault(queue_id, []).extend(runs)
        self._note_count += len(runs)
        if not self._beside.write(self.partition.end_offset, queue_id, runs) or self._note_count > MAX_NOTES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NOTES_AFTER_S, self.flush)

    def recover_notes(self) -> dict[int, list[Run]]:
        """After the replay: what was handed out, by queue, and only noted beside the log. It waits to be written."""
        self._notes = self._beside.missing(self._no_command_from, self.partition.end_offset)
        self._note_count = sum(map(len, self._notes.values()))
        return self._notes

    def _take_waiting(self) -> list[Stored]:
        """What is to be written before anything else."""
        if not (self._notes or self._refused):
            return []
        waiting = [*self._refused, *[HandedOut(queue_id, runs) for queue_id, runs in self._notes.items()]]
        self._refused, self._notes, self._note_count = [], {}, 0
        return waiting

    def _keep_waiting(self, waiting: list[Stored]) -> None:
        """The disk refused them: they are tried again, unless they have become too many."""
        if len(waiting) > MAX_REFUSED:
            # Memory knows them, and so will the next snapshot. Until then a crash undoes them.
            logger.warning(
                "queues.notes_dropped",
                "too much is waiting for the disk, {changes} changes of queues are not noted",
                changes=len(waiting),
            )
            waiting = []
        self._refused = waiting

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def flush(self) -> bool:
        """Writes what waits. False: the disk refused."""
        self._stop_timer()
        if self._notes or self._refused:
            try:
                self.write([])
            except StorageFailed as error:
                # Nobody waits for it; what is to be kept is refused where it is asked for.
                logger.warning("queues.notes_wait", "what was done to queues cannot be noted now: {error}", error=error)
                return False
        return True

    def close(self) -> None:
        self.flush()
        self._stop_timer()
        self._beside.close()

    def drop(self) -> None:
        """Another broker leads the partition: this one writes nothing more, not even when it leads again. What waits is
        written if the log still takes it; if not, a crash would have taken it as well."""
        with contextlib.suppress(WaystationError):
            self.flush()
        self._stop_timer()
        self._beside.close()
        self._dropped = True
        self._refused, self._notes, self._note_count = [], {}, 0

    def check_led(self) -> None:
        """Raises NotLeader if this was dropped."""
        if self._dropped:
            raise not_leader(self.partition)

    def begin_replay(self, offset: int) -> None:
        """A replay goes on from here."""
        self._no_command_from = self.replayed_to = max(offset, self.partition.start_offset)

    def replay(self, before: int | None = None, most_bytes: int = sys.maxsize) -> Iterator[Replayed]:
        """What comes next: to the end, or nothing that reaches `before`, and about so many bytes (a batch at least). A
        damaged batch is passed over, with a word in the log file."""
        partition = self.partition
        told = ""
        left = most_bytes
        while left > 0:
            end = partition.written_offset if before is None else min(before, partition.written_offset)
            if self.replayed_to >= end:
                return
            try:
                data = partition.read(max(self.replayed_to, partition.start_offset), min(left, READ_BYTES), end)
                reached = self.replayed_to
                for position, header in batches.scan(data):
                    found = self._replayed(data[position : position + header.size], header)
                    self.replayed_to = header.last_offset + 1
                    self.replayed_bytes += header.size
                    left -= header.size
                    if found is not None:
                        yield found
                if self.replayed_to == reached:
                    return
            except CorruptBatch as error:
                if str(error) != told:
                    told = str(error)
                    logger.error(
                        "queues.batch_damaged",
                        "what a damaged batch of queues said is not known, continuing after it: {error}",
                        error=error,
                    )
                self.replayed_to += 1

    def _replayed(self, data: bytes, header: Header) -> Replayed | None:
        """None: it means nothing to queues."""
        if header.control:
            outcome = batches.marker_commits(data, header)
            return None if outcome is None else Replayed(header.producer_id, outcome, header.base_offset, [])
        found = [
            (record.offset, change)
            for record in batches.records_of(data, header)
            if record.value is not None
            for change in changes_of(commands.decode(record.value))
        ]
        if not header.transactional:
            self._no_command_from = header.base_offset + 1
        return Replayed(header.producer_id if header.transactional else -1, None, header.base_offset, found)
