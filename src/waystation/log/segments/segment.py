"""One segment of a log: a file of record batches, its indexes, and what is known about its bytes.

Only the last segment of a log is appended to. The file is allocated in steps ahead of the data, so that fdatasync
rarely has to write a new file size, and cut to its true length when sealed; a crash leaves zeros behind the last
batch, which read as "no batch here".

`verified` is the range of positions whose CRCs this process has seen match: it appended the bytes itself, or checked
them on a read. Reads outside it check before they hand anything out, so rot on the disk is found, once per run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from waystation.encryption.key_ring import DataKey, KeyRing
from waystation.errors import Corrupt, CorruptBatch
from waystation.log.batches.batch import (
    CONTROL,
    HEADER_SIZE,
    MAGIC,
    PREFIX_SIZE,
    Buffer,
    Header,
    intact,
    read_header,
    scan,
    skip_before,
)
from waystation.log.batches.sealed_batch import opened_batches, sealed_batch
from waystation.log.segments.index import OffsetIndex, TimeIndex, write_whole
from waystation.world.disk import Disk, File

FIRST_ALLOCATION = 64 * 1024
LARGEST_ALLOCATION = 8 * 1024 * 1024
WALK_BYTES = 64 * 1024


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}.{suffix}"


class Segment:
    """Constructed by the log. Not thread-safe, except that `sync` may run on a thread."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        base_offset: int,
        *,
        index_interval_bytes: int = 4096,
        keys: KeyRing | None = None,
    ) -> None:
        self.disk = disk
        self.keys = keys
        self.folder = folder
        self.base_offset = base_offset
        self.size = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.first_timestamp: int | None = None
        self.last_offset = base_offset - 1
        self.verified = (0, 0)
        self.created_ms = 0
        self.restored_epoch = -1  # of the last batch, when the indexes were loaded
        self.stored_as: str | None = None  # the file's name, where it is not yet that of a segment
        self._index_interval_bytes = index_interval_bytes
        self._since_index_entry = index_interval_bytes + 1  # the first batch always gets an entry
        self._allocated = 0
        self._key: DataKey | None = None  # taken with the first batch that this process writes
        self.read_end = (0, 0)  # of an encrypted log: (bytes, offset) behind what the last read gave
        self._file: File | None = None
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None

    # -- files ------------------------------------------------------------------------------------------------------

    def path(self, suffix: str = "log") -> str:
        if suffix == "log" and self.stored_as is not None:
            return f"{self.folder}/{self.stored_as}"
        return f"{self.folder}/{file_name(self.base_offset, suffix)}"

    @property
    def file(self) -> File:
        """Opened on first use: a broker with ten thousand idle partitions holds no handles for them."""
        if self._file is None:
            self._file = self.disk.open(self.path())
        return self._file

    def create(self, now_ms: int) -> None:
        """Makes the file. If the disk refuses, there is none: recovery would take it for where the log goes on."""
        file = self.disk.open(self.path(), create=True)
        try:
            if file.size():
                file.truncate(0)  # a file of this name can only be left from an unfinished roll
        except OSError:
            file.close()
            with contextlib.suppress(OSError):  # recovery sees that it is empty and lies within another
                self.disk.remove(self.path())
            raise
        self._file = file
        self.begin_empty()
        self.created_ms = now_ms

    def begin_empty(self) -> None:
        """There is nothing in it yet, so its indexes need not be looked for."""
        self._index = OffsetIndex()
        self._times = TimeIndex()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def seal(self) -> None:
        """The segment will not grow any more: give back the room that was allocated ahead."""
        if self.file.size() > self.size:
            self.file.truncate(self.size)
        self._allocated = self.size

    def write_indexes(self) -> None:
        if self.size:
            self.times.close(self.max_timestamp, max(0, self.last_offset - self.base_offset))
        write_whole(self.disk, self.path("timeindex"), self.times.to_bytes())
        write_whole(self.disk, self.path("index"), self.index.to_bytes())

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

    def _load_indexes(self, resumes: Sequence[int] = ()) -> None:
        """From the files as far as they fit the segment; what they do not cover is read."""
        was_open = self._file is not None
        index = OffsetIndex.from_bytes(self.disk.read_file(self.path("index")) or b"")
        times = TimeIndex.from_bytes(self.disk.read_file(self.path("timeindex")) or b"")
        if resumes or index is None or times is None or not self._fit(index, times):
            # Without a way around damage, torn, or of a history that a power cut undid. Later they might fit by chance.
            self.disk.remove(self.path("index"))
            self.disk.remove(self.path("timeindex"))
            index, times = OffsetIndex(), TimeIndex()
        self._index, self._times = index, times
        try:
            self._complete(index, times, resumes)
        except OSError:
            self._index = self._times = None  # half of it would answer for all
            raise
        finally:
            if not was_open:
                self.close()  # of a thousand segments that are asked for their times, few are read

    def _fit(self, index: OffsetIndex, times: TimeIndex) -> bool:
        """Whether the last entries speak of what is there, and the times have no hole."""
        if len(times) and self.base_offset + times.offsets[-1] > self.last_offset:
            return False
        if times.says_1970 and not self._begins_in_1970():
            return False
        if not len(index):
            return not len(times)
        position, relative = index.positions[-1], index.offsets[-1]
        data = self.file.read(HEADER_SIZE, position) if position < self.size else b""
        if len(data) < HEADER_SIZE:
            return False
        header = read_header(data)
        return header.magic == MAGIC and header.base_offset - self.base_offset == relative

    def _begins_in_1970(self) -> bool:
        """Else retention would believe a hole, and take what has no time of its own (markers, and records without
        timestamps) for older than anything that is kept."""
        data = self.file.read(HEADER_SIZE, 0) if self.size >= HEADER_SIZE else b""
        if len(data) < HEADER_SIZE:
            return False
        header = read_header(data)
        return header.magic == MAGIC and header.max_timestamp == 0 and not header.attributes & CONTROL

    def _complete(self, index: OffsetIndex, times: TimeIndex, resumes: Sequence[int]) -> None:
        """Walks what the indexes do not cover. `resumes`: where batches start again behind damage."""
        covered = times.offsets[-1] if len(times) else -1
        self.max_timestamp = times.timestamps[-1] if len(times) else -1
        self.max_timestamp_offset = self.base_offset + max(0, covered)
        indexed = index.positions[-1] if len(index) else -1
        reached = index.floor(covered)
        for start in (reached, *resumes):
            if start < reached:
                continue  # the damage before it does not keep us from walking on
            self._since_index_entry = self._index_interval_bytes + 1
            for position, header in self.walk(start):
                if position > indexed:
                    self._index_batch(position, header)
                elif position == indexed:
                    self._since_index_entry = header.size
                self._note(header)
                self.restored_epoch = header.leader_epoch
                reached = position + header.size
        if reached < self.size:
            self._since_index_entry = self._index_interval_bytes + 1  # what is appended can be found behind the damage
        if self.size >= HEADER_SIZE:
            first = read_header(self.file.read(HEADER_SIZE, 0))
            self.first_timestamp = first.base_timestamp if first.magic == MAGIC else None

    def restore(self, size: int, end_offset: int, resumes: Sequence[int] = ()) -> None:
        """Takes the segment, to be appended to, as `size` bytes that end before `end_offset`."""
        self.size = size
        self.last_offset = max(end_offset, self.base_offset) - 1
        self.verified = (0, 0)
        self._allocated = self.file.size()
        self._load_indexes(resumes)

    def restore_sealed(self, size: int, last_offset: int) -> None:
        """Takes a segment that is followed by others as it is; nothing is read until somebody asks."""
        self.size = self._allocated = size
        self.last_offset = last_offset

    def twin(self) -> Segment:
        """The same segment with a handle and indexes of its own, for a thread."""
        made = Segment(
            self.disk,
            self.folder,
            self.base_offset,
            index_interval_bytes=self._index_interval_bytes,
            keys=self.keys,
        )
        made.restore_sealed(self.size, self.last_offset)
        made.created_ms = self.created_ms
        if self._index is not None and self._times is not None:
            made._index, made._times = self._index.before(2**32), self._times.up_to(2**32)
        return made

    def cut(self, size: int, end_offset: int) -> None:
        """Takes only the first `size` bytes, which end before `end_offset`. The file is as it was."""
        index, times = self.index, self.times
        self.size = size
        self.last_offset = max(end_offset, self.base_offset) - 1
        self.verified = (0, 0)
        self.first_timestamp = None
        self._index = index.before(size)
        self._times = times.up_to(self.last_offset - self.base_offset)
        self._complete(self._index, self._times, ())

    def shorten(self) -> None:
        """The file ends where the segment does; durable when it is synced."""
        self.file.truncate(self.size)
        self._allocated = self.size

    def latest_timestamp(self) -> int:
        """The largest timestamp of a record in the segment, -1 if there is none."""
        if self._times is None:
            self._load_indexes()
        return self.max_timestamp

    def earliest_timestamp(self) -> int | None:
        """The first batch's base timestamp."""
        if self._times is None:
            self._load_indexes()
        return self.first_timestamp

    def take(self, position: int, header: Header) -> None:
        """A batch was written at `position`, behind all others."""
        self._index_batch(position, header)
        self._note(header)

    def _index_batch(self, position: int, header: Header) -> None:
        if self._since_index_entry > self._index_interval_bytes:
            self.index.add(max(0, header.base_offset - self.base_offset), position)
            if self.max_timestamp >= 0:
                self.times.add(self.max_timestamp, max(0, self.max_timestamp_offset - self.base_offset))
            self._since_index_entry = 0
        self._since_index_entry += header.size

    def _note(self, header: Header) -> None:
        last_offset = header.base_offset + header.last_offset_delta
        if last_offset > self.last_offset:
            self.last_offset = last_offset
        if header.max_timestamp > self.max_timestamp and not header.attributes & CONTROL:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = last_offset
        if self.first_timestamp is None:
            self.first_timestamp = header.base_timestamp

    # -- append -----------------------------------------------------------------------------------------------------

    def append(self, batch: Buffer, header: Header) -> None:
        """Writes a placed batch at the end. If the disk refuses, the segment is as it was."""
        position = self.size
        parts = [batch] if self.keys is None else self.stored(batch)
        end = position + (len(batch) if self.keys is None else len(parts[0]) + len(parts[1]))
        if end > self._allocated:
            self._allocate(end)
        self.file.write(parts, position)
        self.take(position, header)
        if self.verified[1] == position:
            self.verified = (self.verified[0], end)
        self.size = end

    def stored(self, batch: Buffer) -> list[Buffer]:
        """A batch as the file has it."""
        if self.keys is None:
            return [batch]
        if self._key is None:
            self._key = self.keys.new_data_key()
        return sealed_batch(self._key, batch)

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
        near = min(WALK_BYTES, self._index_interval_bytes + HEADER_SIZE)  # it begins before the index's next entry
        for position, header in self.walk(self.index.floor(offset - self.base_offset), near, from_offset=offset):
            if header.base_offset + header.last_offset_delta >= offset:
                return position, header
        return None

    def walk(self, position: int, chunk: int = WALK_BYTES, *, from_offset: int = -1) -> Iterator[tuple[int, Header]]:
        """Positions and headers from `position` to the end or to the first thing that is no batch of this segment;
        batches that end before `from_offset` may be left out. `chunk`: bytes of the first read.

        The CRC does not cover a batch's offset: that it goes up and stays in the segment is all that can be checked.
        """
        lowest, highest = self.base_offset, self.last_offset
        while position + HEADER_SIZE <= self.size:
            start = position
            data = self.file.read(min(chunk, self.size - position), position)
            chunk = max(chunk, WALK_BYTES)
            begin, lowest = skip_before(data, from_offset, lowest, highest)
            position = start + begin
            for at, header in _headers(data, begin, self.size - start):
                last = header.base_offset + header.last_offset_delta
                if header.base_offset < lowest or last > highest or header.last_offset_delta < -1:
                    return
                yield start + at, header
                lowest = last + 1
                position = start + at + header.size
            if position == start:
                return

    def read(self, position: int, size: int) -> bytes:
        """Bytes as they were appended, CRC-checked unless this process knows them; CorruptBatch if the first batch is
        bad.

        Of an encrypted log only whole batches.
        """
        size = min(size, self.size - position)
        data = self.file.read(size, position)
        low, high = self.verified
        if not (low <= position and position + len(data) <= high):
            data = self._checked(data, position)
        if self.keys is None:
            return data
        try:
            data, offset = opened_batches(self.keys, data)
        except Corrupt as error:
            raise CorruptBatch(f"{self.path()} at position {position}: {error}") from error
        self.read_end = (len(data), offset)
        return data

    def _checked(self, data: bytes, position: int) -> bytes:
        """The intact beginning of `data`. CRCs do not cover base offsets, so those must ascend within the segment."""
        end = 0
        offset = self.base_offset
        for at, header in scan(data):
            in_place = offset <= header.base_offset and header.last_offset <= self.last_offset
            if not (in_place and intact(data, at, header)):
                break
            offset = header.last_offset + 1
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


def _headers(data: bytes, begin: int, room: int) -> Iterator[tuple[int, Header]]:
    """The whole batches in `data` from `begin` on; where the first of all is larger than that, it alone, since only its
    header is needed."""
    at = begin - 1
    for at, header in scan(data, begin):
        yield at, header
    if at < 0 and len(data) >= HEADER_SIZE:
        header = read_header(data)
        if header.magic == MAGIC and HEADER_SIZE - PREFIX_SIZE <= header.length <= room - PREFIX_SIZE:
            yield 0, header
