"""Messages read out of topics: what read_committed readers may see, decoded once for all who stand at the same place.

A `PartitionReader` watches one partition for everybody who listens to it; a `Place` is where one of them stands.
Nothing above the stable offset is shown, nothing of an aborted transaction, and no control records. A batch whose
records do not parse (its checksum is right: that is what some producer sent) is passed over with a word in the log.

Memory: a decoded chunk lives as long as somebody stands in the middle of it, no longer.

For live and stream subscriptions, history and search; on the loop's thread only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple
from weakref import ref

from waystation.errors import InvalidRecord, TooLarge
from waystation.log.aborted import Aborted
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import HEADER_SIZE, Header
from waystation.log.batches.compression import decompress, opened_limit
from waystation.message import Delivered
from waystation.observe.events import event_logger
from waystation.topics.partitions.partition import Partition
from waystation.topics.partitions.unfinished_batches import UnfinishedBatch
from waystation.topics.records.record_reading import BEGIN, some_of
from waystation.world.offload import Offload

logger = event_logger("waystation.reading")

CHUNK_BYTES = 256 * 1024
"""Read and decoded in one go: about 4 ms for messages of 100 bytes, so that others have their turn in between."""

CHUNK_RECORDS = 10_000
"""The most messages that are decoded in one go: about 11 ms. A batch that has more is decoded in pieces."""

AWAY_BYTES = 4 * 1024
"""Compressed batches of more than this are decoded on a thread by all who can wait for one."""

HISTORY_BYTES = 16 * 1024 * 1024
"""How far back, in stored bytes of one partition, the newest messages are looked for."""

Listener = Callable[[], None]


class Chunk:
    """Consecutive messages of a partition: everything visible from `first` up to `next`."""

    __slots__ = ("__weakref__", "first", "messages", "next")

    def __init__(self, first: int, next_offset: int, messages: list[Delivered]) -> None:
        self.first = first
        self.next = next_offset
        self.messages = messages

    def index_of(self, offset: int) -> int:
        """Where the first message is that is not before `offset`."""
        if offset <= self.first:
            return 0
        return bisect_left(self.messages, offset, key=lambda delivered: delivered.offset)


class StoredBytes(NamedTuple):
    """Bytes of a partition's log, and what it takes to decode them. Nothing in it changes."""

    topic: str
    partition: int
    offset: int
    data: bytes
    aborted: Sequence[Aborted]
    most: int
    limit: int
    unfinished: UnfinishedBatch | None

    @property
    def heavy(self) -> bool:
        """Whether a thread should decode it: nobody knows how much is in something compressed."""
        return any(header.codec and header.size > AWAY_BYTES for _, header in batches.scan(self.data))


class Decoded(NamedTuple):
    chunk: Chunk
    unfinished: UnfinishedBatch | None


def read_stored(
    partition: Partition, offset: int, max_bytes: int = CHUNK_BYTES, most: int = CHUNK_RECORDS
) -> StoredBytes:
    """What is stored from `offset` on; OffsetOutOfRange outside of the log."""
    topic = partition.topic
    data = partition.read(offset, max_bytes, partition.stable_offset)
    return StoredBytes(
        topic.name,
        partition.index,
        offset,
        data,
        partition.aborted_in(offset, data),
        min(most, CHUNK_RECORDS),
        opened_limit(topic.settings.max_message_bytes),
        partition.unfinished.of(partition.topic.id, partition.index),
    )


def decode(stored: StoredBytes) -> Decoded:
    """Its messages, no more than were asked for. Touches nothing else, so it may run on a thread."""
    messages: list[Delivered] = []
    following, left = stored.offset, stored.most
    for position, header in batches.scan(stored.data):
        if not left:
            break
        if not (header.control or (header.transactional and stored.aborted and is_aborted(header, stored.aborted))):
            found, rest = _some_in(stored, position, header, left)
            messages += found
            left -= len(found)
            if rest is not None:
                return Decoded(Chunk(stored.offset, header.base_offset + rest.stop.delta + 1, messages), rest)
        following = max(following, header.last_offset + 1)
    return Decoded(Chunk(stored.offset, following, messages), None)


def _some_in(
    stored: StoredBytes, position: int, header: Header, most: int
) -> tuple[list[Delivered], UnfinishedBatch | None]:
    """Messages of one batch, and the batch if there are more in it. None, and a word in the log, if it is no batch."""
    opened = stored.unfinished
    try:
        if (
            opened is not None
            and (opened.base_offset, opened.crc) == (header.base_offset, header.crc)
            and header.base_offset + opened.stop.delta < stored.offset
        ):
            body, begin = opened.body, opened.stop
        else:
            records = memoryview(stored.data)[position + HEADER_SIZE : position + header.size]
            body, begin = decompress(header.codec, records, stored.limit), BEGIN
        found, stop = some_of(body, header, stored.topic, stored.partition, stored.offset, most, begin)
    except (InvalidRecord, TooLarge) as error:
        logger.warning(
            "batch.passed_over",
            "passing over a batch at {topic}-{partition}@{offset}: {error}",
            topic=stored.topic,
            partition=stored.partition,
            offset=header.base_offset,
            error=error,
        )
        return [], None
    return found, None if stop is None else UnfinishedBatch(header.base_offset, header.crc, body, stop)


def messages_in(partition: Partition, data: bytes, position: int, header: Header, first: int) -> Iterator[Delivered]:
    """The messages of one batch, from an offset on, decoded as they are asked for; may run on a thread.

    None, and a word in the log, if it does not parse.
    """
    limit = opened_limit(partition.topic.settings.max_message_bytes)
    stored = StoredBytes(partition.topic.name, partition.index, first, data, (), CHUNK_RECORDS, limit, None)
    rest: UnfinishedBatch | None = None
    while True:
        found, rest = _some_in(stored, position, header, CHUNK_RECORDS)
        yield from found
        if rest is None:
            return
        stored = stored._replace(offset=header.base_offset + rest.stop.delta + 1, unfinished=rest)


def read_chunk(partition: Partition, offset: int, max_bytes: int = CHUNK_BYTES, most: int = CHUNK_RECORDS) -> Chunk:
    """What there is from `offset` on. `next` is `offset` where there is nothing yet; OffsetOutOfRange outside.

    `most`: messages that are wanted; no more are decoded. The rest of a batch is decoded when it is asked for.
    """
    decoded = decode(read_stored(partition, offset, max_bytes, most))
    _keep(partition, decoded)
    return decoded.chunk


async def read_away(
    offload: Offload, partition: Partition, offset: int, max_bytes: int = CHUNK_BYTES, most: int = CHUNK_RECORDS
) -> Chunk:
    """As `read_chunk`; what may take long is decoded on a thread."""
    stored = read_stored(partition, offset, max_bytes, most)
    decoded = await offload(decode, stored) if stored.heavy else decode(stored)
    _keep(partition, decoded)
    return decoded.chunk


def _keep(partition: Partition, decoded: Decoded) -> None:
    partition.unfinished.keep(partition.topic.id, partition.index, decoded.unfinished)


def is_aborted(header: Header, aborted: Sequence[Aborted]) -> bool:
    """Whether the batch is of one of these transactions."""
    return any(
        header.producer_id == entry.producer_id and entry.first_offset <= header.base_offset <= entry.last_offset
        for entry in aborted
    )


# -- the newest --------------------------------------------------------------------------------------------------------


Accept = Callable[[Delivered], bool]
Steps = Generator[StoredBytes, Chunk, list[Delivered]]
"""A search that says what is to be decoded next, and leaves it to others where that is done."""


def newest(partition: Partition, count: int, accept: Accept | None = None) -> list[Delivered]:
    """The last `count` visible messages that `accept` takes, in order, within the last `HISTORY_BYTES`."""
    steps = _newest(partition, count, accept, partition.stable_offset)
    try:
        stored = next(steps)
        while True:
            decoded = decode(stored)
            _keep(partition, decoded)
            stored = steps.send(decoded.chunk)
    except StopIteration as done:
        return list(done.value)


async def newest_away(
    offload: Offload, partition: Partition, count: int, accept: Accept | None = None, *, end: int
) -> list[Delivered]:
    """As `newest`, before offset `end`; what may take long is decoded on a thread."""
    steps = _newest(partition, count, accept, end)
    try:
        stored = next(steps)
        while True:
            decoded = await offload(decode, stored) if stored.heavy else decode(stored)
            _keep(partition, decoded)
            stored = steps.send(decoded.chunk)
    except StopIteration as done:
        return list(done.value)


def _newest(partition: Partition, count: int, accept: Accept | None, end: int) -> Steps:
    floor = min(partition.tail_offset(HISTORY_BYTES), end)
    begin = end
    found: list[Delivered] = []
    span = count
    while len(found) < count and begin > floor:
        before, begin = begin, max(floor, begin - span)
        older = yield from _between(partition, begin, before)
        found = [one for one in older if accept is None or accept(one)] + found
        span *= 2  # compaction, markers and filters leave fewer messages than offsets
    return found[-count:] if count else []


def _between(partition: Partition, begin: int, end: int) -> Steps:
    messages: list[Delivered] = []
    begin = max(begin, partition.start_offset)  # retention may have come in between
    while begin < end:
        chunk = yield read_stored(partition, begin, most=end - begin)
        if chunk.next == begin:
            break
        messages += chunk.messages if chunk.next <= end else [one for one in chunk.messages if one.offset < end]
        begin = chunk.next
    return messages


def by_time(runs: Sequence[list[Delivered]]) -> list[Delivered]:
    """Messages of several partitions in the order of their times; each partition's own order is kept."""
    if len(runs) == 1:
        return runs[0]
    keyed: list[tuple[int, int, Delivered]] = []
    for number, run in enumerate(runs):
        latest = 0
        for delivered in run:
            latest = max(latest, delivered.taken_ms)
            keyed.append((latest, number, delivered))
    keyed.sort(key=lambda entry: entry[:2])  # stable: within a partition the order of offsets stays
    return [delivered for _, _, delivered in keyed]


# -- following ---------------------------------------------------------------------------------------------------------


class PartitionReader:
    """One partition, for all who follow it. Made by `Readers`."""

    __slots__ = ("_due", "_idle", "_listeners", "_offload", "_opening", "_pinned", "_recent", "partition")

    def __init__(self, partition: Partition, offload: Offload, idle: Callable[[PartitionReader], None]) -> None:
        self.partition = partition
        self._offload = offload
        self._idle = idle
        self._opening: asyncio.Task[None] | None = None
        self._listeners: dict[Listener, None] = {}
        self._due = False
        self._recent: ref[Chunk] | None = None
        self._pinned: list[Chunk] | None = None

    def listen(self, listener: Listener) -> None:
        """`listener` is called when the partition may have something new."""
        if not self._listeners:
            self.partition.watchers.add(self._grown)
        self._listeners[listener] = None

    def unlisten(self, listener: Listener) -> None:
        if listener not in self._listeners:
            return
        del self._listeners[listener]
        if not self._listeners:
            self.partition.watchers.discard(self._grown)
            self._idle(self)

    def read(self, offset: int) -> Chunk:
        """As `read_chunk`; who asks for the same place in the same turn gets the same chunk.

        What may take long is decoded on a thread: the chunk is empty then, and the listeners are told when it is there.
        """
        chunk = self._recent() if self._recent is not None else None
        if chunk is None or not chunk.first <= offset < chunk.next:
            if self._opening is not None:
                return Chunk(offset, offset, [])
            stored = read_stored(self.partition, offset)
            if stored.heavy:
                self._opening = asyncio.get_running_loop().create_task(self._open(stored))
                return Chunk(offset, offset, [])
            chunk = self._take(decode(stored))
        if self._pinned is not None:
            self._pinned.append(chunk)
        return chunk

    async def _open(self, stored: StoredBytes) -> None:
        try:
            decoded = await self._offload(decode, stored)
        finally:
            self._opening = None
        chunk = self._take(decoded)  # kept by this name while the listeners are told
        self._tell()
        del chunk

    def _take(self, decoded: Decoded) -> Chunk:
        _keep(self.partition, decoded)
        self._recent = ref(decoded.chunk)
        return decoded.chunk

    def _grown(self) -> None:
        """Many appends may come in one turn of the loop; listeners look once, when they are over."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._due = False
        self._pinned = []  # so that a chunk outlives the first of many listeners
        try:
            for listener in tuple(self._listeners):
                listener()
        finally:
            self._pinned = None


class Readers:
    """The partitions that somebody follows. One per broker."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._readers: dict[Partition, PartitionReader] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def of(self, partition: Partition) -> PartitionReader:
        reader = self._readers.get(partition)
        if reader is None:
            reader = self._readers[partition] = PartitionReader(partition, self._offload, self._forget)
        return reader

    def _forget(self, reader: PartitionReader) -> None:
        if self._readers.get(reader.partition) is reader:
            del self._readers[reader.partition]


class ReadPosition:
    """Where one follower stands in a partition: everything before `position` was taken or passed over."""

    __slots__ = ("_chunk", "_index", "position", "reader")

    def __init__(self, reader: PartitionReader, position: int) -> None:
        self.reader = reader
        self.position = position
        self._chunk: Chunk | None = None
        self._index = 0

    @property
    def partition(self) -> Partition:
        return self.reader.partition

    @property
    def behind(self) -> bool:
        """Whether there is something that it has not read."""
        return self._chunk is not None or self.position < self.partition.stable_offset

    @property
    def inside(self) -> bool:
        """Whether it stands in the middle of what was decoded."""
        return self._chunk is not None

    def take(self, limit: int) -> list[Delivered]:
        """Up to `limit` messages from here on. Empty and no longer `behind`, or not moved: wait for a wake-up."""
        chunk = self._chunk
        if chunk is None:
            chunk = self.reader.read(self.position)
            self._index = chunk.index_of(self.position)
        end = min(self._index + limit, len(chunk.messages))
        taken = chunk.messages[self._index : end]
        if end == len(chunk.messages):
            self.position = chunk.next
            self._chunk = None
        else:
            self.position = chunk.messages[end].offset
            self._chunk = chunk
            self._index = end
        return taken

    def move(self, offset: int) -> None:
        self.position = offset
        self._chunk = None

    def back_in_range(self) -> int:
        """Goes to where the log now begins or ends, if it left this place behind; returns how many offsets it lost."""
        partition = self.partition
        before = self.position
        self.move(min(max(before, partition.start_offset), max(partition.visible_offset, partition.start_offset)))
        return max(0, self.position - before)
