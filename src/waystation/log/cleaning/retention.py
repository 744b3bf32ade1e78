"""Old segments go: by age, by size, and when everything in them is below the log's start. Where a topic has a number of
messages, its logs move their start by themselves, exactly (`Log.trim`); that is written down here.

Whole segments only, oldest first, never one that is still being synced. In a cluster also none that reaches above the
high watermark: what is above may be truncated, so it is not deleted, and nothing is deleted because of it. The new
start is durable before a file is removed, so a crash in between never brings half of the past back.
"""

from __future__ import annotations

from itertools import pairwise

from waystation.errors import StorageFailed
from waystation.log.log import Log
from waystation.log.segments.segment import Segment
from waystation.log.segments.swap import settle
from waystation.world.uncancelled import to_its_end


def expired_until(log: Log, now_ms: int, *, before: int | None = None) -> int:
    """The offset up to which records are too old or too many; the log's present start if none are. `before`: from there
    on they may be truncated."""
    settings = log.settings
    limit = log.written_offset if before is None else before
    until = log.start_offset
    if not settings.deletes:
        return until
    if settings.retention_ms >= 0:
        for i, segment in enumerate(log.segments):
            last = i + 1 == len(log.segments)
            end = log.written_offset if last else log.segments[i + 1].base_offset
            if end > limit or (last and segment.size == 0) or _age_ms(segment, now_ms) <= settings.retention_ms:
                break
            until = max(until, end)
    if settings.retention_bytes >= 0:
        excess = _size_before(log, limit) - settings.retention_bytes
        for segment, following in pairwise(log.segments):
            if following.base_offset > limit or excess < segment.size:
                break
            excess -= segment.size
            until = max(until, following.base_offset)
    return until


def _size_before(log: Log, offset: int) -> int:
    """In bytes; of a segment that reaches further, what its index knows to be before the offset."""
    size = log.size_bytes
    for segment in reversed(log.segments):
        if segment.last_offset < offset:
            break
        size -= segment.size - segment.index.floor(offset - segment.base_offset)
    return size


def _age_ms(segment: Segment, now_ms: int) -> int:
    """Of the newest record. Compaction may have left nothing; then it is as old as can be."""
    if segment.size == 0:
        return now_ms
    latest = segment.latest_timestamp()
    return now_ms - (latest if latest >= 0 else segment.created_ms)


SEALED_EARLY_BYTES = 1024 * 1024
"""A segment in use that is larger, and of which more is below the start than not, makes place for the next one: else a
topic of a hundred messages would have a file of `segment.bytes`."""


async def enforce(log: Log, now_ms: int, *, before: int | None = None) -> int:
    """Removes what retention says; returns how many segments went. `before`: from there on it may be truncated."""
    if _mostly_trimmed(log):
        begin_segment(log)
    until = expired_until(log, now_ms, before=before)
    below_start = len(log.segments) > 1 and log.segments[1].base_offset <= log.start_offset
    due = until > log.start_offset or below_start or log.start_offset > log.saved_start
    if log.failure is not None or log.truncation is not None or not due:
        return 0
    if until > max(log.active.base_offset, log.start_offset) and not begin_segment(log):
        until = log.active.base_offset  # what is before it can go all the same
    return await remove_before(log, until)


def _mostly_trimmed(log: Log) -> bool:
    most, active = log.settings.retention_messages, log.active
    return 0 <= most < log.start_offset - active.base_offset and active.size > SEALED_EARLY_BYTES


def begin_segment(log: Log) -> bool:
    """A new segment at the end, so that the one that was active can be removed. False: not now, as on a full disk."""
    if log.pending_count or log.failure is not None or log.truncation is not None:
        return False
    try:
        log.roll(log.end_offset)
    except OSError:
        return False
    finally:
        if log.on_write is not None:
            log.on_write(log)
    return True


async def remove_before(log: Log, offset: int) -> int:
    """Moves the log's start to `offset`, durably, and removes the segments that are wholly below it."""
    async with log.moving_start:  # one after another: the last to be saved must be the furthest
        if log.truncation is not None:
            raise log.truncation.refusal
        try:
            await settle(log)  # or it would be carried out at the next start, in place of what is removed here
        except OSError as error:
            raise StorageFailed(f"{log.folder}: a swap is not finished: {error.strerror or error}") from error
        return await _remove_before(log, min(offset, log.written_offset))


async def _remove_before(log: Log, offset: int) -> int:
    full = False
    offset = max(offset, log.start_offset)
    try:
        if not await _remember(log, offset):
            offset = min(offset, log.durable_offset)
    except OSError:
        full = True  # to have room again matters more than to know the producers after a crash in the next moments
    removed = log.advance_start(offset, even_without_snapshot=full)
    try:
        # Not `start_offset`: it may have moved on meanwhile, and the producers before it are not remembered yet.
        await to_its_end(log.world.offload(_save_and_remove, log, removed, offset))
    except OSError as error:
        raise StorageFailed(f"{log.folder}: cannot move the log's start: {error.strerror or error}") from error
    log.start_saved(offset)
    return len(removed)


async def _remember(log: Log, offset: int) -> bool:
    """Makes sure that everything before `offset` is durable, and that its producers are known without it. If the start
    were ahead of that, a power cut could take a batch below it and leave the next one of the same producer above."""
    while not await log.remember_producers(offset):
        log.check_usable()
        if not await log.derived.settled():
            return False
    return True


def _save_and_remove(log: Log, removed: list[Segment], start: int) -> None:
    try:
        log.save_start(start)
    except OSError:
        if not removed:
            raise
        _remove(log, removed)  # a full disk has no room to note that there will be room
        log.save_start(start)
    else:
        _remove(log, removed)


def _remove(log: Log, removed: list[Segment]) -> None:
    for segment in removed:
        segment.remove()
    if removed:
        log.world.disk.sync_folder(log.folder)
