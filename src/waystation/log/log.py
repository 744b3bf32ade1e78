"""A log: an ordered, durable sequence of record batches with offsets.

Invariants:
- Offsets are given once and never go back. A batch is stored whole or not at all, whatever the moment of a crash.
- `durable_offset` only covers what was fsynced; an acknowledgement that promises durability waits for it.
- A log of tier 0 writes to the page cache at once, so readers need not wait for the disk. A log of an upper tier keeps
  appends in memory until the group commit writes them (see `commit.py`); its readers see what is written.
- When a sync fails, what the page cache says is no longer to be trusted: the log takes no more appends until the
  broker is restarted and recovery has read the disk again.

Used by the broker's partitions and coordinators, on the loop's thread only.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from waystation.config import TopicSettings
from waystation.errors import CorruptBatch, OffsetOutOfRange, StorageFailed
from waystation.log import batch as batches
from waystation.log.aborted import Aborted, AbortedTransactions
from waystation.log.batch import Header
from waystation.log.epochs import Epochs
from waystation.log.producers import Producers
from waystation.log.segment import Segment, file_name
from waystation.world import World

logger = logging.getLogger("waystation.log")

START_FILE = "log-start"
CHECKPOINT_BYTES = 16 * 1024 * 1024
"""After this much new data, indexes and producer state are written down, so that a crash costs little to recover."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append gave."""

    base_offset: int
    last_offset: int
    append_time_ms: int  # -1 unless the topic uses the broker's time
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """Everything before `offset` is known to be on the disk, intact; it ends at `position` of segment `segment`."""

    offset: int
    segment: int
    position: int


@dataclass(slots=True)
class SyncJob:
    """One log's share of a commit round; `run` blocks and may run on a thread."""

    log: Log
    segments: list[Segment]
    folder: str | None
    point: RecoveryPoint
    error: OSError | None = field(default=None)

    def run(self) -> None:
        for segment in self.segments:
            segment.file.sync()
        if self.folder is not None:
            self.log.world.disk.sync_folder(self.folder)
        if self.log.epochs.changed:
            self.log.epochs.save()


class Log:
    """Opened by `recovery.open_log`."""

    def __init__(
        self,
        world: World,
        folder: str,
        settings: TopicSettings,
        *,
        tier: int = 0,
        on_write: Callable[[Log], None] | None = None,
    ) -> None:
        self.world = world
        self.folder = folder
        self.settings = settings
        self.tier = tier
        self.on_write = on_write
        self.on_readable: Callable[[], None] | None = None
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self.start_offset = 0
        self.end_offset = 0
        self.written_offset = 0  # tier 0: always the end; upper tiers: what the commit has written
        self.durable_offset = 0
        self.epoch = 0
        self.epochs = Epochs(world.disk, folder)
        self.producers = Producers()
        self.aborted = AbortedTransactions()
        self.recovery_point = RecoveryPoint(0, 0, 0)
        self.appended_bytes = 0  # since start: lets a waiting reader see growth without reading
        self.failure: StorageFailed | None = None
        self._pending: list[tuple[bytearray | memoryview, Header]] = []
        self._dirty: list[Segment] = []
        self._syncing: list[Segment] = []
        self._names_changed = False
        self._checkpointed_size = 0
        self.cleaned_offset = 0  # compaction has seen everything before this

    # -- what there is ----------------------------------------------------------------------------------------------

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def high_watermark(self) -> int:
        """Readers see records before this offset."""
        return self.written_offset

    @property
    def stable_offset(self) -> int:
        """read_committed readers see records before this offset: no transaction before it is open."""
        first_open = self.producers.first_open_offset
        return self.written_offset if first_open is None else min(first_open, self.written_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def check_usable(self) -> None:
        if self.failure is not None:
            raise self.failure

    # -- append -----------------------------------------------------------------------------------------------------

    def append(self, batch: bytearray | memoryview, header: Header) -> Appended:
        """Appends a checked batch, giving it its offset in place. Nothing has changed if it raises."""
        if self.failure is not None:
            raise self.failure
        control = header.control
        if header.producer_id >= 0 and not control:
            stored = self.producers.check(header)
            if stored is not None:
                return Appended(stored.base_offset, stored.last_offset, -1, duplicate=True)
        append_time = -1
        now = self.world.clock.now_ms()
        if self.settings.log_append_time and not control:
            append_time = now
            batches.stamp(batch, header.attributes, now)
        base = self.end_offset
        batches.place(batch, base, self.epoch)
        if append_time >= 0 or self.tier:
            header = batches.read_header(batch)
        else:
            header = header._replace(base_offset=base, leader_epoch=self.epoch)
        if self.tier:
            self._pending.append((batch, header))
        else:
            self._write(batch, header)
            self.written_offset = header.last_offset + 1
        self.end_offset = header.last_offset + 1
        if header.producer_id >= 0:
            self.apply(batch, header)
        if self.on_write is not None:
            self.on_write(self)
        if self.on_readable is not None and not self.tier:
            self.on_readable()
        return Appended(base, header.last_offset, append_time)

    def _write(self, batch: bytearray | memoryview, header: Header) -> None:
        try:
            if self._roll_due(len(batch), header):
                self.roll(header.base_offset)
            segment = self.active
            segment.append(batch, header)
        except OSError as error:
            raise StorageFailed(f"{self.folder}: cannot write: {error.strerror or error}") from error
        self.appended_bytes += len(batch)
        if not self._dirty or self._dirty[-1] is not segment:
            self._dirty.append(segment)
        if header.leader_epoch > self.epochs.latest:
            self.epochs.note(header.leader_epoch, header.base_offset)

    def apply(self, batch: bytearray | memoryview | bytes, header: Header) -> None:
        """Takes a batch of a producer with an id into the producers' state and the transaction index."""
        if not header.control:
            self.producers.record(header)
            return
        commits = batches.marker_commits(batch, header)
        if commits is None:
            return
        start = self.producers.end_transaction(header, 0)
        if start is not None and not commits:
            self.aborted.add(Aborted(header.producer_id, start, header.last_offset))

    def write_pending(self, count: int) -> None:
        """Writes the first `count` batches that wait in memory; the commit calls it between two syncs."""
        for batch, header in self._pending[:count]:
            try:
                self._write(batch, header)
            except StorageFailed as failure:
                # They were given offsets in order: one that cannot be written would leave a hole.
                self.fail(failure)
                return
            self.written_offset = header.last_offset + 1
        del self._pending[:count]
        if count and self.on_readable is not None:
            self.on_readable()

    # -- segments ---------------------------------------------------------------------------------------------------

    def _roll_due(self, size: int, header: Header) -> bool:
        active = self.active
        if active.size == 0:
            return False
        if active.size + size > self.settings.segment_bytes or header.last_offset - active.base_offset > 2**31 - 1:
            return True
        began = active.created_ms if active.first_timestamp is None else active.first_timestamp
        return header.max_timestamp - began > self.settings.segment_ms and header.max_timestamp >= 0

    def roll(self, base_offset: int) -> None:
        """Seals the active segment and starts the next."""
        previous = self.active if self.segments else None
        segment = self.new_segment(base_offset)
        segment.create(self.world.clock.now_ms())
        if previous is not None:
            previous.seal()
            if not self._dirty or self._dirty[-1] is not previous:
                self._dirty.append(previous)  # its new, true length is to be durable too
            self._write_derived(previous)
        self.segments.append(segment)
        self._bases.append(base_offset)
        self._names_changed = True
        self._checkpointed_size = 0

    def new_segment(self, base_offset: int) -> Segment:
        return Segment(
            self.world.disk, self.folder, base_offset, index_interval_bytes=self.settings.index_interval_bytes
        )

    def adopt(self, segments: list[Segment]) -> None:
        """Takes these as the log's segments (recovery, compaction)."""
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]

    def _write_derived(self, segment: Segment) -> None:
        segment.write_indexes()
        disk = self.world.disk
        aborted = self.aborted.between(segment.base_offset, self.end_offset)
        if aborted:
            disk.replace_file(segment.path("txnindex"), AbortedTransactions.encode(aborted))
        if self.producers.by_id or self.producers.changed:
            disk.replace_file(
                f"{self.folder}/{file_name(self.end_offset, 'snapshot')}", self.producers.snapshot(self.end_offset)
            )
            self.producers.changed = False
            self._drop_snapshots(keep=2)

    def _drop_snapshots(self, keep: int) -> None:
        names = [name for name in self.world.disk.list(self.folder) if name.endswith(".snapshot")]
        for name in names[:-keep]:
            self.world.disk.remove(f"{self.folder}/{name}")

    def checkpoint(self) -> None:
        """Writes indexes and producer state down if much was appended since the last time."""
        active = self.active
        if self.failure is None and not self._pending and active.size - self._checkpointed_size > CHECKPOINT_BYTES:
            self._write_derived(active)
            self._checkpointed_size = active.size

    # -- durability -------------------------------------------------------------------------------------------------

    def take_sync(self) -> SyncJob | None:
        """What a commit round must sync of this log; None if there is nothing or the log has failed."""
        if self.failure is not None or not (self._dirty or self._names_changed):
            return None
        active = self.active
        job = SyncJob(
            self,
            self._dirty,
            self.folder if self._names_changed else None,
            RecoveryPoint(self.written_offset, active.base_offset, active.size),
        )
        self._syncing = self._dirty
        self._dirty = []
        self._names_changed = False
        return job

    def synced(self, job: SyncJob) -> None:
        """The job has run."""
        self._syncing = []
        if job.error is not None:
            self.fail(StorageFailed(f"{self.folder}: the disk failed to sync: {job.error.strerror or job.error}"))
            return
        self.recovery_point = job.point
        self.durable_offset = job.point.offset

    def fail(self, failure: StorageFailed) -> None:
        if self.failure is None:
            self.failure = failure
            logger.error("log failed, no more writes until restart: %s", failure)

    def uses(self, segment: Segment) -> bool:
        """Whether a sync of the segment is due or under way, so that it must not be closed."""
        return segment in self._syncing or segment in self._dirty

    def close(self, *, clean: bool) -> None:
        """Closes the files; `clean` leaves everything durable, so that the next start reads nothing again."""
        if clean and self.failure is None:
            self.write_pending(len(self._pending))
            self.active.seal()
            if self.active.size != self._checkpointed_size or self.producers.changed:
                self._write_derived(self.active)
            if self.active not in self._dirty:
                self._dirty.append(self.active)
            job = self.take_sync()
            if job is not None:
                job.run()
                self.synced(job)
        for segment in self.segments:
            segment.close()

    # -- read -------------------------------------------------------------------------------------------------------

    def _segment_at(self, offset: int) -> int:
        return max(0, bisect_right(self._bases, offset) - 1)

    def read(self, offset: int, max_bytes: int, before_offset: int | None = None) -> bytes:
        """Stored bytes from the batch that holds `offset` on: at least one batch, else about `max_bytes`.

        May end in the middle of a batch, as Kafka's fetch does; never reaches `before_offset`. Empty at the end of the
        log. OffsetOutOfRange outside the log, CorruptBatch where the batch is not intact.
        """
        limit = self.written_offset if before_offset is None else min(before_offset, self.written_offset)
        if offset < self.start_offset or offset > max(self.written_offset, self.start_offset):
            raise OffsetOutOfRange(f"offset {offset} is outside {self.start_offset}..{self.written_offset}")
        if offset >= limit:
            return b""
        for i in range(self._segment_at(offset), len(self.segments)):
            segment = self.segments[i]
            found = segment.find(offset)
            if found is None:
                self._explain_gap(segment, offset)
                continue
            position, header = found
            if header.base_offset >= limit:
                return b""
            size = max(max_bytes, header.size)
            if limit < self.written_offset and segment.last_offset >= limit:
                end = segment.find(limit)
                if end is not None:
                    size = min(size, end[0] - position)
            try:
                data = segment.read(position, size)
                return data if data else segment.read(position, header.size)
            except CorruptBatch as error:
                logger.error(
                    "corrupt batch: %s (offset %d); see `waystation log skip-corrupt`", error, header.base_offset
                )
                raise
        return b""

    def _explain_gap(self, segment: Segment, offset: int) -> None:
        """A segment that should hold the offset but cannot be walked to it is corrupt, not empty."""
        if offset <= segment.last_offset:
            position = 0
            for at, header in segment.walk(segment.index.floor(offset - segment.base_offset)):
                position = at + header.size
            if position < segment.size:
                logger.error(
                    "corrupt batch: %s at position %d; see `waystation log skip-corrupt`", segment.path(), position
                )
                raise CorruptBatch(f"{segment.path()} is corrupt at position {position}")

    def batches_from(self, offset: int) -> Iterator[tuple[bytes, Header]]:
        """Whole batches with their headers, from the one that holds `offset` to the end of what is written."""
        end = self.written_offset
        while offset < end:
            data = self.read(max(offset, self.start_offset), 1024 * 1024)
            if not data:
                return
            for position, header in batches.scan(data):
                yield data[position : position + header.size], header
                offset = header.last_offset + 1

    def aborted_in(self, first: int, data: bytes) -> list[Aborted]:
        """The aborted transactions that overlap bytes read from `first` on."""
        if not data:
            return []
        end = first
        for _, header in batches.scan(data):
            end = header.last_offset + 1
        return self.aborted.overlapping(first, end)

    # -- times ------------------------------------------------------------------------------------------------------

    def find_time(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that is not older than `timestamp`; None if all are."""
        for segment in self.segments:
            if segment.latest_timestamp() < timestamp or segment.last_offset < self.start_offset:
                continue
            start = segment.base_offset + segment.times.floor(timestamp)
            for position, header in segment.walk(segment.index.floor(start - segment.base_offset)):
                if header.max_timestamp < timestamp or header.control:
                    continue
                for record in batches.records_of(segment.read(position, header.size), header):
                    if record.timestamp >= timestamp and record.offset >= self.start_offset:
                        return record.offset, record.timestamp
        return None

    def find_max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the record with the latest timestamp; None in an empty log."""
        best = max(self.segments, key=lambda segment: segment.latest_timestamp())
        latest = best.latest_timestamp()
        return None if latest < 0 else self.find_time(latest)

    # -- start of the log -------------------------------------------------------------------------------------------

    def advance_start(self, offset: int) -> list[Segment]:
        """Moves the start up to `offset` and gives the segments that nobody needs any more, to be removed.

        The caller saves the start (`save_start`) before it removes them: a crash in between never brings them back.
        """
        self.start_offset = max(self.start_offset, min(offset, self.written_offset))
        gone: list[Segment] = []
        while len(self.segments) > 1 and self._bases[1] <= self.start_offset and not self.uses(self.segments[0]):
            gone.append(self.segments.pop(0))
            del self._bases[0]
        self.aborted.drop_before(self.start_offset)
        self.epochs.drop_before(self.start_offset)
        return gone

    def save_start(self) -> None:
        """Durable when it returns; blocks."""
        self.world.disk.replace_file(f"{self.folder}/{START_FILE}", str(self.start_offset).encode())
