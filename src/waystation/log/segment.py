"""One segment of a log: a file of record batches, its indexes, and what is known about its bytes.

Only the last segment of a log is appended to. The file is allocated in steps ahead of the data, so that fdatasync
rarely has to write a new file size, and cut to its true length when sealed; a crash leaves zeros behind the last
batch, which read as "no batch here".

`verified` is the range of positions whose CRCs this process has seen match: it appended the bytes itself, or checked
them on a read. Reads outside it check before they hand anything out, so rot on the disk is found, once per run.
"""

from __future__ import annotations

from collections.abc import Iterator

from waystation.errors import CorruptBatch
from waystation.log.batch import HEADER_SIZE, MAGIC, PREFIX_SIZE, Buffer, Header, intact, read_header, scan
from waystation.log.index import OffsetIndex, TimeIndex, write_whole
from waystation.world.disk import Disk, File

SCAN_CHUNK = 1024 * 1024
FIRST_ALLOCATION = 64 * 1024
LARGEST_ALLOCATION = 8 * 1024 * 1024
MAX_POSITION = 2**32 - 1
"""Positions in the index are unsigned 32-bit; segment.bytes stays far below."""


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}.{suffix}"


class Segment:
    """Constructed by the log. Not thread-safe, except that `sync` may run on a thread."""

    def __init__(self, disk: Disk, folder: str, base_offset: int, *, index_interval_bytes: int = 4096) -> None:
        self.disk = disk
        self.folder = folder
        self.base_offset = base_offset
        self.size = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.first_timestamp: int | None = None
        self.last_offset = base_offset - 1
        self.verified = (0, 0)
        self.created_ms = 0
        self._index_interval_bytes = index_interval_bytes
        self._since_index_entry = index_interval_bytes + 1  # the first batch always gets an entry
        self._allocated = 0
        self._file: File | None = None
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None

    # -- files ------------------------------------------------------------------------------------------------------

    def path(self, suffix: str = "log") -> str:
        return f"{self.folder}/{file_name(self.base_offset, suffix)}"

    @property
    def file(self) -> File:
        """Opened on first use: a broker with ten thousand idle partitions holds no handles for them."""
        if self._file is None:
            self._file = self.disk.open(self.path())
        return self._file

    def create(self, now_ms: int) -> None:
        self._file = self.disk.open(self.path(), create=True)
        self._file.truncate(0)  # a file of this name can only be left from an unfinished roll
        self._index = OffsetIndex()
        self._times = TimeIndex()
        self.created_ms = now_ms

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def seal(self) -> None:
        """The segment will not grow any more: give back the room that was allocated ahead."""
        if self._allocated > self.size:
            self.file.truncate(self.size)
            self._allocated = self.size

    def write_indexes(self) -> None:
        write_whole(self.disk, self.path("index"), self.index.to_bytes())
        self.times.add(self.max_timestamp, max(0, self.max_timestamp_offset - self.base_offset))
        write_whole(self.disk, self.path("timeindex"), self.times.to_bytes())

    def remove(self) -> None:
        """Removes the files; indexes first, so that an index never stands without its log."""
        self.close()
        for suffix in ("index", "timeindex", "txnindex", "snapshot", "log"):
            self.disk.remove(self.path(suffix))

    # -- indexes ----------------------------------------------------------------------------------------------------

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            self._load_indexes()
        return self._index  # type: ignore[return-value]  # set by the line above

    @property
    def times(self) -> TimeIndex:
        if self._times is None:
            self._load_indexes()
        return self._times  # type: ignore[return-value]

    def _load_indexes(self) -> None:
        """From the files where they fit the segment, else by walking it."""
        offsets = OffsetIndex.from_bytes(self.disk.read_file(self.path("index")) or b"")
        times = TimeIndex.from_bytes(self.disk.read_file(self.path("timeindex")) or b"")
        if (
            offsets is None
            or times is None
            or (self.size and not (len(offsets) and len(times)))
            or not self._fits(offsets)
        ):
            self.rebuild(0)
        else:
            self._index, self._times = offsets, times

    def _fits(self, index: OffsetIndex) -> bool:
        """Whether the index's last entry points at the batch that it says."""
        if not len(index):
            return True
        position, relative = index.positions[-1], index.offsets[-1]
        data = self.file.read(HEADER_SIZE, position) if position < self.size else b""
        if len(data) < HEADER_SIZE:
            return False
        header = read_header(data)
        return header.magic == MAGIC and header.base_offset - self.base_offset == relative

    def restore(self, size: int) -> None:
        """Takes the segment as `size` bytes long: indexes from their files up to there, the rest by walking it."""
        self.size = size
        self._allocated = self.file.size()
        self.verified = (0, 0)
        index, times = self.index, self.times
        index.cut(size)
        start = index.positions[-1] if len(index) else 0
        times.cut(index.offsets[-1] + 1 if len(index) else 0)
        self.last_offset = self.base_offset - 1
        self.max_timestamp, self.max_timestamp_offset = -1, self.base_offset
        if len(times):
            self.max_timestamp = times.timestamps[-1]
            self.max_timestamp_offset = self.base_offset + times.offsets[-1]
        indexed = len(index) > 0
        for position, header in self.walk(start):
            if indexed and position == start:
                self._since_index_entry = header.size
            else:
                self._index_batch(position, header)
            self._note(header)
        if size:
            self.first_timestamp = read_header(self.file.read(HEADER_SIZE, 0)).base_timestamp

    def restore_sealed(self, size: int, last_offset: int) -> None:
        """Takes a segment that is followed by others as it is; nothing is read until somebody asks."""
        self.size = self._allocated = size
        self.last_offset = last_offset

    def latest_timestamp(self) -> int:
        """The largest timestamp in the segment, -1 if it has none."""
        times = self.times
        if self.max_timestamp < 0 and len(times):
            self.max_timestamp = times.timestamps[-1]
            self.max_timestamp_offset = self.base_offset + times.offsets[-1]
        return self.max_timestamp

    def rebuild(self, position: int) -> None:
        """Makes the indexes anew from `position` on; they are right before it."""
        if position == 0:
            self._index, self._times = OffsetIndex(), TimeIndex()
            self.max_timestamp, self.max_timestamp_offset = -1, self.base_offset
            self.last_offset = self.base_offset - 1
        self._since_index_entry = self._index_interval_bytes + 1
        for at, header in self.walk(position):
            self._index_batch(at, header)
            self._note(header)

    def _index_batch(self, position: int, header: Header) -> None:
        if self._since_index_entry > self._index_interval_bytes:
            self.index.add(max(0, header.base_offset - self.base_offset), position)
            if self.max_timestamp >= 0:
                self.times.add(self.max_timestamp, max(0, self.max_timestamp_offset - self.base_offset))
            self._since_index_entry = 0
        self._since_index_entry += header.size

    def _note(self, header: Header) -> None:
        self.last_offset = header.base_offset + header.last_offset_delta
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = self.last_offset
        if self.first_timestamp is None:
            self.first_timestamp = header.base_timestamp

    # -- append -----------------------------------------------------------------------------------------------------

    def append(self, batch: Buffer, header: Header) -> None:
        """Writes a placed batch at the end. If the disk refuses, the segment is as it was."""
        position = self.size
        end = position + len(batch)
        if end > self._allocated:
            self._allocate(end)
        self.file.write([batch], position)
        self._index_batch(position, header)
        self._note(header)
        if self.verified[1] == position:
            self.verified = (self.verified[0], end)
        self.size = end

    def _allocate(self, needed: int) -> None:
        step = min(LARGEST_ALLOCATION, max(FIRST_ALLOCATION, self.size))
        target = -(-needed // step) * step
        try:
            self.file.allocate(target)
        except OSError:
            # No room for the whole step: there may still be enough for this batch, and the write will tell.
            return
        self._allocated = target

    # -- read -------------------------------------------------------------------------------------------------------

    def find(self, offset: int) -> tuple[int, Header] | None:
        """Position and header of the batch that holds `offset`, or the first one after it; None: beyond the end."""
        for position, header in self.walk(self.index.floor(offset - self.base_offset)):
            if header.base_offset + header.last_offset_delta >= offset:
                return position, header
        return None

    def walk(self, position: int, chunk: int = 64 * 1024) -> Iterator[tuple[int, Header]]:
        """Positions and headers from `position` to the end or to the first thing that is no batch."""
        while position + HEADER_SIZE <= self.size:
            data = self.file.read(min(chunk, self.size - position), position)
            start = position
            for at, header in scan(data):
                yield start + at, header
                position = start + at + header.size
            if position != start:
                continue
            # Not one whole batch in the chunk: a large one (only its header is needed), or the end of what is readable.
            if len(data) < HEADER_SIZE:
                return
            header = read_header(data)
            after = position + header.length + PREFIX_SIZE
            if header.magic != MAGIC or header.length < HEADER_SIZE - PREFIX_SIZE or after > self.size:
                return
            yield position, header
            position = after

    def read(self, position: int, size: int) -> bytes:
        """Bytes as stored, CRC-checked unless this process knows them; CorruptBatch if the first batch is bad."""
        size = min(size, self.size - position)
        data = self.file.read(size, position)
        low, high = self.verified
        if low <= position and position + len(data) <= high:
            return data
        return self._checked(data, position)

    def _checked(self, data: bytes, position: int) -> bytes:
        end = 0
        for at, header in scan(data):
            if not intact(data, at, header):
                break
            end = at + header.size
        if end == 0 and len(data) >= HEADER_SIZE:
            header = read_header(data)
            partial = header.magic == MAGIC and header.size > len(data) and position + header.size <= self.size
            if not partial:
                raise CorruptBatch(f"{self.path()} is corrupt at position {position}")
            return b""
        low, high = self.verified
        if low <= position <= high:
            self.verified = (low, max(high, position + end))
        elif position < low <= position + end:
            self.verified = (position, high)
        elif high == low:
            self.verified = (position, position + end)
        return data[:end]

    def truncate(self, size: int) -> None:
        """Cuts the segment: what was behind `size` is gone, also from the indexes."""
        self.file.truncate(size)
        low, high = self.verified
        self.restore(size)
        self.verified = (min(low, size), min(high, size))
