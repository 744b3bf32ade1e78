"""A log: an ordered, durable sequence of record batches with offsets.

Invariants:
- Offsets are given once and never go back. A batch is stored whole or not at all, whatever the moment of a crash.
- A log is led or it follows. Who leads it gives offsets and epochs (`append`). A follower takes its leader's batches as
  they are (`append_as_is`): they begin where its log ends, and their epochs never go back. Only a follower's log is
  truncated (`cleaning/truncation.py`), and it takes no appends meanwhile.
- `durable_offset` only covers what was fsynced; an acknowledgement that promises durability waits for it.
- A log of tier 0 writes to the page cache at once, so readers need not wait for the disk. A log of an upper tier keeps
  appends in memory until the group commit writes them (see `commit.py`); its readers see what is written.
- When a sync fails, what the page cache says is no longer to be trusted: the log takes no more appends until the
  broker is restarted and recovery has read the disk again.

Used by the broker's partitions and coordinators, on the loop's thread only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

import msgspec

from waystation.config import TopicSettings
from waystation.errors import FencedLeaderEpoch, InvalidRecord, StorageFailed, UnexpectedOffset, WaystationError
from waystation.log.aborted import Aborted, AbortedTransactions
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header
from waystation.log.epochs import Epochs
from waystation.log.producers import Producers
from waystation.log.reading import SegmentReader
from waystation.log.segments.derived import Derived, Files
from waystation.log.segments.segment import Segment, file_name
from waystation.log.segments.swap import Swap
from waystation.log.sync import RecoveryPoint as RecoveryPoint
from waystation.log.sync import SyncJob as SyncJob
from waystation.observe.events import event_logger
from waystation.world import World
from waystation.world.uncancelled import to_its_end

if TYPE_CHECKING:
    from waystation.log.cleaning.truncation import Truncation

logger = event_logger("waystation.log")

START_FILE = "log-start"
PENDING_WHILE_STALLED = 10_000
"""Batches that an upper tier keeps in memory for a disk without room."""
CHECKPOINT_BYTES = 16 * 1024 * 1024
"""After this much new data, indexes and producer state are written down, so that a crash costs little to recover."""


class Appended(msgspec.Struct, frozen=True):
    """What an append gave."""

    base_offset: int
    last_offset: int
    append_time_ms: int  # -1 unless the topic uses the broker's time
    duplicate: bool = False


class Log(SegmentReader):
    """Opened by `recovery.open_log`. What readers call is in `reading.py`."""

    def __init__(
        self,
        world: World,
        folder: str,
        settings: TopicSettings,
        *,
        tier: int = 0,
        replicated: bool = False,
        on_write: Callable[[Log], None] | None = None,
    ) -> None:
        """`replicated`: other brokers have it, too. What is acknowledged is not for the log to know."""
        super().__init__(folder)
        self.world = world
        self.settings = settings
        self.tier = tier
        self.replicated = replicated
        self.on_write = on_write
        self.on_readable: Callable[[], None] | None = None
        self.on_durable: Callable[[], None] | None = None
        self.end_offset = 0
        self.durable_offset = 0
        self.epoch = 0
        self.known_epoch = -1  # the latest that its files have spoken of, also if no batch of it is left
        self.epochs = Epochs(world.disk, folder)
        self.producers = Producers()
        self.recovery_point = RecoveryPoint(0, 0, 0)
        self.saved_point = RecoveryPoint(0, 0, 0)  # what the next start would begin with: compaction stays behind it
        self.appended_bytes = 0  # since start: lets a waiting reader see growth without reading
        self.failure: WaystationError | None = None
        self.stalled: StorageFailed | None = None  # what was appended waits for room or for file handles
        self.refused: StorageFailed | None = None  # the last batch, by the disk; a later one may find room
        self._pending: list[tuple[bytearray | memoryview, Header]] = []
        self._dirty: list[Segment] = []
        self._syncing: list[Segment] = []
        self._pinned: list[Segment] = []  # being synced beside the rounds
        self._names_changed = False
        self.derived = Derived(world.disk, folder)
        self._jitter_ms = 0
        self._seen_bytes = 0  # appended at the last checkpoint
        self._taken_bytes = 0  # appended when the last sync was taken
        self._checkpointed_size = 0
        self.moving_start = asyncio.Lock()  # held by whoever removes segments or swaps them
        self.swap: Swap | None = None
        self.truncation: Truncation | None = None  # under way, or interrupted by the disk: no appends
        self.truncations = 0  # how often; tells what was noted before from what is true now
        self.saved_start = 0  # what of `start_offset` is written down
        self.cleaned_offset = 0  # compaction has seen everything before this

    # -- what there is ----------------------------------------------------------------------------------------------

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def stable_offset(self) -> int:
        """read_committed readers see records before this offset: no transaction before it is open."""
        first_open = self.producers.first_open_offset
        if first_open is None:
            return self.written_offset
        return min(max(first_open, self.start_offset), self.written_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def pending(self) -> list[tuple[bytearray | memoryview, Header]]:
        """What waits in memory, in order, for the commit to write it: an upper tier's."""
        return list(self._pending)

    @property
    def pending_headers(self) -> list[Header]:
        return [header for _, header in self._pending]

    def check_usable(self) -> None:
        """What is raised here and elsewhere is a copy: an error holds on to everybody whom it goes through, with all
        that they have in hand."""
        if self.failure is not None:
            raise copy(self.failure)
        if self.truncation is not None and self.truncation.interrupted:
            raise copy(self.truncation.refusal)

    # -- append -----------------------------------------------------------------------------------------------------

    def append(self, batch: bytearray | memoryview, header: Header) -> Appended:
        """Appends a checked batch, giving it its offset in place. Nothing has changed if it raises."""
        if self.failure is not None or self.stalled is not None or self.truncation is not None:
            self._check_appendable()
        control = header.control
        if header.producer_id >= 0 and not control:
            stored = self.producers.check(header)
            if stored is not None:
                append_time = stored.timestamp if self.settings.log_append_time else -1
                return Appended(stored.base_offset, stored.last_offset, append_time, duplicate=True)
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
            self.apply(batch, header, now)
        self._tell_commit()
        if self.on_readable is not None and not self.tier:
            self.on_readable()
        return Appended(base, header.last_offset, append_time)

    def append_as_is(self, data: bytes | bytearray | memoryview, *, gaps: bool = False) -> Appended:
        """Appends a leader's batches, byte for byte: their offsets and epochs stay. `data` holds whole batches only.

        All of it is checked before anything is written. CorruptBatch or InvalidRecord: it is not what a leader stores.
        UnexpectedOffset: it does not begin at this log's end, or has a hole; what is there already is refused too, so
        that the caller asks for what it needs. `gaps` allows holes: a leader's compaction leaves them.
        FencedLeaderEpoch: an epoch goes back: they are of a former leader, or this log must be truncated first.

        If the disk refuses some of them (StorageFailed), those before are in the log, and its end says how far it came.
        """
        self._check_appendable()
        found = batches.check_batches(data)
        if not found:
            raise InvalidRecord("there is no batch to be appended")
        self._check_following(found, gaps=gaps)
        begin = self.end_offset
        now = self.world.clock.now_ms()
        try:
            for batch, header in found:
                if self.tier:
                    self._pending.append((batch, header))
                else:
                    self._write(batch, header)
                    self.written_offset = header.last_offset + 1
                self.end_offset = header.last_offset + 1
                self.epoch = max(self.epoch, header.leader_epoch)
                if header.producer_id >= 0:
                    self.apply(batch, header, now)
        finally:
            if self.end_offset > begin:
                self._tell_commit()
                if self.on_readable is not None and not self.tier:
                    self.on_readable()
        return Appended(found[0][1].base_offset, found[-1][1].last_offset, -1)

    def _check_following(self, found: list[tuple[memoryview, Header]], *, gaps: bool) -> None:
        end, epoch = self.end_offset, max(self.epochs.latest, 0)
        if self._pending:
            epoch = max(epoch, self._pending[-1][1].leader_epoch)
        for batch, header in found:
            if header.base_offset < end or (header.base_offset > end and not gaps):
                raise UnexpectedOffset(
                    f"{self.folder} ends at {end}, but its leader's batch begins at {header.base_offset}"
                )
            if header.leader_epoch < epoch:
                raise FencedLeaderEpoch(f"{self.folder} has epoch {epoch}, but a batch of {header.leader_epoch} came")
            if header.control and header.producer_id >= 0:
                batches.marker_commits(batch, header)  # or it could not be applied
            end, epoch = header.last_offset + 1, header.leader_epoch

    def _check_appendable(self) -> None:
        if self.failure is not None:
            raise copy(self.failure)
        if self.truncation is not None:
            raise copy(self.truncation.refusal)
        if self.stalled is not None and (not self.tier or len(self._pending) >= PENDING_WHILE_STALLED):
            self._tell_commit()  # it tries again
            raise copy(self.stalled)

    def lead(self, epoch: int) -> None:
        """What is appended from now on is of this epoch. Durable when it returns: an epoch that a power cut took back
        would stand for two histories. Blocks."""
        self.begin_epoch(epoch)
        if self.epochs.changed:
            self.epochs.save()

    def begin_epoch(self, epoch: int) -> None:
        """The same where somebody else sees to it that no epoch is given twice: a cluster's store does."""
        if epoch < self.epochs.latest:
            raise FencedLeaderEpoch(
                f"{self.folder} has epoch {self.epochs.latest}: nobody leads it in {epoch} any more"
            )
        self.epoch = epoch
        self.refused = None
        self.known_epoch = max(self.known_epoch, epoch)
        self.epochs.note(epoch, self.end_offset)

    def _write(self, batch: bytearray | memoryview, header: Header) -> None:
        try:
            if self._roll_due(len(batch), header):
                self.roll(self.written_offset)  # not the batch's offset: a name behind a hole would look like a loss
            segment = self.active
            segment.append(batch, header)
        except OSError as error:
            self.refused = StorageFailed(f"{self.folder}: cannot write: {error.strerror or error}")
            raise self.refused from error
        self.refused = None
        self.appended_bytes += len(batch)
        if not self._dirty or self._dirty[-1] is not segment:
            self._dirty.append(segment)
        if header.leader_epoch > self.epochs.latest:
            self.epochs.note(header.leader_epoch, header.base_offset)

    def _tell_commit(self) -> None:
        if self.on_write is not None:
            self.on_write(self)

    def apply(self, batch: bytearray | memoryview | bytes, header: Header, now_ms: int) -> None:
        """Takes a batch of a producer with an id into the producers' state and the transaction index."""
        if not header.control:
            self.producers.record(header, now_ms)
            return
        commits = batches.marker_commits(batch, header)
        if commits is None:
            return
        start = self.producers.end_transaction(header, batches.marker_epoch(batch, header), now_ms)
        if start is not None and not commits:
            self.aborted.add(Aborted(header.producer_id, start, header.last_offset))

    def write_pending(self, count: int) -> None:
        """Writes the first `count` batches that wait in memory; the commit calls it between two syncs.

        What the disk refuses stays in memory, in order, and is tried again: it has its offsets already.
        """
        if self.failure is not None:
            return
        written = 0
        self.stalled = None
        for batch, header in self._pending[:count]:
            try:
                self._write(batch, header)
            except StorageFailed as failure:
                self.stalled = failure
                logger.warning(
                    "log.stalled",
                    "waiting for the disk, {batches} batches are in memory: {error}",
                    batches=len(self._pending),
                    error=failure,
                )
                break
            self.written_offset = header.last_offset + 1
            written += 1
        del self._pending[:written]
        if written and self.on_readable is not None:
            self.on_readable()

    # -- segments ---------------------------------------------------------------------------------------------------

    def _roll_due(self, size: int, header: Header) -> bool:
        active = self.active
        if active.size == 0:
            return False
        if active.size + size > self.settings.segment_bytes or header.last_offset - active.base_offset > 2**31 - 1:
            return True
        began = active.first_timestamp
        if began is None or began < 0 or header.max_timestamp < 0:  # without timestamps, by the clock
            return self.world.clock.now_ms() - active.created_ms > self._segment_ms
        return header.max_timestamp - began > self._segment_ms

    @property
    def _segment_ms(self) -> int:
        """Records of a compacted topic must be in a sealed segment before they can be compacted in time."""
        settings = self.settings
        longest = settings.segment_ms - self._jitter_ms
        return min(longest, settings.max_compaction_lag_ms) if settings.compacts else longest

    def roll(self, base_offset: int) -> None:
        """Seals the active segment and starts the next.

        If the disk refuses a step, the active segment stays in use. It may be sealed then: it grows again.
        """
        previous = self.active if self.segments else None
        if previous is not None:
            previous.seal()
            if not self._dirty or self._dirty[-1] is not previous:
                self._dirty.append(previous)  # its new, true length is to be durable too
        segment = self.new_segment(base_offset)
        segment.create(self.world.clock.now_ms())
        if previous is not None:
            self._write_derived(previous)
        self.adopt([*self.segments, segment])
        jitter_ms = min(self.settings.segment_jitter_ms, self.settings.segment_ms)
        self._jitter_ms = self.world.random.below(jitter_ms) if jitter_ms else 0
        self._names_changed = True
        self._checkpointed_size = 0

    def new_segment(self, base_offset: int) -> Segment:
        segment = Segment(
            self.world.disk,
            self.folder,
            base_offset,
            index_interval_bytes=self.settings.index_interval_bytes,
            keys=self.world.keys,
        )
        segment.created_ms = self.world.clock.now_ms()  # for all we know; matters where records have no timestamps
        return segment

    def _write_derived(self, segment: Segment) -> None:
        """Writes the indexes, and hands the rest to the next sync: the loop does not wait for the disk."""
        try:
            segment.write_indexes()
        except OSError as error:  # a full disk: they are built again when they are needed
            logger.warning(
                "index.unwritable", "{file}: its indexes cannot be written: {error}", file=segment.path(), error=error
            )
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        derived = self.derived
        if derived.noted_offset == self.end_offset and not self.producers.changed:
            return
        ends = [*self._bases[1:], self.end_offset]
        for i in range(bisect_right(ends, derived.noted_offset), len(ends)):
            aborted = self.aborted.between(self._bases[i], ends[i])
            content = AbortedTransactions.encode(aborted) if aborted else None
            derived.note(file_name(self._bases[i], "txnindex"), content)
        name = file_name(self.end_offset, "snapshot")
        derived.note_snapshot(self.end_offset, name, self.producers.snapshot(self.end_offset))
        self.producers.changed = False

    async def remember_producers(self, offset: int) -> bool:
        """Makes sure of a snapshot behind `offset`, so that what is before it can go; False: not now.

        What the snapshot says must be durable before the snapshot is. After a power cut, one that is ahead of the log
        counts for nothing, and the one before it may be older than what was removed.
        """
        if self.derived.saved_offset >= offset:
            return True
        if self._pending:
            return False  # the snapshot would speak of them
        self._take_snapshot()
        files = self.derived.take()
        if files is None:
            return False
        await to_its_end(self._save_derived(files))
        return self.derived.saved_offset >= offset

    async def _save_derived(self, files: Files) -> None:
        self._pinned = [*self._syncing, *(segment for segment in self._dirty if segment not in self._syncing)]
        job = SyncJob(self, self._pinned, self.folder, self.recovery_point, files, 0, of_round=False)
        saved = False
        try:
            await self.world.offload(job.run)
            saved = job.unopened is job.unsaved is None
        except OSError as error:  # fsync says it once: the next commit round would not hear of it
            self.fail(StorageFailed(f"{self.folder}: the disk failed to sync: {error.strerror or error}"))
        finally:
            self._pinned = []
            self.derived.done(files, saved=saved)
        if job.unsaved is not None:
            raise job.unsaved

    def checkpoint(self) -> None:
        """Writes indexes and producer state down if much was appended since the last time; if nothing, lets go."""
        if self.truncation is not None:
            return
        active = self.active
        if self._seen_bytes == self.appended_bytes and not self.uses(active):
            active.close()  # opened again on first use: a thousand idle partitions hold no handles
        self._seen_bytes = self.appended_bytes
        if self.failure is None and not self._pending and active.size - self._checkpointed_size > CHECKPOINT_BYTES:
            self._write_derived(active)
            self._checkpointed_size = active.size
            self._tell_commit()

    # -- durability -------------------------------------------------------------------------------------------------

    def doubt_names(self) -> None:
        """The names of the files may not be durable: the next sync syncs the folder, too."""
        self._names_changed = True

    def take_sync(self) -> SyncJob | None:
        """What a commit round must sync of this log; None if there is nothing or the log has failed."""
        if self.failure is not None or not (self._dirty or self._names_changed or self.derived.waits):
            return None
        if self.truncation is not None:
            return None
        active = self.active
        job = SyncJob(
            self,
            self._dirty,
            self.folder if self._names_changed else None,
            RecoveryPoint(self.written_offset, active.base_offset, active.size, self.truncations),
            self.derived.take(),
            self.appended_bytes - self._taken_bytes,
        )
        self._taken_bytes = self.appended_bytes
        self._syncing = self._dirty
        self._dirty = []
        self._names_changed = False
        return job

    def synced(self, job: SyncJob) -> None:
        """The job has run."""
        self._syncing = []
        if job.files is not None:
            self.derived.done(job.files, saved=job.error is job.unopened is job.unsaved is None)
        if job.error is not None:
            self.fail(StorageFailed(f"{self.folder}: the disk failed to sync: {job.error.strerror or job.error}"))
            return
        if job.unopened is not None:  # nothing was done: all of it is left to the next job
            self._dirty = [*job.segments, *(segment for segment in self._dirty if segment not in job.segments)]
            self._names_changed = self._names_changed or job.folder is not None
            self._taken_bytes -= job.size
            return
        if not self.tier:
            self.stalled = None
        self.durable_offset = job.point.offset
        if not self.replicated:
            self.trim(self.durable_offset)
        if job.unsaved is None:
            self.recovery_point = job.point
        else:
            logger.warning(
                "log.start_not_saved", "{log}: cannot be noted now: {error}", log=self.folder, error=job.unsaved
            )
        if self.on_durable is not None:
            self.on_durable()

    def unsynced(self, segments: list[Segment]) -> list[Segment]:
        """Those of the segments that are to be synced."""
        return [segment for segment in segments if segment in self._dirty]

    def point_saved(self, point: RecoveryPoint) -> None:
        """The next start would begin with this point; unless it was taken before a truncation, and counts no more."""
        if point.truncations == self.truncations:
            self.saved_point = point

    @property
    def sealed_unsynced(self) -> bool:
        """Whether a segment that is complete has not been synced yet: without that it can never be removed."""
        return any(segment is not self.active for segment in self._dirty)

    def cut(self, segments: list[Segment], producers: Producers, point: RecoveryPoint) -> list[Segment]:
        """Takes these as all that there is: they end at `point`, and are durable up to there. Gives the segments that
        are not needed any more; the files are as they were, so this is not yet the log's recovery point. For
        `cleaning/truncation.py` only.
        """
        removed = [segment for segment in self.segments if segment not in segments]
        for segment in removed:
            segment.close()
        self._last_read = None
        self._pending = []
        self._dirty = []
        self.stalled = None
        self._names_changed = False
        self.adopt(segments)
        self.producers = producers
        self.aborted.drop_from(point.offset)
        self.epochs.cut(point.offset)
        self.epoch = max(0, self.epochs.latest)
        self.truncations = point.truncations
        self.end_offset = self.written_offset = self.durable_offset = point.offset
        self.cleaned_offset = min(self.cleaned_offset, point.offset)
        self._checkpointed_size = 0
        self.derived.cut(point.offset)
        return removed

    def jump(self, offset: int) -> None:
        """An empty log continues here, where its leader's begins; the start is saved already. For truncation."""
        self.start_offset = self.saved_start = offset
        self.end_offset = self.written_offset = self.durable_offset = offset
        self.cleaned_offset = min(self.cleaned_offset, offset)
        self.producers = Producers()
        self.epochs.cut(0)
        self.recovery_point = RecoveryPoint(offset, self.active.base_offset, self.active.size, self.truncations)

    def fail(self, failure: WaystationError) -> None:
        if self.failure is None:
            self.failure = failure
            logger.error(
                "log.failed", "log failed, no more writes until restart: {error}", log=self.folder, error=failure
            )

    def retire(self, reason: WaystationError) -> None:
        """The log is being deleted: whoever still waits for it is told so."""
        self.failure = reason

    def uses(self, segment: Segment) -> bool:
        """Whether a sync of the segment is due or under way, so that it must not be closed."""
        return segment in self._syncing or segment in self._dirty or segment in self._pinned

    def close(self, *, clean: bool) -> None:
        """Closes the files; `clean` leaves everything durable, so that the next start reads nothing again."""
        if clean and self.failure is None:
            try:
                if self.truncation is not None:
                    raise OSError(self.truncation.refusal)
                self._close_clean()
            except OSError as error:
                self.fail(StorageFailed(f"{self.folder}: cannot be closed cleanly: {error.strerror or error}"))
        for segment in self.segments:
            segment.close()

    def _close_clean(self) -> None:
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
            if job.unopened is not None:
                raise job.unopened

    # -- start of the log -------------------------------------------------------------------------------------------

    def trim(self, acknowledged: int) -> None:
        """Retention by count: of what is before `acknowledged`, the newest `retention_messages` offsets are left.

        Where an acknowledgement waits for the disk, that is the durable offset: whatever a power cut takes from the
        end, as many as were asked for are there. Where other brokers have it, too, that is the high watermark, and
        its partition trims it: what is above may be truncated. Only in memory, and again so at the next start;
        `retention.enforce` writes it down and removes files.
        """
        most = self.settings.retention_messages
        if most >= 0 and self.settings.deletes and self.failure is None:
            self.start_offset = max(self.start_offset, acknowledged - most)

    def advance_start(self, offset: int, *, even_without_snapshot: bool = False) -> list[Segment]:
        """Moves the start up to `offset` and gives the segments that nobody needs any more, to be removed.

        The caller has a snapshot of their producers on the disk, and saves the start (`save_start`) before it removes
        them: a crash in between never brings them back.
        """
        offset = min(offset, self.written_offset)
        self.start_offset = max(self.start_offset, offset)
        removable = offset if even_without_snapshot else min(offset, self.derived.saved_offset)
        removed: list[Segment] = []
        while len(self.segments) - len(removed) > 1 and self.segments[len(removed) + 1].base_offset <= removable:
            segment = self.segments[len(removed)]
            if segment in self._syncing or segment in self._pinned:
                break
            if segment in self._dirty:
                self._dirty.remove(segment)  # nobody will miss it
            segment.close()  # here, not on the thread that removes it: a handle is closed once
            removed.append(segment)
        self.adopt(self.segments[len(removed) :])
        self.epochs.drop_before(offset)
        return removed

    def start_saved(self, offset: int) -> None:
        """A crash brings nothing back that is before `offset`. Until then it may, and whoever reads it has to know what
        of it was aborted: the transaction indexes that are written meanwhile still say so."""
        self.saved_start = max(self.saved_start, offset)
        self.aborted.drop_before(self.saved_start)

    def save_start(self, offset: int) -> None:
        """What the next start begins with. Durable when it returns; blocks."""
        self.world.disk.replace_file(f"{self.folder}/{START_FILE}", str(offset).encode())
