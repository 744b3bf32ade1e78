"""Compaction: of all records with the same key, only the newest needs to stay.

It works on sealed segments below the last stable offset, in two passes on a thread: first the newest offset of every
key, then new files with only the records that are still the newest. Offsets never change: a compacted log has gaps.
In a cluster it also stays below the high watermark: what is above may be truncated, and then the record before it is
the newest of its key again.
A tombstone (a record without a value) stays until `delete.retention.ms` after the pass that first saw it as the newest,
so that readers have time to see it; that moment is noted in the batch itself, as Kafka does (attribute bit 6, base
timestamp). Records of aborted transactions go; those of committed ones become plain records; markers go with age.

Neighbouring small segments become one. How a new file takes the place of old ones is in `segments/swap.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from waystation.encryption.key_ring import KeyRing
from waystation.errors import Corrupt, CorruptBatch, InvalidRecord, TooLarge
from waystation.log.aborted import Aborted
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL, Header, Record
from waystation.log.batches.compression import compress
from waystation.log.batches.sealed_batch import opened_batches
from waystation.log.log import Log
from waystation.log.segments.segment import Segment
from waystation.log.segments.swap import SwapFile, settle, swap_in

MAX_KEYS = 2_000_000
"""Keys in the map of one pass, about 300 MB; what is behind them waits for the next pass."""


class CompactionPlan(msgspec.Struct, frozen=True):
    """What one pass will do. Without segments: only end a swap that the disk interrupted."""

    segments: list[Segment]
    dirty_from: int
    aborted: dict[int, list[Aborted]]  # by producer id
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    truncations: int  # of the log so far: after another one the plan is void


def due(log: Log, now_ms: int, *, before: int | None = None) -> CompactionPlan | None:
    """A plan, if enough of the log has not been compacted yet. `before`: from there on it may be truncated."""
    settings = log.settings
    if log.failure is not None or log.truncation is not None:
        return None
    if log.swap is not None:
        return CompactionPlan([], 0, {}, now_ms, settings.delete_retention_ms, settings.segment_bytes, log.truncations)
    if not settings.compacts:
        return None
    stable = log.stable_offset if before is None else min(before, log.stable_offset)
    segments: list[Segment] = []
    for segment, following in pairwise(log.segments):
        if segment.base_offset >= log.saved_point.segment:
            break  # a crash now would be recovered from a position in this file
        too_fresh = segment.latest_timestamp() > now_ms - settings.min_compaction_lag_ms
        if following.base_offset > stable or log.uses(segment) or (settings.min_compaction_lag_ms and too_fresh):
            break
        segments.append(segment)
    clean = sum(segment.size for segment in segments if segment.last_offset < log.cleaned_offset)
    dirty = sum(segment.size for segment in segments) - clean
    if dirty == 0:
        return None
    overdue = any(
        (segment.earliest_timestamp() or 0) < now_ms - settings.max_compaction_lag_ms
        for segment in segments
        if segment.last_offset >= log.cleaned_offset
    )
    if dirty / (clean + dirty) < settings.min_cleanable_dirty_ratio and not overdue:
        return None
    aborted: dict[int, list[Aborted]] = {}
    for entry in log.aborted.overlapping(segments[0].base_offset, segments[-1].last_offset + 1):
        aborted.setdefault(entry.producer_id, []).append(entry)
    return CompactionPlan(
        segments, log.cleaned_offset, aborted, now_ms, settings.delete_retention_ms, settings.segment_bytes,
        log.truncations,
    )  # fmt: skip


async def compact(log: Log, plan: CompactionPlan) -> int:
    """Carries out a plan; returns the bytes that were freed. Nothing, if the log is truncated meanwhile."""
    try:
        return await _compact(log, plan)
    except (CorruptBatch, OSError):
        if log.truncations == plan.truncations:
            raise
        return 0  # what it was reading has been cut or removed


async def _compact(log: Log, plan: CompactionPlan) -> int:
    async with log.moving_start:
        await settle(log)
    if not plan.segments:
        return 0
    before = sum(segment.size for segment in plan.segments)
    newest, until = await log.world.offload(_newest_offsets, log, plan)
    if not await log.remember_producers(until):
        return 0
    made: list[Segment] = []
    for group in _groups(plan, until):
        segment = await log.world.offload(_rewrite, log, plan, group, newest)
        async with log.moving_start:
            if not await swap_in(log, group, segment, plan.truncations):
                return 0
        made.append(segment)
    if log.truncations == plan.truncations:
        log.cleaned_offset = max(log.cleaned_offset, until)
    return before - sum(segment.size for segment in made)


def _groups(plan: CompactionPlan, until: int) -> Iterator[list[Segment]]:
    """Runs of neighbours that together fit one segment."""
    group: list[Segment] = []
    size = 0
    for segment in plan.segments:
        if segment.base_offset >= until:
            break
        if group and (
            size + segment.size > plan.segment_bytes or segment.last_offset - group[0].base_offset > 2**31 - 1
        ):
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group


def _newest_offsets(log: Log, plan: CompactionPlan) -> tuple[dict[bytes, int], int]:
    """The newest offset of each key in the part that was not compacted before, and how far the map reaches."""
    newest: dict[bytes, int] = {}
    until = plan.segments[0].base_offset
    for segment in plan.segments:
        if segment.last_offset >= plan.dirty_from:
            for data, header in _batches(log, segment):
                if header.control or _is_aborted(plan, header):
                    continue
                for record in _records(data, header):
                    if record.key is not None:
                        newest[record.key] = record.offset
        until = segment.last_offset + 1
        if len(newest) > MAX_KEYS:
            break
    return newest, until


def _batches(log: Log, segment: Segment) -> Iterator[tuple[bytes, Header]]:
    """A segment's batches, read through a handle of this thread's own."""
    keys = log.world.keys
    reader = Segment(log.world.disk, log.folder, segment.base_offset, keys=keys)
    reader.restore_sealed(segment.size, segment.last_offset)
    end = 0
    try:
        for position, header in reader.walk(0, 1024 * 1024):
            behind = position + header.size
            data = reader.file.read(header.size, position)
            if not batches.intact(data, 0, header):
                break
            if keys is not None:
                data, header = _opened(keys, segment, data, position)
            yield data, header
            end = behind
        if end < reader.size:
            raise CorruptBatch(f"{segment.path()} is corrupt at position {end}: not compacted")
    finally:
        reader.close()


def _opened(keys: KeyRing, segment: Segment, data: bytes, position: int) -> tuple[bytes, Header]:
    try:
        data, _ = opened_batches(keys, data)
    except Corrupt as error:
        raise CorruptBatch(f"{segment.path()} at position {position}: {error}: not compacted") from error
    return data, batches.read_header(data)


def _records(data: bytes, header: Header) -> list[Record]:
    """A batch's records; none if it does not open. It is then as its producer sent it, and stays so."""
    try:
        return list(batches.records_of(data, header))
    except (InvalidRecord, TooLarge):
        return []


def _is_aborted(plan: CompactionPlan, header: Header) -> bool:
    return header.transactional and any(
        entry.first_offset <= header.base_offset <= entry.last_offset
        for entry in plan.aborted.get(header.producer_id, ())
    )


def _rewrite(log: Log, plan: CompactionPlan, group: list[Segment], newest: dict[bytes, int]) -> Segment:
    """Writes the group's surviving records to one file, durable, ready to be swapped in."""
    disk = log.world.disk
    base = group[0].base_offset
    temporary = SwapFile(disk, log.folder, base, group[-1].base_offset).cleaned
    made = log.new_segment(base)
    made.begin_empty()
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        for segment in group:
            for data, header in _batches(log, segment):
                kept = _filter(plan, data, header, newest)
                if kept is not None:
                    stored = made.stored(kept)
                    file.write(stored, made.size)
                    made.take(made.size, batches.read_header(kept))
                    made.size += sum(map(len, stored))
        file.sync()
    except OSError:
        disk.remove(temporary)  # a full disk needs the room
        raise
    finally:
        file.close()
    made.restore_sealed(made.size, group[-1].last_offset)
    return made


def _filter(plan: CompactionPlan, data: bytes, header: Header, newest: dict[bytes, int]) -> bytes | bytearray | None:
    """The batch with the records that stay; None if none do."""
    if header.control:
        return data if header.max_timestamp > plan.now_ms - plan.delete_retention_ms else None
    if _is_aborted(plan, header):
        return None
    horizon = header.base_timestamp if header.attributes & DELETE_HORIZON else None
    everything = _records(data, header)
    if not everything and header.record_count:
        return data
    expired = horizon is not None and horizon <= plan.now_ms
    kept = [record for record in everything if _stays(record, newest, expired)]
    if not kept:
        return None
    tombstones = any(record.value is None for record in kept)
    if len(kept) == len(everything) and not header.transactional and not (tombstones and horizon is None):
        return data
    if tombstones and horizon is None:
        horizon = plan.now_ms + plan.delete_retention_ms
    return _rebuild(header, kept, horizon if tombstones else None)


def _stays(record: Record, newest: dict[bytes, int], tombstones_expired: bool) -> bool:
    if record.key is None or newest.get(record.key, record.offset) > record.offset:
        return False
    return record.value is not None or not tombstones_expired


def _rebuild(header: Header, kept: list[Record], horizon: int | None) -> bytearray:
    attributes = header.attributes & ~(TRANSACTIONAL | CONTROL | DELETE_HORIZON)
    base_timestamp = kept[0].timestamp
    if horizon is not None:
        attributes |= DELETE_HORIZON
        base_timestamp = horizon
    body, count = batches.encode_records(kept, header.base_offset, base_timestamp)
    latest = header.max_timestamp if attributes & LOG_APPEND_TIME else max(record.timestamp for record in kept)
    return batches.assemble(
        header._replace(attributes=attributes, base_timestamp=base_timestamp, max_timestamp=latest, record_count=count),
        compress(header.codec, body),
    )
