"""Segments whose names overlap, found at start: which of them is right is decided by what is in them.

Readers look for an offset in the segment with the largest base that is not above it. So a file whose base lies before
the end of the segment before it would hide that segment's last records. What such a file can be:

- Empty, or only room that was allocated ahead: left by a roll that the disk refused. It is removed.
- Batches that all come after the segment before it: written by a broker that took such an empty file for the last
  segment. Only the name is wrong, and is put right.
- Batches with offsets that the segment before it has too: damage. An error is logged, and nothing is thrown away:
  readers get the later file's batches, and the earlier file's stay where they are or beside it (`….log.cut-POSITION`).

Costs the reading of one header per segment; only where that is not what the name says, the one before it is looked at.
"""

from __future__ import annotations

from contextlib import closing

from waystation.log.batches.batch import HEADER_SIZE, read_header
from waystation.log.log import Log
from waystation.log.segments.damage import blank, plausible
from waystation.log.segments.segment import Segment, file_name
from waystation.observe.events import event_logger

logger = event_logger("waystation.recovery")


def settle(log: Log, bases: list[int]) -> list[int]:
    """The bases of the log's segments once no empty or misnamed file stands in another's place."""
    kept = bases[:1]
    for base in bases[1:]:
        with closing(log.new_segment(base)) as segment:
            first = _first_offset(segment)
        if first == base:  # nearly always
            kept.append(base)
            continue
        end = end_of(log, kept[-1])
        if end <= base:
            kept.append(base)  # a new segment, or compaction has left a gap
        elif first is None:
            logger.warning(
                "segment.removed", "removed an empty segment that lay within another: {file}", file=segment.path()
            )
            log.world.disk.remove(segment.path())
        elif first >= end:
            logger.error(
                "segment.renamed",
                "{file} begins with offset {offset}, the segment before it ends with {previous}: renamed",
                file=segment.path(),
                offset=first,
                previous=end - 1,
            )
            _rename(segment, first)
            kept.append(first)
        else:
            logger.error(
                "segment.overlaps",
                "{file} begins with offset {offset}, but the segment before it reaches {previous}; readers get what the"
                " later one has",
                file=segment.path(),
                offset=first,
                previous=end - 1,
            )
            kept.append(base)
    return kept


def _first_offset(segment: Segment) -> int | None:
    """Of the first batch; None if there is nothing in the file. If that cannot be read, what the name says."""
    size = segment.disk.size(segment.path()) or 0
    data = segment.file.read(HEADER_SIZE, 0) if size else b""
    if len(data) == HEADER_SIZE:
        header = read_header(data)
        if plausible(header, size):
            return header.base_offset
    return None if blank(segment, 0, size) else segment.base_offset


def end_of(log: Log, base: int) -> int:
    """Behind the last batch of a segment, whatever the names of others say."""
    end = base
    with closing(log.new_segment(base)) as segment:
        segment.restore_sealed(log.world.disk.size(segment.path()) or 0, base + 2**31)
        for _, header in segment.walk(segment.index.floor(2**31)):
            end = header.last_offset + 1
    return end


def _rename(segment: Segment, base: int) -> None:
    """The transaction index is there under both names until the segment has its new one; the others are made again."""
    disk = segment.disk
    aborted = disk.read_file(segment.path("txnindex"))
    if aborted is not None:
        disk.replace_file(f"{segment.folder}/{file_name(base, 'txnindex')}", aborted)
    disk.rename(segment.path(), f"{segment.folder}/{file_name(base, 'log')}")
    for suffix in ("index", "timeindex", "txnindex"):
        disk.remove(segment.path(suffix))
