"""Telling batches from damage in a segment's bytes: is this one, is there nothing, where does the next one start.

For recovery and repair. Nothing here changes a file.
"""

from __future__ import annotations

from waystation.log.batches import batch as batches
from waystation.log.batches.batch import HEADER_SIZE, MAGIC, PREFIX_SIZE, Header
from waystation.log.segments.segment import Segment


def plausible(header: Header, room: int) -> bool:
    return header.magic == MAGIC and header.length >= HEADER_SIZE - PREFIX_SIZE and header.size <= room


def blank(segment: Segment, position: int, size: int) -> bool:
    """Whether only zeros follow: room that was allocated ahead and never used."""
    while position < size:
        data = segment.file.read(min(1024 * 1024, size - position), position)
        if not data:
            return True
        if data.strip(b"\0"):
            return False
        position += len(data)
    return True


def next_good_batch(
    segment: Segment, position: int, size: int, after_offset: int, before_offset: int | None = None
) -> int | None:
    """Where the next intact batch starts behind damage; found by looking at every byte that could be its magic."""
    window = 1024 * 1024
    beyond = after_offset + 2**31 if before_offset is None else before_offset
    while position < size:
        data = segment.file.read(min(window + HEADER_SIZE, size - position), position)
        at = data.find(b"\x02", 16)
        while 0 <= at < min(len(data), window + 16):
            start = at - 16
            if start + HEADER_SIZE <= len(data):
                header = batches.read_header(data, start)
                where = position + start
                if (
                    plausible(header, size - where)
                    and after_offset <= header.base_offset < beyond
                    and batches.intact(segment.file.read(header.size, where), 0, header)
                    and _followed(segment, where + header.size, size, header.last_offset + 1)
                ):
                    return where
            at = data.find(b"\x02", at + 1)
        position += window
    return None


def _followed(segment: Segment, position: int, size: int, offset: int) -> bool:
    """Whether `position` looks like the end of a batch: one that stands in a record's value has other neighbours."""
    data = segment.file.read(min(HEADER_SIZE, size - position), position)
    if not data.strip(b"\0") or int.from_bytes(data[:8], "big") == offset:
        return True
    if len(data) < HEADER_SIZE:
        return False
    header = batches.read_header(data)
    return header.magic == MAGIC and offset <= header.base_offset < offset + 2**31
