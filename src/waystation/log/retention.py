"""Old segments go: by age, by size, and when everything in them is below the log's start.

Whole segments only, oldest first, never one that is still being synced. The new start is durable before a file is
removed, so a crash in between never brings half of the past back.
"""

from __future__ import annotations

from itertools import pairwise

from waystation.log.log import Log
from waystation.log.segment import Segment


def expired_until(log: Log, now_ms: int) -> int:
    """The offset up to which records are too old or too many; the log's present start if none are."""
    settings = log.settings
    until = log.start_offset
    if not settings.deletes:
        return until
    if settings.retention_ms >= 0:
        for i, segment in enumerate(log.segments):
            if segment.size == 0 or segment.latest_timestamp() > now_ms - settings.retention_ms:
                break
            until = log.segments[i + 1].base_offset if i + 1 < len(log.segments) else log.written_offset
    if settings.retention_bytes >= 0:
        excess = log.size_bytes - settings.retention_bytes
        for segment, following in pairwise(log.segments):
            if excess < segment.size:
                break
            excess -= segment.size
            until = max(until, following.base_offset)
    return until


async def enforce(log: Log, now_ms: int) -> int:
    """Removes what retention says; returns how many segments went."""
    until = expired_until(log, now_ms)
    if until <= log.start_offset or log.failure is not None:
        return 0
    if until > log.active.base_offset and not log.pending_count:
        log.roll(log.end_offset)
        if log.on_write is not None:
            log.on_write(log)
    return await remove_before(log, until)


async def remove_before(log: Log, offset: int) -> int:
    """Moves the log's start to `offset`, durably, and removes the segments that are wholly below it."""
    gone = log.advance_start(offset)
    await log.world.offload(_save_and_remove, log, gone)
    return len(gone)


def _save_and_remove(log: Log, gone: list[Segment]) -> None:
    log.save_start()
    for segment in gone:
        segment.remove()
    if gone:
        log.world.disk.sync_folder(log.folder)
