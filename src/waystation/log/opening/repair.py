"""Cutting damage out of a log, so that readers can pass it. For a person to decide, with the broker stopped.

A damaged range is everything from the first byte that is no intact batch to the next intact batch (or the end). `skip`
rewrites the segment without those ranges and keeps the removed bytes beside it as `….log.corrupt-POSITION`. Offsets do
not change: where records were deleted there is a gap, which every consumer understands.
"""

from __future__ import annotations

import msgspec

from waystation.config import TopicSettings
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import HEADER_SIZE
from waystation.log.log import Log
from waystation.log.opening.recovery import segment_bases
from waystation.log.segments.damage import blank, next_good_batch, plausible
from waystation.log.segments.segment import Segment
from waystation.log.segments.swap import CLEANED
from waystation.world import World


class Damage(msgspec.Struct, frozen=True):
    """A range of bytes that readers cannot pass."""

    segment: int  # base offset, which names the file
    path: str
    start: int
    end: int
    first_offset: int  # the first offset that is unreadable
    next_offset: int | None  # the next readable one; None: nothing follows in this segment


def find(world: World, folder: str) -> list[Damage]:
    """Reads the whole log and tells what is damaged. Changes nothing."""
    log = Log(world, folder, TopicSettings())
    bases = segment_bases(world.disk.list(folder))
    return [damage for base in bases for damage in _find_in(log.new_segment(base))]


def _find_in(segment: Segment) -> list[Damage]:
    size = segment.disk.size(segment.path()) or 0
    segment.size = size
    found: list[Damage] = []
    position = 0
    offset = segment.base_offset
    try:
        while position < size:
            header = _good_batch(segment, position, size, offset)
            if header is not None:
                offset = header.last_offset + 1
                position += header.size
                continue
            if blank(segment, position, size):
                break
            good = next_good_batch(segment, position + 1, size, offset)
            end = size if good is None else good
            following = None if good is None else batches.read_header(segment.file.read(HEADER_SIZE, good)).base_offset
            found.append(Damage(segment.base_offset, segment.path(), position, end, offset, following))
            position = end
    finally:
        segment.close()
    return found


def _good_batch(segment: Segment, position: int, size: int, offset: int) -> batches.Header | None:
    data = segment.file.read(HEADER_SIZE, position)
    if len(data) < HEADER_SIZE:
        return None
    header = batches.read_header(data)
    if not plausible(header, size - position) or not offset <= header.base_offset < offset + 2**31:
        return None
    return header if batches.intact(segment.file.read(header.size, position), 0, header) else None


def skip(world: World, folder: str, damages: list[Damage]) -> None:
    """Rewrites the damaged segments without their damaged ranges; durable when it returns."""
    log = Log(world, folder, TopicSettings())
    for base in sorted({damage.segment for damage in damages}):
        _rewrite(world, log.new_segment(base), [damage for damage in damages if damage.segment == base])
    world.disk.sync_folder(folder)


def _rewrite(world: World, segment: Segment, damages: list[Damage]) -> None:
    disk = world.disk
    temporary = segment.path() + CLEANED
    target = disk.open(temporary, create=True)
    size = disk.size(segment.path()) or 0
    target.truncate(0)
    written = position = 0
    for start, end in [*((damage.start, damage.end) for damage in damages), (size, size)]:
        while position < start:
            chunk = segment.file.read(min(1024 * 1024, start - position), position)
            target.write([chunk], written)
            written += len(chunk)
            position += len(chunk)
        if end > start:
            disk.replace_file(f"{segment.path()}.corrupt-{start}", segment.file.read(end - start, start))
        position = end
    target.sync()
    target.close()
    segment.close()
    for suffix in ("index", "timeindex"):
        disk.remove(segment.path(suffix))
    disk.rename(temporary, segment.path())
