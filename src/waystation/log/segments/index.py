"""Sparse indexes of one segment: offset → position, and timestamp → offset.

Derived data: everything here can be rebuilt from the segment, and is, when a file is missing or does not fit. Entries
live in compact arrays in memory; the files are written when a segment is sealed, at checkpoints and at a clean stop.
They are never fsynced on the write path.

On disk, big-endian as Kafka writes them: `.index` has (relative offset u32, position u32), `.timeindex` has
(timestamp i64, relative offset u32); both ascending.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

from waystation.world.disk import Disk

_TIME_ENTRY = struct.Struct(">qI")


class OffsetIndex:
    """Where to start looking for an offset. An entry is (offset - base of the segment, position of its batch)."""

    __slots__ = ("offsets", "positions")

    ENTRY_SIZE = 8

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def floor(self, relative_offset: int) -> int:
        """The position of the last indexed batch that starts at or before the offset; 0 where there is none."""
        i = bisect_right(self.offsets, relative_offset) - 1
        return self.positions[i] if i >= 0 else 0

    def before(self, position: int) -> OffsetIndex:
        """A copy, of the batches that start before `position`."""
        keep = bisect_left(self.positions, position)
        made = OffsetIndex()
        made.offsets, made.positions = self.offsets[:keep], self.positions[:keep]
        return made

    def to_bytes(self) -> bytes:
        mixed = array("I", bytes(self.ENTRY_SIZE * len(self.offsets)))
        mixed[0::2] = self.offsets
        mixed[1::2] = self.positions
        if sys.byteorder == "little":
            mixed.byteswap()
        return mixed.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> OffsetIndex | None:
        """The index, or None if the bytes cannot be one."""
        if len(data) % cls.ENTRY_SIZE:
            return None
        mixed = array("I", data)
        if sys.byteorder == "little":
            mixed.byteswap()
        index = cls()
        index.offsets = mixed[0::2]
        index.positions = mixed[1::2]
        if not (_ascends(index.offsets) and _ascends(index.positions)):
            return None
        return index


class TimeIndex:
    """An entry (timestamp, relative offset) says: up to this offset, no record has a later timestamp than this.

    Transaction markers are no records here. An entry is true by itself, so the beginning of a time index is one too.
    Not so one with a hole, as a power cut leaves it: that reads as zeros, and says of an offset that nothing up to it
    is later than 1970. Offsets go up from entry to entry, so a hole shows, but for one first entry of zeros, which may
    be meant (`says_1970`).
    """

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("I")

    def __len__(self) -> int:
        return len(self.timestamps)

    def add(self, timestamp: int, relative_offset: int) -> None:
        if not self.timestamps or timestamp > self.timestamps[-1]:
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def close(self, timestamp: int, relative_offset: int) -> None:
        """Says the same of everything up to `relative_offset`: whoever reads the file knows how far it reaches."""
        if not self.offsets or (timestamp >= self.timestamps[-1] and relative_offset > self.offsets[-1]):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    @property
    def says_1970(self) -> bool:
        """Whether the first entry is what a hole in the file reads as."""
        return bool(self.offsets) and self.timestamps[0] == self.offsets[0] == 0

    def floor(self, timestamp: int) -> int:
        """A relative offset at or before the first record with a timestamp of at least `timestamp`."""
        i = bisect_left(self.timestamps, timestamp) - 1
        return self.offsets[i] if i >= 0 else 0

    def up_to(self, relative_offset: int) -> TimeIndex:
        """A copy, of what is said of offsets up to this one."""
        keep = bisect_right(self.offsets, relative_offset)
        made = TimeIndex()
        made.timestamps, made.offsets = self.timestamps[:keep], self.offsets[:keep]
        return made

    def to_bytes(self) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, self.timestamps, self.offsets))

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeIndex | None:
        """The index, or None if the bytes cannot be one."""
        if len(data) % _TIME_ENTRY.size:
            return None
        index = cls()
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        return index if _ascends(index.timestamps) and _ascends(index.offsets, strictly=True) else None


def _ascends(values: array[int], *, strictly: bool = False) -> bool:
    return all(map(int.__lt__ if strictly else int.__le__, values[:-1], values[1:]))


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """Writes a derived file: no fsync, since it is rebuilt when it does not fit."""
    file = disk.open(path, create=True)
    try:
        file.write([data], 0)
        file.truncate(len(data))
    finally:
        file.close()
