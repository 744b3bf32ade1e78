"""Opening a log: after a clean stop by believing the files, after anything else by reading what might be torn.

What lies before the recovery point was synced and is not read again here (readers check CRCs on first use). Behind it,
every batch is checked. Where that ends early there are two stories, and they are told apart by the machine's boot id:

- The machine went down: bytes that were not yet synced may be missing or torn. Nothing from the first bad batch on was
  ever acknowledged as durable, so the log ends there. If whole batches stand behind it, the tail is kept beside the
  segment as `….log.cut-POSITION`, for a person to look at.
- Only the process died (or the broker stopped cleanly, or nothing is known): the kernel kept every byte, so a bad batch
  with good ones behind it is damage, not an unfinished write. It stays, readers get CORRUPT_MESSAGE at that offset, and
  nothing behind it is lost. A bad batch at the very end is an unfinished write and is cut.

What was checked is then written again, byte for byte, and synced. Reading it proves only that the page cache has it: if
an fsync has failed before, the kernel takes those pages for clean, and syncing alone would not write them. Where
nothing is behind the recovery point there is nothing to be synced, unless a truncation has begun since it was saved: of
what that has removed, the page cache does not say whether it is lost from the disk, too.

Then producer state and the transaction index are brought up to date from the newest snapshot and the batches behind it.

Recovery gives no leader epochs. Those of the log are what its batches say: read from them behind the recovery point,
and from the file before it; if that is lost or behind, from the batches too. Which epoch is next is for whoever leads
the log (`Log.lead`); for a broker alone, `lead_alone` says it.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from waystation.config import TopicSettings
from waystation.errors import CorruptBatch, StorageFailed
from waystation.log.aborted import AbortedTransactions, cut_file
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import HEADER_SIZE, Header
from waystation.log.epochs import UNKNOWN, Epochs
from waystation.log.log import START_FILE, Log
from waystation.log.opening import overlaps
from waystation.log.points import TRUNCATED_FILE, trusted_point
from waystation.log.producers import Producers
from waystation.log.segments.damage import blank, next_good_batch, plausible
from waystation.log.segments.segment import Segment, file_name
from waystation.log.segments.swap import CLEANED, REFUSED, SWAP, SwapFile
from waystation.log.sync import RecoveryPoint
from waystation.observe.events import event_logger
from waystation.world import World

logger = event_logger("waystation.recovery")


Checked = list[tuple[Segment, int]]
"""Segments that were read, each with the position from which on."""


class Trust(msgspec.Struct, frozen=True):
    """What the last run left behind."""

    point: RecoveryPoint | None
    clean: bool
    same_boot: bool
    truncating: bool = False  # a truncation has begun since the point was saved; `open_log` finds that out

    @property
    def nothing_lost(self) -> bool:
        """Whether all that was ever written is still there, be it good or bad."""
        return self.same_boot or self.clean


def open_log(
    world: World,
    folder: str,
    settings: TopicSettings,
    trust: Trust,
    *,
    tier: int = 0,
    replicated: bool = False,
    on_write: Callable[[Log], None] | None = None,
) -> Log:
    """The log in `folder`, recovered, created if it is new. Blocks while it reads."""
    log = Log(world, folder, settings, tier=tier, replicated=replicated, on_write=on_write)
    names = world.disk.list(folder)
    point, log.truncations = trusted_point(world.disk, folder, trust.point, TRUNCATED_FILE in names)
    if point is None and trust.point is not None:  # what is known does not count: then nothing is lost, for all we know
        trust = replace(trust, same_boot=True)
    truncating = trust.point is not None and trust.point.truncations < log.truncations
    trust = replace(trust, point=point, clean=trust.clean and not truncating, truncating=truncating)
    if not names:
        world.disk.make_folder(folder)
    names = _settle_names(log, names)
    log.start_offset = log.saved_start = _saved_start(world, folder)
    bases = segment_bases(names)
    log.epochs.load()
    log.known_epoch = log.epochs.latest
    believed = False
    if bases:
        believed = _open_segments(log, bases, names, trust)
    else:
        log.roll(log.start_offset)
        log.end_offset = log.written_offset = log.start_offset
    log.epoch = max(0, log.epochs.latest)
    log.known_epoch = max(log.known_epoch, log.epochs.latest)
    log.durable_offset = log.end_offset
    if point is not None and (believed or log.failure is not None):
        log.recovery_point = point
    elif log.failure is not None:
        log.recovery_point = RecoveryPoint(log.start_offset, log.segments[0].base_offset, -1)
    else:
        active = log.active
        log.recovery_point = RecoveryPoint(log.end_offset, active.base_offset, active.size, log.truncations)
    if not replicated:
        log.trim(log.end_offset)
    for segment in log.segments:
        segment.close()  # opened again on first use
    return log


def lead_alone(log: Log, trust: Trust) -> None:
    """A log that was just opened is led by a broker without others: in the latest epoch that it knows, or in a new one
    if the machine went down, since records that were read may be lost. Blocks."""
    epoch = max(0, log.known_epoch)
    if not trust.nothing_lost and (log.end_offset > 0 or log.known_epoch >= 0):
        with _unless_full(log.folder):
            log.lead(epoch + 1)
    elif epoch > log.epochs.latest and log.known_epoch >= 0:
        log.epoch = epoch  # it has begun, and no batch of it is left
        log.epochs.note(epoch, log.end_offset)


def segment_bases(names: list[str]) -> list[int]:
    """The base offsets of the segments among a folder's files."""
    return sorted(int(name[:-4]) for name in names if len(name) == 24 and name.endswith(".log") and name[:20].isdigit())


def _saved_start(world: World, folder: str) -> int:
    text = world.disk.read_file(f"{folder}/{START_FILE}") or b"0"
    if not text.isdigit():
        logger.error("log.start_damaged", "damaged, taken as 0: {file}", file=f"{folder}/{START_FILE}")
        return 0
    return int(text)


def _open_segments(log: Log, bases: list[int], names: list[str], trust: Trust) -> bool:
    """Returns whether the recovery point has everything, and goes on to count. Otherwise all of it is synced here."""
    bases = overlaps.settle(log, bases)
    checked: Checked | None = None
    if trust.clean and trust.point is not None and _take_clean(log, bases, trust.point):
        read_from = log.end_offset
        log.epochs.cut(read_from)  # the file could not be saved after a truncation, for all we know
    else:
        read_from, checked = _check_tail(log, bases, trust)
    log.start_offset = max(log.start_offset, log.segments[0].base_offset)
    log.end_offset = max(log.end_offset, log.start_offset)
    log.written_offset = log.end_offset
    _settle_epochs(log, read_from, after_crash=checked is not None)
    _restore_producers(log, names, trust)
    if log.active.base_offset + 2**31 <= log.end_offset:
        log.roll(log.end_offset)  # offsets in its index have 32 bits
    if checked is None:
        return True
    point = trust.point
    if trust.truncating or not trust.nothing_lost or point is None or not _nothing_behind(log, point, checked):
        _sync_checked(log, checked)
        return False
    # All data is durable, and what was truncated is deleted for good. But a segment that was just sealed may have a
    # length, and one that was just begun a name, that a power cut takes back: no recovery point names it before the
    # folder is synced.
    for segment, _ in checked[:-1]:
        segment.file.sync()
    log.doubt_names()
    return True


def _nothing_behind(log: Log, point: RecoveryPoint, checked: Checked) -> bool:
    first, start = checked[0]
    return (log.end_offset, first.base_offset, start) == (point.offset, point.segment, point.position)


def _settle_names(log: Log, names: list[str]) -> list[str]:
    """Removes what was being written, and finishes or undoes the swap of a compaction. Returns what is there then."""
    disk, folder = log.world.disk, log.folder
    logs = {name.removesuffix(".log") for name in names if name.endswith(".log")}
    for name in names:
        stem, _, suffix = name.partition(".")
        if name.endswith((CLEANED, ".new")) or (suffix in ("index", "timeindex", "txnindex") and stem not in logs):
            disk.remove(f"{folder}/{name}")
    reach = -1
    for swap in _swaps(log, names):
        _settle_swap(log, swap, segment_bases(disk.list(folder)), first_of_its_range=swap.base > reach)
        reach = max(reach, swap.end)
    return disk.list(folder)


def _swaps(log: Log, names: list[str]) -> list[SwapFile]:
    """In order; of two with one base, the newer one first: it was made from at least as much."""
    found = []
    for name in names:
        base, _, end = name.removesuffix(SWAP).partition("-")
        if name.endswith(SWAP) and base.isdigit() and end.isdigit():
            found.append(SwapFile(log.world.disk, log.folder, int(base), int(end)))
    return sorted(found, key=lambda swap: (swap.base, -swap.end))


def _settle_swap(log: Log, swap: SwapFile, bases: list[int], *, first_of_its_range: bool) -> None:
    """A swap whose first segment is deleted is finished: it has the only copy. One that has not begun is not needed.

    What fits neither was left by a failure, and newer files have replaced those that it was made from. Put in their
    place it would undo them.
    """
    left = [base for base in bases if swap.base <= base <= swap.end]
    begun = swap.base not in left
    before = [base for base in bases if base < swap.base]
    fits = first_of_its_range and (not left or left[-1] == swap.end)
    if begun and fits and before:
        fits = overlaps.end_of(log, before[-1]) <= swap.base
    if not fits:
        logger.error(
            "swap.unusable", "{file} does not fit the segments that are there: set aside, not used", file=swap.path
        )
        log.world.disk.rename(swap.path, swap.path + REFUSED)
        return
    if not begun:
        log.world.disk.remove(swap.path)
        return
    swap.clear()
    swap.take_place()
    log.world.disk.sync_folder(log.folder)


# -- after a clean stop ---------------------------------------------------------------------------------------------


def _take_clean(log: Log, bases: list[int], point: RecoveryPoint) -> bool:
    """Believes the files if they are exactly as the clean stop left them."""
    if bases[-1] != point.segment:
        return False
    active = log.new_segment(bases[-1])
    if log.world.disk.size(active.path()) != point.position:
        return False
    log.adopt([*_sealed(log, bases), active])
    active.restore(point.position, point.offset)
    log.end_offset = point.offset
    return True


def _sealed(log: Log, bases: list[int]) -> list[Segment]:
    segments = []
    for base, following in pairwise(bases):
        segment = log.new_segment(base)
        segment.restore_sealed(log.world.disk.size(segment.path()) or 0, following - 1)
        segments.append(segment)
    return segments


# -- after a crash --------------------------------------------------------------------------------------------------


def _check_tail(log: Log, bases: list[int], trust: Trust) -> tuple[int, Checked]:
    """Reads every batch behind the recovery point and settles where the log ends. Returns from which offset on it read,
    and what."""
    point = trust.point
    first_checked = max(0, bisect_right(bases, point.segment) - 1) if point is not None else 0
    checked: Checked = []
    read_from = 0
    for i, base in enumerate(bases[first_checked:], first_checked):
        segment = log.new_segment(base)
        following = bases[i + 1] if i + 1 < len(bases) else None
        start = 0
        log.end_offset = max(log.end_offset, base)
        if (
            point is not None
            and base == point.segment
            and 0 <= point.position <= (log.world.disk.size(segment.path()) or 0)
        ):
            start, log.end_offset = point.position, point.offset
        if not checked:
            read_from = log.end_offset
            log.epochs.cut(read_from)  # the batches say it, and the file may be of another history
        _check_segment(log, segment, start, following, trust)
        checked.append((segment, start))
        durable = max(log.end_offset, log.start_offset, -1 if point is None else point.offset)
        if not trust.nothing_lost and following is not None and following > durable:
            for later in bases[i + 1 :]:
                _put_aside(log.new_segment(later))
            break
    log.adopt([*_sealed(log, bases[: first_checked + 1]), *(segment for segment, _ in checked)])
    if trust.point is not None and log.end_offset < trust.point.offset:
        logger.error(
            "records.lost",
            "{file}: ends at {end}, but was on the disk up to {durable}; those records are lost, their offsets are not"
            " used again",
            file=log.active.path(),
            end=log.end_offset,
            durable=trust.point.offset,
        )
        log.end_offset = trust.point.offset
    log.epochs.cut(log.end_offset)
    return read_from, checked


def _check_segment(log: Log, segment: Segment, start: int, following: int | None, trust: Trust) -> None:
    """Checks the batches from `start` on; cuts what an unfinished write left, keeps what is damage."""
    size = segment.disk.size(segment.path()) or 0
    end = start
    resumes: list[int] = []
    damaged = False
    beyond = segment.base_offset + 2**31  # what its index could not say
    if following is not None:
        beyond = min(beyond, following)
    while end < size:
        checked = _check_chunk(segment, end, size, log, beyond)
        if checked > end:
            end = checked
            continue
        if blank(segment, end, size):
            segment.file.truncate(end)
            break
        good = next_good_batch(segment, end + 1, size, log.end_offset, beyond)
        if not trust.nothing_lost or (good is None and (following is None or following <= log.end_offset)):
            misplaced = good is None and next_good_batch(segment, end, size, log.end_offset) is not None
            if misplaced:
                logger.error(
                    "segment.overlaps",
                    "{file} reaches into {following}; readers get what the later one has",
                    file=segment.path(),
                    following=file_name(beyond, "log"),
                )
            _cut(segment, end, size, keep_tail=misplaced or good is not None)
            break
        logger.error(
            "batch.corrupt",
            "corrupt batch: {file} at position {position}; readers get an error there",
            file=segment.path(),
            position=end,
        )
        damaged = True
        if good is None:  # the last of its segment, and others follow: it was whole once
            end, log.end_offset = size, following or log.end_offset
        else:
            end = good
            resumes.append(good)
    segment.restore(end, log.end_offset, resumes)
    segment.verified = (0, 0) if damaged else (start, end)
    if damaged:
        with _unless_full(segment.path()):
            segment.write_indexes()  # the next start will not look for the way around it


def _put_aside(segment: Segment) -> None:
    """A segment behind a torn batch: nothing in it was acknowledged as durable. Kept for a person, as a cut tail is."""
    size = segment.disk.size(segment.path()) or 0
    segment.size = size
    if not blank(segment, 0, size):
        logger.warning(
            "segment.truncated", "cut {bytes} bytes behind an unfinished write: {file}", bytes=size, file=segment.path()
        )
        segment.disk.rename(segment.path(), f"{segment.path()}.cut-0")
    segment.remove()


def _check_chunk(segment: Segment, position: int, size: int, log: Log, beyond: int) -> int:
    """Checks a megabyte or at least one batch; returns where the intact batches end and moves the log's end along.

    Intact means also that the offsets go up and stay below `beyond`.
    """
    data = segment.file.read(min(1024 * 1024, size - position), position)
    if len(data) < HEADER_SIZE:
        return position
    first = batches.read_header(data)
    if not plausible(first, size - position):
        return position
    if first.size > len(data):
        data = segment.file.read(first.size, position)
    end = 0
    for at, header in batches.scan(data):
        in_place = log.end_offset <= header.base_offset and header.last_offset < beyond
        if not in_place or not batches.intact(data, at, header):
            break
        end = at + header.size
        log.end_offset = header.last_offset + 1
        log.epochs.note(header.leader_epoch, header.base_offset)
    return position + end


def _cut(segment: Segment, position: int, size: int, *, keep_tail: bool) -> None:
    logger.warning(
        "segment.truncated",
        "cut {bytes} bytes of an unfinished write from {file} at position {position}",
        bytes=size - position,
        file=segment.path(),
        position=position,
    )
    if keep_tail:
        tail = segment.file.read(size - position, position)
        with _unless_full(segment.path()):
            segment.disk.replace_file(f"{segment.path()}.cut-{position}", tail)
    segment.file.truncate(position)


def _sync_checked(log: Log, checked: Checked) -> None:
    """What recovery found may only be in the page cache; from here on it counts as durable, so make it so."""
    for segment, start in checked:
        try:
            _write_again(segment, start)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # A file system that never writes in place has no room. Readers are served, and the next start tries again.
            log.fail(StorageFailed(f"{segment.path()}: no room to write its end again: {error.strerror}"))
        segment.file.sync()
    if log.active is not checked[-1][0]:
        log.active.file.sync()
    log.world.disk.sync_folder(log.folder)


def _write_again(segment: Segment, start: int) -> None:
    """Makes the kernel write these pages, also those that a failed fsync has left as clean."""
    position = start
    while position < segment.size:
        data = segment.file.read(min(1024 * 1024, segment.size - position), position)
        if not data:
            break
        segment.file.write([data], position)
        position += len(data)


@contextmanager
def _unless_full(what: str) -> Iterator[None]:
    """For what is good to have but no reason not to start: a broker on a full disk still serves its readers."""
    try:
        yield
    except OSError as error:
        logger.warning(
            "recovery.incomplete", "{part}: recovery could not write all it wanted: {error}", part=what, error=error
        )


# -- leader epochs -----------------------------------------------------------------------------------------------------


def _settle_epochs(log: Log, read_from: int, *, after_crash: bool) -> None:
    """Up to `read_from` the epochs are those of the file. If it cannot be right, they are read from the batches."""
    epochs = log.epochs
    before = [entry for entry in epochs.entries if entry[1] < read_from]
    latest = before[-1][0] if before else UNKNOWN
    ahead = bool(before) and before[0][1] > log.start_offset  # it knows of a new start that a crash has undone
    if epochs.lost or ahead or (after_crash and _epoch_before(log, read_from) > latest):
        found = Epochs(log.world.disk, log.folder)
        for header in _where_epochs_change(log, read_from):
            found.note(header.leader_epoch, header.base_offset)
        for epoch, offset in epochs.entries:
            if offset >= read_from:
                found.note(epoch, offset)
        if found.entries != epochs.entries:
            logger.warning(
                "epochs.unusable", "{log}: its leader epochs do not fit, and are read from the batches", log=log.folder
            )
            epochs.entries, epochs.changed = found.entries, True
    epochs.drop_before(log.start_offset)


def _epoch_before(log: Log, offset: int) -> int:
    """Of the last batch before `offset`."""
    if offset == log.end_offset and log.active.restored_epoch >= 0:
        return log.active.restored_epoch  # mostly: nothing was written behind the recovery point
    for segment in reversed(log.segments):
        if segment.base_offset < offset:
            found = UNKNOWN
            for _, header in segment.walk(segment.index.floor(offset - 1 - segment.base_offset)):
                if header.base_offset >= offset:
                    break
                found = header.leader_epoch
            if found != UNKNOWN:
                return found
    return UNKNOWN


def _where_epochs_change(log: Log, until: int) -> Iterator[Header]:
    """Batches before `until`, the first of every epoch among them. Epochs go up, so only the first batch is read of a
    segment that begins and ends in the same one."""
    segments = [segment for segment in log.segments if segment.base_offset < until]
    firsts = [_first_header(segment) for segment in segments]
    for i, segment in enumerate(segments):
        first = firsts[i]
        following = next((header for header in firsts[i + 1 :] if header is not None), None)
        if first is not None and following is not None and first.leader_epoch == following.leader_epoch:
            yield first
            continue
        for _, header in segment.walk(0):
            if header.base_offset >= until:
                break
            yield header


def _first_header(segment: Segment) -> Header | None:
    first = next((header for _, header in segment.walk(0)), None)
    segment.close()  # opened again on next use: there may be thousands
    return first


# -- producers and transactions ---------------------------------------------------------------------------------------


def _restore_producers(log: Log, names: list[str], trust: Trust) -> None:
    offset = _newest_snapshot(log, names, trust)
    now_ms = log.world.clock.now_ms()
    for segment in log.segments:
        for entry in cut_file(log.world.disk, segment.path("txnindex"), log.end_offset):
            if entry.last_offset < offset:
                log.aborted.add(entry)
    if offset >= log.end_offset:
        return
    for i, segment in enumerate(log.segments):
        if segment.last_offset < offset:
            continue
        if segment.base_offset > offset and log.producers.by_id:  # as when the segment was begun: see `derived.py`
            before = log.segments[i - 1]
            aborted = log.aborted.between(before.base_offset, segment.base_offset)
            log.derived.note(file_name(before.base_offset, "txnindex"), AbortedTransactions.encode(aborted) or None)
            log.derived.note(file_name(segment.base_offset, "snapshot"), log.producers.snapshot(segment.base_offset))
        for position, header in segment.walk(segment.index.floor(max(0, offset - segment.base_offset))):
            if header.base_offset < offset or header.producer_id < 0:
                continue
            try:
                data = segment.read(position, header.size) if header.control else b""
                log.apply(data, header, now_ms)
            except CorruptBatch as error:
                logger.error("marker.corrupt", "corrupt marker: {error}", error=error)


def _newest_snapshot(log: Log, names: list[str], trust: Trust) -> int:
    """Loads the newest usable snapshot and returns its offset; those beyond the log's end are of a lost history.

    A truncation that was interrupted may have removed some of those before it. They are made again, from the one below
    the gap on, or the next truncation would not find what only they remember."""
    disk = log.world.disk
    offsets = sorted(int(name.partition(".")[0]) for name in names if name.endswith(".snapshot"))
    usable = _before_gap(log, offsets, trust) if trust.truncating else log.end_offset
    for offset in reversed(offsets):
        path = f"{log.folder}/{file_name(offset, 'snapshot')}"
        if offset > min(usable, log.end_offset):
            disk.remove(path)
            continue
        restored = Producers.restore(disk.read_file(path) or b"")
        if restored is not None and restored[0] <= log.end_offset:
            log.producers = restored[1]
            log.derived.restored(restored[0])
            return restored[0]
        disk.remove(path)
    return log.start_offset if not log.segments else log.segments[0].base_offset


def _before_gap(log: Log, snapshots: list[int], trust: Trust) -> int:
    """The snapshot behind which the truncation has removed others, its own: segments behind that begin without one.

    Segments that begin without one before the recovery point were found so by an earlier start, and may be compacted:
    what was written there by producers is known by later snapshots alone."""
    truncated = 0 if trust.point is None else trust.point.offset  # to there or to behind it
    for lower, upper in pairwise(snapshots):
        if lower >= truncated and any(lower < segment.base_offset < upper for segment in log.segments):
            return lower
    return log.end_offset
