"""Where a queue's messages are: entry → offset of the block in the shard's log, size, and a trace of its id.

Kept in chunks of as many entries as the ledger's, and a chunk goes when nothing in it is alive. A message that was put
alone costs ten bytes for its place and four for its size; one with an id of its own eight more. Messages that were put
together share a place.

The trace of an id takes longer to make than anything else that is kept here, and most messages are gone before anybody
looks for one. So the ids of the latest chunks are kept as they are, and their traces are made when they are needed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec

from waystation.queues.ledger.states import CHUNK

_SKIP_BITS = 16
_SKIP_MASK = (1 << _SKIP_BITS) - 1
_TRACE = 8
UNTRACED_CHUNKS = 2
"""Of a queue, as many as may have ids instead of traces: an id takes ten times as much room."""


def trace_of(message_id: str) -> bytes:
    """Eight bytes that stand for an id; two ids may share them, so whoever finds them looks at the message."""
    return blake2b(message_id.encode(), digest_size=_TRACE).digest()


class ChunkState(msgspec.Struct, array_like=True, gc=False):
    """A chunk in a snapshot."""

    number: int
    starts: bytes
    places: bytes
    sizes: bytes
    traces: bytes


class _Chunk:
    __slots__ = ("first", "places", "sizes", "starts", "traces", "untraced")

    def __init__(self, first: int) -> None:
        self.first = first  # the first entry that it knows
        self.starts = array("H")  # where a block begins, from the chunk's beginning
        self.places = array("q")  # offset of the block << 16 | index within the block of what is at `starts`
        self.sizes = array("I")  # of every entry from `first` on
        self.traces = bytearray()
        self.untraced: list[tuple[int, Sequence[str | None]]] | None = None  # (first entry, ids) not in `traces` yet

    def trace(self) -> None:
        """Makes the traces of ids that are known here only as they are."""
        untraced, self.untraced = self.untraced, None
        for first, ids in untraced or ():
            for relative, message_id in enumerate(ids, first % CHUNK):
                if message_id is not None:
                    at = relative * _TRACE
                    if len(self.traces) < at:
                        self.traces.extend(bytes(at - len(self.traces)))
                    self.traces[at : at + _TRACE] = trace_of(message_id)


class MessageIndex:
    """One queue's."""

    __slots__ = ("_chunks", "_untraced")

    def __init__(self) -> None:
        self._chunks: dict[int, _Chunk] = {}
        self._untraced: list[int] = []  # chunks that have ids instead of traces; some are gone

    def add(self, first: int, sizes: Sequence[int], offset: int, ids: Sequence[str | None] | None = None) -> None:
        """A block of new entries at `offset`."""
        at, end = first, first + len(sizes)
        while at < end:
            number, start = divmod(at, CHUNK)
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = _Chunk(at)
            stop = min(end, (number + 1) * CHUNK)
            missing = at - chunk.first - len(chunk.sizes)
            if missing > 0:  # what a damaged batch of the log had said is not known
                chunk.sizes.extend(array("I", [0]) * missing)
            chunk.starts.append(start)
            chunk.places.append(offset << _SKIP_BITS | at - first)
            chunk.sizes.extend(sizes[at - first : stop - first])
            if ids is not None:
                self._note_ids(number, chunk, at, ids[at - first : stop - first])
            at = stop

    def _note_ids(self, number: int, chunk: _Chunk, first: int, ids: Sequence[str | None]) -> None:
        if chunk.untraced is None:
            chunk.untraced = []
            if not self._untraced or self._untraced[-1] != number:  # it may have been here before, and gone
                self._untraced.append(number)
            if len(self._untraced) > UNTRACED_CHUNKS:
                oldest = self._chunks.get(self._untraced.pop(0))
                if oldest is not None:
                    oldest.trace()
        chunk.untraced.append((first, ids))

    def move(self, first: int, count: int, offset: int) -> None:
        """Entries that were written forward: a whole run of one chunk is now at `offset`."""
        number, start = divmod(first, CHUNK)
        chunk = self._chunks[number]
        end = start + count
        starts, places = chunk.starts, chunk.places
        tail = bisect_right(starts, end) - 1  # the block that covers what comes behind the run
        behind = None
        if end < CHUNK and tail >= 0 and starts[tail] < end:
            behind = places[tail] + (end - starts[tail])
        low, high = bisect_left(starts, start), bisect_left(starts, end)
        new_starts, new_places = [start], [offset << _SKIP_BITS]
        if behind is not None and (high >= len(starts) or starts[high] != end):
            new_starts.append(end)
            new_places.append(behind)
        starts[low:high] = array("H", new_starts)
        places[low:high] = array("q", new_places)

    def find(self, entry: int) -> tuple[int, int]:
        """(offset of the block, index within it)."""
        number, relative = divmod(entry, CHUNK)
        chunk = self._chunks[number]
        i = bisect_right(chunk.starts, relative) - 1
        place = chunk.places[i]
        return place >> _SKIP_BITS, (place & _SKIP_MASK) + relative - chunk.starts[i]

    def blocks(self, first: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        """A run of entries as (first entry, how many, offset of the block, index within it)."""
        end = first + count
        while first < end:
            number, relative = divmod(first, CHUNK)
            chunk = self._chunks[number]
            i = bisect_right(chunk.starts, relative) - 1
            place = chunk.places[i]
            following = chunk.starts[i + 1] if i + 1 < len(chunk.starts) else CHUNK
            stop = min(end, number * CHUNK + following)
            yield first, stop - first, place >> _SKIP_BITS, (place & _SKIP_MASK) + relative - chunk.starts[i]
            first = stop

    def bytes_of(self, first: int, count: int) -> int:
        """The payloads' bytes of a run."""
        total = 0
        end = first + count
        while first < end:
            chunk = self._chunks[first // CHUNK]
            stop = min(end, (first // CHUNK + 1) * CHUNK)
            total += sum(chunk.sizes[first - chunk.first : stop - chunk.first])
            first = stop
        return total

    def with_trace(self, trace: bytes) -> Iterator[int]:
        """Entries whose id may be the one with this trace, oldest first."""
        for number, chunk in self._chunks.items():
            chunk.trace()
            at = chunk.traces.find(trace)
            while at >= 0:
                if at % _TRACE == 0:
                    yield number * CHUNK + at // _TRACE
                at = chunk.traces.find(trace, at + 1)

    def drop(self, number: int) -> None:
        """Nothing in the chunk is alive."""
        self._chunks.pop(number, None)

    def __contains__(self, number: int) -> bool:
        """Whether something in that chunk is alive."""
        return number in self._chunks

    def floor(self, number: int) -> int:
        """The lowest offset that the chunk refers to."""
        return min(self._chunks[number].places) >> _SKIP_BITS

    def chunks(self) -> list[int]:
        return list(self._chunks)

    def keep_only(self, number: int, runs: Sequence[tuple[int, int]]) -> None:
        """Only these runs of the chunk are alive: forgets the other places, so that they keep no segment."""
        starts, places = array("H"), array("q")
        for run in runs:
            for first, _, offset, index in self.blocks(*run):
                starts.append(first % CHUNK)
                places.append(offset << _SKIP_BITS | index)
        chunk = self._chunks[number]
        chunk.starts, chunk.places = starts, places

    def dump(self) -> list[ChunkState]:
        """For a snapshot."""
        for number in self._untraced:
            if number in self._chunks:
                self._chunks[number].trace()
        self._untraced.clear()
        return [
            ChunkState(
                number,
                c.starts.tobytes(),
                c.places.tobytes(),
                c.first.to_bytes(8, "big") + c.sizes.tobytes(),
                bytes(c.traces),
            )
            for number, c in self._chunks.items()
        ]

    @classmethod
    def load(cls, states: Sequence[ChunkState]) -> MessageIndex:
        places = cls()
        places.add_loaded(states)
        return places

    def add_loaded(self, states: Sequence[ChunkState]) -> None:
        for state in states:
            chunk = self._chunks[state.number] = _Chunk(int.from_bytes(state.sizes[:8], "big"))
            chunk.starts.frombytes(state.starts)
            chunk.places.frombytes(state.places)
            chunk.sizes.frombytes(state.sizes[8:])
            chunk.traces = bytearray(state.traces)
