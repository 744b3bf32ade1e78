"""Encrypting the segments that are there already, and counting what is encrypted with which key.

A segment is rewritten beside itself (`….log.cleaned`, which a start removes), synced, and renamed: after a crash it is
the old one or the new one, whole. Offsets stay, positions change: so the indexes are removed before, and the recovery
point must not name a position in it any more. For a stopped broker's folder, whose last stop was clean; `usage` only
reads, at any time."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from waystation.config import TopicSettings
from waystation.encryption.key_ring import PREFIX, PREFIX_SIZE
from waystation.errors import Corrupt, CorruptBatch
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import ENCRYPTED, HEADER_SIZE, Header
from waystation.log.batches.sealed_batch import opened_batches
from waystation.log.log import Log
from waystation.log.opening.recovery import segment_bases
from waystation.log.segments.damage import blank
from waystation.log.segments.segment import Segment
from waystation.log.segments.swap import CLEANED
from waystation.world import World

CHUNK_BYTES = 1024 * 1024


class Usage(msgspec.Struct):
    """Bytes of batches: plain ones, and encrypted ones by the number of their folder key. `damaged`: behind damage
    there may be more, of which nothing is known."""

    plain: int = 0
    encrypted: dict[int, int] = msgspec.field(default_factory=dict)
    damaged: bool = False

    def add(self, other: Usage) -> None:
        self.plain += other.plain
        for number, size in other.encrypted.items():
            self.encrypted[number] = self.encrypted.get(number, 0) + size
        self.damaged = self.damaged or other.damaged

    def needs(self, active: int) -> bool:
        """Whether there is anything but what this key has sealed."""
        return bool(self.plain or self.encrypted.keys() - {active})


def usage(world: World, folder: str) -> Usage:
    """Of one log. What is damaged is not counted."""
    found = Usage()
    for segment in _segments(world, folder):
        try:
            found.add(_usage_of(segment))
        finally:
            segment.close()
    return found


def encrypt(world: World, folder: str, *, everything: bool) -> int:
    """Rewrites the segments that have plain batches; `everything`: also those of earlier folder keys. Returns the bytes
    that were rewritten. CorruptBatch names a damaged segment; that one is as it was. Blocks."""
    if world.keys is None:
        raise RuntimeError("there are no keys to encrypt with")
    total = 0
    for segment in _segments(world, folder):
        try:
            used = _usage_of(segment)
            if used.damaged or used.plain or (everything and used.needs(world.keys.active)):
                total += _rewrite(world, segment)
        finally:
            segment.close()
    return total


def _segments(world: World, folder: str) -> Iterator[Segment]:
    log = Log(world, folder, TopicSettings())
    for base in segment_bases(world.disk.list(folder)):
        segment = log.new_segment(base)
        segment.size = world.disk.size(segment.path()) or 0
        yield segment


def _stored(segment: Segment) -> Iterator[tuple[int, bytes, Header]]:
    """Position, bytes and header of each batch; until something else comes."""
    position = 0
    while position + HEADER_SIZE <= segment.size:
        data = segment.file.read(min(CHUNK_BYTES, segment.size - position), position)
        if len(data) < HEADER_SIZE:
            return
        first = batches.read_header(data)
        if first.magic != batches.MAGIC or not HEADER_SIZE <= first.size <= segment.size - position:
            return
        if first.size > len(data):
            data = segment.file.read(first.size, position)
        end = 0
        for at, header in batches.scan(data):
            yield position + at, data[at : at + header.size], header
            end = at + header.size
        if not end:
            return
        position += end


def _usage_of(segment: Segment) -> Usage:
    found = Usage()
    end = 0
    for position, data, header in _stored(segment):
        end = position + header.size
        if header.attributes & ENCRYPTED and header.size >= HEADER_SIZE + PREFIX_SIZE:
            number = PREFIX.unpack_from(data, HEADER_SIZE)[0]
            found.encrypted[number] = found.encrypted.get(number, 0) + header.size
        else:
            found.plain += header.size
    if end < segment.size and not blank(segment, end, segment.size):
        found.damaged = True
    return found


def _rewrite(world: World, segment: Segment) -> int:
    disk = world.disk
    temporary = segment.path() + CLEANED
    target = disk.open(temporary, create=True)
    written = 0
    try:
        target.truncate(0)
        for opened in _opened(world, segment):
            parts = segment.stored(opened)
            target.write(parts, written)
            written += sum(map(len, parts))
        target.sync()
    except BaseException:
        target.close()
        disk.remove(temporary)
        raise
    target.close()
    for suffix in ("index", "timeindex"):
        disk.remove(segment.path(suffix))
    disk.rename(temporary, segment.path())
    disk.sync_folder(segment.folder)
    return written


def _opened(world: World, segment: Segment) -> Iterator[bytes]:
    """Each batch as it was appended. All of the file has to be read: what is left out here would be lost."""
    if world.keys is None:
        raise RuntimeError("there are no keys to open with")
    end = 0
    for position, data, header in _stored(segment):
        if not batches.intact(data, 0, header):
            break
        try:
            yield opened_batches(world.keys, data)[0]
        except Corrupt as error:
            raise CorruptBatch(f"{segment.path()} at position {position}: {error}") from error
        end = position + header.size
    if end < segment.size and not blank(segment, end, segment.size):
        raise CorruptBatch(f"{segment.path()} is corrupt at position {end}")
