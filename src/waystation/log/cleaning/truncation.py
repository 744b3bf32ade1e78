"""Truncation: a follower's log loses everything from an offset on, because its leader has another history from there.

Whole batches are removed: if the offset is inside of one, all of that batch is. What waits in memory (upper tiers) is
removed too: nobody was told of it. The log then ends where the last batch that is left ends, at or before the offset;
it is durable up to there, and takes its leader's batches from there on.

Any step may be the last one. What recovery believes is always a beginning of the old log that reaches at least to the
offset, until the last step is done; from then on it is exactly what is left. One after another:

1. What is left is synced, so that no later step depends on a recovery point that is behind.
2. A snapshot of the producers as of the new end is saved, with the transaction indexes that it needs. It is true of the
   old log as well.
3. `truncated-to` is saved: recovery reads on from the new end or before it, whatever `recovery-points` says (see
   `points.py`). It finds the old batches there, and goes on with the old log.
4. In memory the log is cut: from here on no reader sees what is removed, and nobody is told that it is durable.
5. Snapshots behind the new end are removed. When that is durable, no snapshot needs what the transaction indexes say of
   offsets behind the new end: they lose it. The other indexes of what is cut are removed, and then the segments behind
   the new end, the last one first, so that there is never a hole. The folder is synced: or a power cut could bring
   them back.
6. The file of the last segment is cut, and synced.
7. From here on the log's recovery point is the new end. One that is saved earlier is of before this truncation, so a
   start sees by `truncated-to` that steps 5 and 6 may have been interrupted. What they have done may be in the page
   cache only: the start syncs what it finds, or a power cut would bring back what it has not shown.

Where the disk refuses 1 to 3, nothing has changed. Where it refuses 5 or 6, the log is readable, but takes no appends
until `truncate` is called again and has done the rest. Where a sync fails, the log has failed, as always then.

The leader epochs need no step: recovery takes them from the batches, from the new end on.

No commit round uses the log meanwhile, no segments are removed or swapped (`moving_start`), nothing is saved for
recovery (`Derived.pause`), and appends are refused. A compaction that has begun before finds that its plan is void.

Producers that have written nothing in what is removed keep their state. That of the others is made again from the
newest snapshot at or before the new end, and the batches behind it.

Called by replication, on the loop. Who truncates below what the partition's in-sync replicas have loses acknowledged
records: where to truncate is not decided here.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec
from msgspec.structs import replace

from waystation.errors import CorruptBatch, OffsetOutOfRange, StorageFailed, Unavailable, WaystationError
from waystation.log.aborted import AbortedTransactions, cut_file
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header
from waystation.log.cleaning import retention
from waystation.log.commit import GroupCommit
from waystation.log.log import Log
from waystation.log.points import save_truncated
from waystation.log.producers import Producers, ProducerState
from waystation.log.segments.segment import Segment, file_name
from waystation.log.segments.swap import settle
from waystation.log.sync import RecoveryPoint
from waystation.observe.events import event_logger
from waystation.world.disk import Disk, File
from waystation.world.uncancelled import to_its_end

logger = event_logger("waystation.log")


class _SyncFailed(Exception):
    """What fsync said: the page cache is not to be trusted any more."""


class Truncation(msgspec.Struct):
    """One that is under way. Once the log is cut in memory (and ends with `last`) there is only the way forward."""

    refusal: WaystationError  # what appends are answered
    last: Segment | None = None

    @property
    def interrupted(self) -> bool:
        """Whether the disk has refused, and nobody carries it on until `truncate` is called again."""
        return isinstance(self.refusal, StorageFailed)


class _Search(msgspec.Struct):
    """What is to be read before anything is changed. Made on the loop; `run` is for a thread."""

    log: Log
    offset: int
    before: list[Segment]  # those below the one that is cut
    last: Segment  # a twin of that one
    after: list[Segment]
    now_ms: int
    touched: set[int]  # producers that have written what is removed
    all_touched: bool = False  # for all we know: something of it cannot be read
    end_offset: int = 0
    states: dict[int, ProducerState] = {}  # of the producers touched, without what is removed

    def run(self) -> None:
        """CorruptBatch: damage hides where to cut. The file of `last` stays open: it is to be used on both sides."""
        try:
            self.last.file.size()
            position, end, first = _end_before(self.last, self.offset)
            if first is not None and first.base_offset < self.log.start_offset:
                raise OffsetOutOfRange(
                    f"{self.log.folder} starts at {self.log.start_offset}, within the batch that holds {self.offset}"
                )
            self.end_offset = max(end, self.log.start_offset)
            self._see_removed(self.last, position)
            for segment in self.after:
                reader = _reader(segment)
                try:
                    self._see_removed(reader, 0)
                finally:
                    reader.close()
            self.last.cut(position, end)
            if self.touched or self.all_touched:
                self._restore()
        except BaseException:
            self.last.close()
            raise

    def _see_removed(self, segment: Segment, position: int) -> None:
        for at, header in segment.walk(position):
            position = at + header.size
            if header.producer_id >= 0:
                self.touched.add(header.producer_id)
        if position < segment.size:
            self.all_touched = True

    def _restore(self) -> None:
        producers, offset = self._newest_snapshot()
        for segment in map(_reader, self.before):
            try:
                if segment.last_offset >= offset:
                    self._replay(producers, segment, offset)
            finally:
                segment.close()
        self._replay(producers, self.last, offset)
        wanted = producers.by_id if self.all_touched else self.touched & producers.by_id.keys()
        self.states = {producer_id: producers.by_id[producer_id] for producer_id in wanted}

    def _newest_snapshot(self) -> tuple[Producers, int]:
        disk, folder = self.log.world.disk, self.log.folder
        for name in sorted((name for name in disk.list(folder) if name.endswith(".snapshot")), reverse=True):
            restored = Producers.restore(disk.read_file(f"{folder}/{name}") or b"")
            if restored is not None and restored[0] <= self.end_offset:
                return restored[1], restored[0]
        return Producers(), 0

    def _replay(self, producers: Producers, segment: Segment, offset: int) -> None:
        for position, header in segment.walk(segment.index.floor(max(0, offset - segment.base_offset))):
            if header.base_offset < offset or header.producer_id < 0:
                continue
            if not header.control:
                producers.record(header, self.now_ms)
                continue
            try:
                batch = segment.read(position, header.size)
                if batches.marker_commits(batch, header) is not None:
                    producers.end_transaction(header, batches.marker_epoch(batch, header), self.now_ms)
            except CorruptBatch as error:
                logger.error("marker.corrupt", "corrupt marker: {error}", error=error)

    def producers(self) -> Producers:
        """As of the new end; on the loop, since producers may have been forgotten meanwhile."""
        present = self.log.producers
        touched = present.by_id.keys() if self.all_touched else self.touched
        return present.changed_by({producer_id: self.states.get(producer_id) for producer_id in touched})


def _reader(segment: Segment) -> Segment:
    """The same segment with a handle of this thread's own."""
    reader = Segment(segment.disk, segment.folder, segment.base_offset, keys=segment.keys)
    reader.restore_sealed(segment.size, segment.last_offset)
    return reader


def _end_before(segment: Segment, offset: int) -> tuple[int, int, Header | None]:
    """Position and offset behind the last batch that ends before `offset`, and the header of the one behind it."""
    below = offset - 1
    while True:
        start = segment.index.floor(below - segment.base_offset)
        position, end = start, segment.base_offset
        following: Header | None = None
        for at, header in segment.walk(start):
            if header.last_offset >= offset:
                following = header
                break
            position, end = at + header.size, header.last_offset + 1
        if following is None and position < segment.size:
            raise CorruptBatch(f"{segment.path()} is corrupt at position {position}: it cannot be truncated")
        if following is None or position > start or start == 0:
            return position, end, following
        below = following.base_offset - 1  # the first one that was looked at: what is before it has an entry of its own


async def truncate(log: Log, offset: int, commit: GroupCommit) -> int:
    """Removes everything from `offset` on, durably; returns where the log ends then, also where nothing was to be done.

    OffsetOutOfRange: the log starts behind `offset`, or within the batch that holds it. StorageFailed: call it again,
    unless the log has failed. Carried out to its end also when the caller is cancelled.
    """
    return await to_its_end(_truncate(log, offset, commit))


async def _truncate(log: Log, offset: int, commit: GroupCommit) -> int:
    async with log.moving_start:
        if log.failure is not None:
            raise log.failure
        if log.truncation is not None:
            await _finish(log, log.truncation)
        if offset < log.start_offset:
            raise OffsetOutOfRange(f"{log.folder} starts at {log.start_offset}: it cannot be truncated to {offset}")
        if offset >= log.end_offset:
            return log.end_offset
        try:
            await settle(log)  # or it would be carried out at the next start, over what is there by then
            async with commit.apart(log):
                await _cut(log, offset)
        except OSError as error:
            raise StorageFailed(f"{log.folder}: cannot be truncated: {error.strerror or error}") from error
        return log.end_offset


async def begin_again(log: Log, offset: int, commit: GroupCommit) -> None:
    """The leader's log begins at `offset`, behind all that this one has: all of it is removed, and it continues there.

    First the start moves to the end of what there is, then the snapshots of producers are removed, then the start moves
    to `offset`, each durably: whatever the moment of a crash, recovery finds an empty log, or one that is behind its
    leader's start as before. A snapshot that stayed would be taken for what producers have written until `offset`: what
    they wrote in between is not here, so their next numbers would not follow. OffsetOutOfRange: this log has more.
    """
    await to_its_end(_begin_again(log, offset, commit))


async def _begin_again(log: Log, offset: int, commit: GroupCommit) -> None:
    if offset < log.end_offset:
        raise OffsetOutOfRange(f"{log.folder} ends at {log.end_offset}: it cannot begin again at {offset}")
    if log.pending_count or log.durable_offset < log.end_offset:
        await commit.durable(log, log.end_offset)
    if log.end_offset > log.active.base_offset:
        retention.begin_segment(log)
    await retention.remove_before(log, log.end_offset)
    async with log.moving_start, commit.apart(log):
        await log.derived.pause()
        try:
            await log.world.offload(_remove_snapshots, log.world.disk, log.folder)
            log.derived.forget()
            await log.world.offload(log.save_start, offset)
        except OSError as error:
            raise StorageFailed(f"{log.folder}: cannot begin again: {error.strerror or error}") from error
        finally:
            log.derived.resume()
        log.jump(offset)


def _remove_snapshots(disk: Disk, folder: str) -> None:
    for name in disk.list(folder):
        if name.endswith(".snapshot"):
            disk.remove(f"{folder}/{name}")
    disk.sync_folder(folder)


async def _cut(log: Log, offset: int) -> None:
    """All the steps."""
    await log.derived.pause()
    log.truncation = truncation = Truncation(Unavailable(f"{log.folder} is being truncated to {offset}"))
    search: _Search | None = None
    try:
        log.check_usable()  # what was under way may have failed
        search = _search(log, min(offset, log.written_offset))
        await log.world.offload(search.run)
        producers = search.producers()
        last = search.last
        point = RecoveryPoint(search.end_offset, last.base_offset, last.size, log.truncations + 1)
        _announce(log, point)
        old = log.segments[len(search.before)]
        files = _files(log, [*search.before, old], producers, point.offset)
        unsynced = log.unsynced([*search.before, old])
        await log.world.offload(_prepare, log, unsynced, files, log.saved_point)
        log.cut([*search.before, last], producers, point)
        truncation.last = last
    except _SyncFailed as error:
        raise _failed(log, error) from error
    finally:
        if truncation.last is None:
            log.truncation = None
            log.derived.resume()
            if search is not None:
                search.last.close()
    await _finish(log, truncation)


def _search(log: Log, offset: int) -> _Search:
    i = bisect_right([segment.base_offset for segment in log.segments], offset) - 1
    waiting = {header.producer_id for header in log.pending_headers if header.producer_id >= 0}
    before, last, after = log.segments[:i], log.segments[i].twin(), log.segments[i + 1 :]
    return _Search(log, offset, before, last, after, log.world.clock.now_ms(), waiting)


def _announce(log: Log, point: RecoveryPoint) -> None:
    """The next start begins at the new end, or where it would have begun, if that is lower: a point that was saved
    before an earlier truncation must not count now. In memory this holds before step 3, and whether or not that
    succeeds: older points are not taken for newer ones, and compaction stays behind this one."""
    log.truncations = point.truncations
    lower = min(log.saved_point, point, key=lambda one: one.offset)
    log.saved_point = replace(lower, truncations=point.truncations)


def _files(log: Log, segments: list[Segment], producers: Producers, end_offset: int) -> dict[str, bytes | None]:
    """A snapshot as of the new end, those before it that wait to be saved, and the transaction indexes they need."""
    files: dict[str, bytes | None] = {}
    for segment in segments:
        if segment.last_offset >= log.derived.saved_offset:
            aborted = log.aborted.between(segment.base_offset, segment.last_offset + 1)
            files[file_name(segment.base_offset, "txnindex")] = AbortedTransactions.encode(aborted) if aborted else None
    files |= log.derived.snapshots_until(end_offset)
    files[file_name(end_offset, "snapshot")] = producers.snapshot(end_offset)
    return files


def _prepare(log: Log, unsynced: list[Segment], files: dict[str, bytes | None], begin: RecoveryPoint) -> None:
    """Steps 1 to 3, on a thread."""
    disk, folder = log.world.disk, log.folder
    for file in [segment.file for segment in unsynced]:  # all of them are opened before one is synced
        _sync(file)
    _sync_folder(disk, folder)
    for name, content in files.items():
        if content is None:
            disk.remove(f"{folder}/{name}")
        else:
            disk.replace_file(f"{folder}/{name}", content)
    save_truncated(disk, folder, begin)


async def _finish(log: Log, truncation: Truncation) -> None:
    """Steps 5 and 6, which may be repeated."""
    last = truncation.last
    if last is None:
        raise truncation.refusal
    try:
        await log.world.offload(_remove, log, last, log.end_offset)
    except _SyncFailed as error:
        raise _failed(log, error) from error
    except OSError as error:
        truncation.refusal = StorageFailed(
            f"{log.folder}: its truncation is not finished: {error.strerror or error}; truncate it again"
        )
        raise truncation.refusal from error
    log.recovery_point = RecoveryPoint(log.end_offset, last.base_offset, last.size, log.truncations)
    log.truncation = None
    log.derived.resume()


def _remove(log: Log, last: Segment, end_offset: int) -> None:
    """On a thread. By the names, not by what was known: a roll that the disk refused may have left a file, too."""
    disk, folder = log.world.disk, log.folder
    files = [(int(stem), suffix) for stem, _, suffix in (n.partition(".") for n in disk.list(folder)) if stem.isdigit()]
    for number, suffix in files:
        if suffix == "snapshot" and number > end_offset:
            disk.remove(f"{folder}/{file_name(number, suffix)}")
    _sync_folder(disk, folder)
    for number, suffix in files:
        path = f"{folder}/{file_name(number, suffix)}"
        if suffix == "txnindex" and number <= last.base_offset:
            cut_file(disk, path, end_offset)
        elif suffix == "txnindex" or (suffix in ("index", "timeindex") and number >= last.base_offset):
            disk.remove(path)
    for number, suffix in reversed(files):
        if suffix == "log" and number > last.base_offset:
            disk.remove(f"{folder}/{file_name(number, suffix)}")
    _sync_folder(disk, folder)
    last.shorten()
    _sync(last.file)


def _sync(file: File) -> None:
    try:
        file.sync()
    except OSError as error:
        raise _SyncFailed(error.strerror or error) from error


def _sync_folder(disk: Disk, path: str) -> None:
    folder = disk.open_folder(path)
    try:
        folder.sync()
    except OSError as error:
        raise _SyncFailed(error.strerror or error) from error
    finally:
        folder.close()


def _failed(log: Log, error: _SyncFailed) -> StorageFailed:
    failure = StorageFailed(f"{log.folder}: the disk failed to sync: {error}")
    log.fail(failure)
    return failure
