"""What is known of every entry, one byte each (`chunk.py`): its state and its priority, for millions of entries.

Entries are numbered in the order of their admission, so what is alive is a window that moves on. The bytes lie in
chunks, and a chunk goes when nothing in it is alive: a queue that was a million deep yesterday costs nothing today.
Whole runs change their state at once, by translating or filling a slice of bytes.

Beside the bytes stands only what follows from them and can be rebuilt from them: the counts, and for each priority the
chunks in which something may be ready (`ready_line.py`). Where an entry was handed out before, or has a delivery limit
of its own, further bytes say so (`delivery_counts.py`).

Invariants: the counts agree with the bytes; a chunk that holds a ready entry stands in the line of its priority; a
chunk is there exactly as long as something in it is alive. The ledger and its parts call this, nobody else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import msgspec

from waystation.message import Run
from waystation.queues.ledger.chunk import BYTES, CHUNK, Chunk
from waystation.queues.ledger.delivery_counts import DeliveryCounts, DeliveryCountsState
from waystation.queues.ledger.moves import (
    DONE,
    HEAD,
    LEVELS,
    PRIORITY_SHIFT,
    READY,
    RELEASE,
    STATE_MASK,
    TOP,
    Move,
    State,
)
from waystation.queues.ledger.ready_line import FEW, ReadyLine, new_line, note
from waystation.queues.ledger.runs import add_run

__all__ = ["CHUNK", "State", "States", "StatesState"]

_STATES = tuple(State)
_READY, _DELAYED, _IN_FLIGHT, _LEAVING = 1, 2, 3, 4  # as plain numbers, which are quicker than members of an enum
_STATE_ONLY = bytes(byte & STATE_MASK for byte in range(256))
_AT_REST = RELEASE.after  # nothing is in flight after a restart
_IN_FLIGHT_BYTES = tuple(_IN_FLIGHT | level << PRIORITY_SHIFT for level in range(LEVELS))
_ONES = re.compile(b"\x01+")
_RUNS = re.compile(b"\x01+|\x02+|\x03+|\x04+")


class StatesState(msgspec.Struct, array_like=True, frozen=True):
    """The bytes as they are stored, chunk by chunk: nothing is in flight."""

    newest: int
    numbers: list[int]
    chunks: list[bytes]
    tries: DeliveryCountsState | None
    limits: DeliveryCountsState | None
    above: list[bytes] | None = None  # chunk by chunk, the second bytes; None: there are none


class States:
    """Entry → state and priority."""

    __slots__ = (
        "chunks",
        "delayed",
        "leaving",
        "limits",
        "lines",
        "newest",
        "on_chunk_gone",
        "ready",
        "tries",
        "unacked",
    )

    def __init__(self) -> None:
        self.chunks: dict[int, Chunk] = {}  # ascending, since only the newest can go and come again
        self.lines: list[ReadyLine] | None = None  # by priority, ascending, as far as there are any
        self.tries: DeliveryCounts | None = None  # how often an entry was handed out, the present delivery not counted
        self.limits: DeliveryCounts | None = None  # the delivery limits that entries have of their own
        self.on_chunk_gone: Callable[[int], None] | None = None
        self.newest = -1
        self.ready = self.delayed = self.unacked = self.leaving = 0

    # -- looking ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.ready + self.delayed + self.unacked + self.leaving

    def state_of(self, entry: int) -> State:
        chunk = self.chunks.get(entry // CHUNK)
        index = entry % CHUNK
        return _STATES[chunk[index] & STATE_MASK] if chunk is not None and index < len(chunk) else DONE

    def pieces(self, first: int, count: int) -> Iterator[tuple[int, Chunk, int, int]]:
        """A run as (chunk's number, chunk, from, to), where there are chunks, however far it reaches."""
        end = min(first + count, self.newest + 1)
        first = max(first, 0)
        if first >= end:
            return
        low, high = first // CHUNK, (end - 1) // CHUNK
        for number in self._numbers(low, high):
            chunk = self.chunks.get(number)
            if chunk is not None:
                base = number * CHUNK
                start, stop = max(first - base, 0), min(end - base, len(chunk))
                if start < stop:
                    yield number, chunk, start, stop

    def _numbers(self, low: int, high: int) -> Iterable[int]:
        """Chunks between two, in order; some may not be there. The shorter way of two."""
        if high - low <= len(self.chunks):
            return range(low, high + 1)
        return [number for number in self.chunks if low <= number <= high]

    def runs(self, first: int, count: int, state: State | None = None) -> Iterator[tuple[State, int, int]]:
        """What is alive of a run, as (state, first, count) in order; none reaches over the end of its chunk."""
        for number, chunk, start, stop in self.pieces(first, count):
            base = number * CHUNK + start
            for found in _RUNS.finditer(chunk[start:stop].translate(_STATE_ONLY)):
                this = _STATES[found[0][0]]
                if state is None or this is state:
                    yield this, base + found.start(), found.end() - found.start()

    # -- coming -----------------------------------------------------------------------------------------------------

    def add(self, first: int, count: int, state: State, priority: int) -> None:
        """New entries, younger than all others."""
        self.newest = first + count - 1
        byte = state | (priority if priority < TOP else TOP) << PRIORITY_SHIFT
        ready = state is READY
        number, index = divmod(first, CHUNK)
        left = count
        while left:
            chunk = self.chunks.get(number)
            if chunk is None:
                chunk = self.chunks[number] = Chunk(index)
                chunk.alive, chunk.above = 0, None
            elif index > len(chunk):
                chunk.extend(bytes(index - len(chunk)))
            if left == 1:
                part = 1
                chunk.append(byte)
            else:
                part = min(left, CHUNK - index)
                chunk.extend(BYTES[byte] * part)
            if priority > TOP:
                chunk.raise_above(index, part, priority)
            chunk.alive += part
            if ready:
                self._stand_in_line(priority, number)
            left -= part
            number += 1
            index = 0
        if ready:
            self.ready += count
        else:
            self.delayed += count

    def _stand_in_line(self, priority: int, number: int) -> None:
        if self.lines:
            note(self.lines, priority, number)
        else:
            self.lines = [new_line(priority, number)]

    # -- moving -----------------------------------------------------------------------------------------------------

    def take(self, limit: int) -> Run:
        """The next ready entries in a row, at most `limit`, become IN_FLIGHT: one run. The caller knows that there
        are."""
        return self._take_at(*self._front(), limit)

    def _take_at(self, number: int, index: int, priority: int, limit: int) -> Run:
        chunk = self.chunks[number]
        byte = _IN_FLIGHT_BYTES[priority if priority < TOP else TOP]
        count = 1 if limit == 1 else chunk.ready_run(index, limit, priority)
        if count > 1:
            chunk[index : index + count] = BYTES[byte] * count
        chunk[index] = byte | HEAD
        self.ready -= count
        self.unacked += count
        return number * CHUNK + index, count

    def take_shown(self, limit: int, below: int) -> Run | None:
        """The same of entries below that number; None: there are none. Within a priority entries go by their numbers,
        so the front of each line says it."""
        for line in reversed(self.lines or ()):
            front = self._front_of(line)
            if front is None or (entry := front[0] * CHUNK + front[1]) >= below:
                continue
            return self._take_at(*front, line.priority, min(limit, below - entry))
        return None

    def next_ready(self) -> int:
        """The entry that `take` would take first."""
        number, index, _ = self._front()
        return number * CHUNK + index

    def _front(self) -> tuple[int, int, int]:
        """(its chunk's number, its index there, its priority) of the next ready entry. There is one."""
        lines = self.lines or []
        for at in range(len(lines) - 1, -1, -1):
            line = lines[at]
            front = self._front_of(line)
            if front is not None:
                return *front, line.priority
            if len(lines) > FEW:
                del lines[at]
        raise LookupError("nothing is ready, though the count says so")

    def _front_of(self, line: ReadyLine) -> tuple[int, int] | None:
        while line:
            number = line[0]
            chunk = self.chunks.get(number)
            if chunk is not None and (index := chunk.first_ready(line.priority)) >= 0:
                return number, index
            del line[0]
        return None

    def oldest_ready(self) -> int:
        """The first ready entry, of whatever priority. There is one."""
        while heads := [line[0] for line in self.lines or () if line]:
            number = min(heads)
            chunk = self.chunks.get(number)
            if chunk is not None and (index := chunk.any_ready()) >= 0:
                return number * CHUNK + index
            self._leave_lines(number)
        raise LookupError("nothing is ready, though the count says so")

    def move_in_flight(self, first: int, count: int, move: Move) -> None:
        """Moves entries of one in-flight run, hence of one chunk and one priority."""
        number, index = divmod(first, CHUNK)
        chunk = self.chunks[number]
        after = move.after[chunk[index]]
        self.unacked -= count
        if not after:
            chunk.alive -= count
            if not chunk.alive:
                self._drop(number)
                return
        if count == 1:
            chunk[index] = after
        else:
            chunk[index : index + count] = BYTES[after] * count
        if after:
            self._count(number, chunk, index, count)

    def _count(self, number: int, chunk: Chunk, index: int, count: int) -> None:
        """Entries of one priority that are now as the first of them is: anything but IN_FLIGHT or DONE."""
        state = chunk[index] & STATE_MASK
        if state == _READY:
            self.ready += count
            self._stand_in_line(chunk.priority_of(index), number)
        elif state == _DELAYED:
            self.delayed += count
        else:
            self.leaving += count

    def move_one(self, entry: int, move: Move) -> bool:
        """Moves an entry, if the verb does. If it is in flight, the caller has ended that."""
        number, index = divmod(entry, CHUNK)
        chunk = self.chunks.get(number)
        if chunk is None or index >= len(chunk) or not move.moved[chunk[index]]:
            return False
        before = chunk[index]
        after = chunk[index] = move.after[before]
        state = before & STATE_MASK
        if state == _READY:
            self.ready -= 1
        elif state == _DELAYED:
            self.delayed -= 1
        elif state == _IN_FLIGHT:
            self.unacked -= 1
        else:
            self.leaving -= 1
        if after:
            self._count(number, chunk, index, 1)
        else:
            chunk.alive -= 1
            if not chunk.alive:
                self._drop(number)
        return True

    def move(self, first: int, count: int, move: Move) -> list[Run]:
        """Moves those of a run that the verb moves, and says which. Of what is in flight, the caller has ended that."""
        if count == 1:
            return [(first, 1)] if self.move_one(first, move) else []
        moved: list[Run] = []
        for number, chunk, start, stop in self.pieces(first, count):
            before = chunk[start:stop]
            flags = before.translate(move.moved)
            if 1 not in flags:
                continue
            base = number * CHUNK + start
            if 0 in flags:
                for found in _ONES.finditer(flags):
                    add_run(moved, base + found.start(), found.end() - found.start())
            else:
                add_run(moved, base, stop - start)
            after = before.translate(move.after)
            chunk[start:stop] = after
            self._recount(number, chunk, before, after)
        return moved

    def _recount(self, number: int, chunk: Chunk, before: bytearray, after: bytearray) -> None:
        chunk.alive -= after.count(0) - before.count(0)
        old, new = before.translate(_STATE_ONLY), after.translate(_STATE_ONLY)
        self.ready += new.count(1) - old.count(1)
        self.delayed += new.count(2) - old.count(2)
        self.unacked += new.count(3) - old.count(3)
        self.leaving += new.count(4) - old.count(4)
        if not chunk.alive:
            self._drop(number)
        elif 1 in new:
            for priority in chunk.ready_priorities():
                self._stand_in_line(priority, number)

    def _leave_lines(self, number: int) -> None:
        """Nothing in that chunk is ready; where it stands behind others, whoever comes by drops it."""
        for line in self.lines or ():
            if line and line[0] == number:
                del line[0]

    def _drop(self, number: int) -> None:
        del self.chunks[number]
        self._leave_lines(number)
        if self.tries is not None:
            self.tries.forget(number)
        if self.limits is not None:
            self.limits.forget(number)
        if self.on_chunk_gone is not None:
            self.on_chunk_gone(number)

    def rest(self) -> None:
        """Nothing is alive: as small as can be."""
        self.chunks = {}
        self.lines = self.tries = self.limits = None

    # -- storing ----------------------------------------------------------------------------------------------------

    def dump(self, in_flight: Iterable[Run]) -> StatesState:
        """What is in flight is stored as ready, and as handed out once more."""
        tries = self.tries
        if self.unacked:
            tries = DeliveryCounts() if tries is None else tries.copy()
            for first, count in in_flight:
                tries.bump(first, count)
        return StatesState(
            newest=self.newest,
            numbers=list(self.chunks),
            chunks=[bytes(chunk.translate(_AT_REST)) for chunk in self.chunks.values()],
            tries=None if tries is None else tries.dump(),
            limits=None if self.limits is None else self.limits.dump(),
            above=self._dump_above(),
        )

    def _dump_above(self) -> list[bytes] | None:
        above = [bytes(chunk.above or b"") for chunk in self.chunks.values()]
        return above if any(above) else None

    @classmethod
    def load(cls, state: StatesState) -> States:
        states = cls()
        states.newest = state.newest
        lanes = state.above or [b""] * len(state.chunks)
        for number, stored, lane in zip(state.numbers, state.chunks, lanes, strict=True):
            chunk = states.chunks[number] = Chunk(stored)
            chunk.alive, chunk.above = 0, bytearray(lane) if lane else None
            states._recount(number, chunk, bytearray(len(stored)), chunk)
        states.tries = None if state.tries is None else DeliveryCounts.load(state.tries)
        states.limits = None if state.limits is None else DeliveryCounts.load(state.limits)
        return states
