"""What is known of every entry, one byte each: its state and its priority, for millions of entries.

Entries are numbered in the order of their admission, so what is alive is a window that moves on. The bytes lie in
chunks, and a chunk goes when nothing in it is alive: a queue that was a million deep yesterday costs nothing today.
Whole runs change their state at once, by translating or filling a slice of bytes.

Beside the bytes stands only what follows from them and can be rebuilt from them: the counts, and for each priority the
chunks in which something may be ready (`ready_line.py`). Where an entry was handed out before, or has a delivery limit
of its own, a second and a third byte say so (`tallies.py`).

Invariants: the counts agree with the bytes; a chunk that holds a ready entry stands in the line of its priority; a
chunk is there exactly as long as something in it is alive. The ledger and its parts call this, nobody else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

import msgspec

from waystation.queues.ready_line import ReadyLine
from waystation.queues.runs import Run, add_run
from waystation.queues.tallies import Tallies, TalliesState

CHUNK = 1024
"""A straggler keeps its whole chunk alive, so small is lean; a thousand entries still are one or two slices."""

PRIORITIES = 10
HIGHEST = PRIORITIES - 1
HEAD = 0x08
"""Set in the first byte of each hold, so that the hold of any entry is found by looking back."""

_PRIORITY_SHIFT = 4
_STATE_MASK = 0x07


class State(IntEnum):
    """Where an entry is. DONE is also what an entry is that never was, or is long forgotten."""

    DONE = 0
    READY = 1
    PARKED = 2
    HELD = 3
    LEAVING = 4  # part of an open transaction, or dead and not yet moved to where the dead go


MOVES: dict[tuple[State, str], State] = {
    (State.READY, "acquire"): State.HELD,
    (State.HELD, "ack"): State.DONE,
    (State.HELD, "release"): State.READY,  # also when its hold runs out
    (State.HELD, "release later"): State.PARKED,
    (State.HELD, "reserve"): State.LEAVING,
    (State.HELD, "die"): State.DONE,  # rejected; or given back when it has expired, or once too often
    (State.HELD, "die, kept"): State.LEAVING,
    (State.PARKED, "due"): State.READY,
    (State.READY, "expire"): State.DONE,
    (State.PARKED, "expire"): State.DONE,
    (State.READY, "expire, kept"): State.LEAVING,
    (State.PARKED, "expire, kept"): State.LEAVING,
    (State.READY, "drop"): State.DONE,
    (State.READY, "drop, kept"): State.LEAVING,
    (State.READY, "cancel"): State.DONE,
    (State.PARKED, "cancel"): State.DONE,
    (State.READY, "take out"): State.LEAVING,
    (State.PARKED, "take out"): State.LEAVING,
    (State.HELD, "take out"): State.LEAVING,
    (State.LEAVING, "restore"): State.READY,
    (State.READY, "park"): State.PARKED,
    (State.READY, "finish"): State.DONE,
    (State.PARKED, "finish"): State.DONE,
    (State.HELD, "finish"): State.DONE,
    (State.LEAVING, "finish"): State.DONE,
}
"""Every legal move; `moves_table()` prints it. The bytes that runs are translated by are made from it."""


def moves_table() -> str:
    return "\n".join(f"{state.name:7} {verb:14} {after.name}" for (state, verb), after in MOVES.items())


class Move(NamedTuple):
    """A verb as tables of 256 bytes."""

    after: bytes  # what each byte becomes; what the verb does not move stays
    moved: bytes  # 1 for the bytes that it moves
    ends: bool  # what it moves is DONE


def _tables(verb: str) -> Move:
    after, moved, ends = bytearray(range(256)), bytearray(256), False
    for byte in range(256):
        state = byte & _STATE_MASK
        target = MOVES.get((State(state), verb)) if state < len(State) else None
        if target is not None:
            after[byte] = target and target | byte >> _PRIORITY_SHIFT << _PRIORITY_SHIFT
            moved[byte] = 1
            ends = target is State.DONE
    return Move(bytes(after), bytes(moved), ends)


ACK, RELEASE, LATER, RESERVE = _tables("ack"), _tables("release"), _tables("release later"), _tables("reserve")
DUE, PARK, CANCEL, FINISH = _tables("due"), _tables("park"), _tables("cancel"), _tables("finish")
TAKE_OUT, RESTORE = _tables("take out"), _tables("restore")
# By whether the dead are kept.
DIE = (_tables("die"), _tables("die, kept"))
EXPIRE = (_tables("expire"), _tables("expire, kept"))
DROP = (_tables("drop"), _tables("drop, kept"))

STATES = tuple(State)
_STATE_ONLY = bytes(byte & _STATE_MASK for byte in range(256))
_AT_REST = bytes(RELEASE.after)  # nobody holds anything after a restart
_BYTES = tuple(bytes([byte]) for byte in range(256))
_READY_BYTES = tuple(State.READY | priority << _PRIORITY_SHIFT for priority in range(PRIORITIES))
_ALL_READY = tuple(_BYTES[byte] * CHUNK for byte in _READY_BYTES)
_NOT_READY = tuple(re.compile(b"[^" + re.escape(_BYTES[byte]) + b"]", re.DOTALL) for byte in _READY_BYTES)
_ONES = re.compile(b"\x01+")
_RUNS = re.compile(b"\x01+|\x02+|\x03+|\x04+")


class StatesState(msgspec.Struct, array_like=True, frozen=True):
    """The bytes as they are stored, chunk by chunk: nothing is held."""

    newest: int
    numbers: list[int]
    chunks: list[bytes]
    tries: TalliesState | None
    limits: TalliesState | None


class Chunk(bytearray):
    """The bytes of CHUNK entries, as far as they were admitted."""

    __slots__ = ("alive",)

    alive: int


class States:
    """Entry → state and priority."""

    __slots__ = ("chunks", "held", "leaving", "limits", "lines", "newest", "on_chunk_gone", "parked", "ready", "tries")

    def __init__(self) -> None:
        self.chunks: dict[int, Chunk] = {}  # ascending, since only the newest can go and come again
        self.lines: list[ReadyLine] | None = None  # by priority, as far as there are any
        self.tries: Tallies | None = None  # how often an entry was handed out, the present hold not counted
        self.limits: Tallies | None = None  # the delivery limits that entries have of their own
        self.on_chunk_gone: Callable[[int], None] | None = None
        self.newest = -1
        self.ready = self.parked = self.held = self.leaving = 0

    # -- looking ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.ready + self.parked + self.held + self.leaving

    def state_of(self, entry: int) -> State:
        chunk = self.chunks.get(entry // CHUNK)
        index = entry % CHUNK
        return STATES[chunk[index] & _STATE_MASK] if chunk is not None and index < len(chunk) else State.DONE

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
                this = STATES[found[0][0]]
                if state is None or this is state:
                    yield this, base + found.start(), found.end() - found.start()

    # -- coming -----------------------------------------------------------------------------------------------------

    def add(self, first: int, count: int, state: State, priority: int) -> None:
        """New entries, younger than all others."""
        self.newest = first + count - 1
        byte = state | priority << _PRIORITY_SHIFT
        number, index = divmod(first, CHUNK)
        left = count
        while left:
            chunk = self.chunks.get(number)
            if chunk is None:
                chunk = self.chunks[number] = Chunk(index)
                chunk.alive = 0
            elif index > len(chunk):
                chunk.extend(bytes(index - len(chunk)))
            if left == 1:
                part = 1
                chunk.append(byte)
            else:
                part = min(left, CHUNK - index)
                chunk.extend(_BYTES[byte] * part)
            chunk.alive += part
            if state == State.READY:
                self._stand_in_line(priority, number)
            left -= part
            number += 1
            index = 0
        if state == State.READY:
            self.ready += count
        else:
            self.parked += count

    def _stand_in_line(self, priority: int, number: int) -> None:
        lines = self.lines
        if lines is None:
            lines = self.lines = []
        while len(lines) <= priority:
            lines.append(ReadyLine())
        lines[priority].note(number)

    # -- moving -----------------------------------------------------------------------------------------------------

    def take(self, limit: int) -> Run:
        """The next ready entries in a row, at most `limit`, become HELD: one hold. The caller knows that there are."""
        chunks = self.chunks
        for priority, line in reversed(list(enumerate(self.lines or ()))):
            while line:
                number = line[0]
                chunk = chunks.get(number)
                index = -1 if chunk is None else chunk.find(_READY_BYTES[priority])
                if chunk is None or index < 0:
                    del line[0]
                    continue
                count = _run_length(chunk, index, limit, priority)
                byte = State.HELD | priority << _PRIORITY_SHIFT
                if count > 1:
                    chunk[index : index + count] = _BYTES[byte] * count
                chunk[index] = byte | HEAD
                self.ready -= count
                self.held += count
                return number * CHUNK + index, count
        raise LookupError("nothing is ready, though the count says so")

    def front(self, priority: int) -> int | None:
        """The first ready entry of a priority."""
        line = self.lines[priority] if self.lines and priority < len(self.lines) else None
        while line:
            number = line[0]
            chunk = self.chunks.get(number)
            index = -1 if chunk is None else chunk.find(_READY_BYTES[priority])
            if index >= 0:
                return number * CHUNK + index
            del line[0]
        return None

    def move_held(self, first: int, count: int, move: Move) -> None:
        """Moves entries of one hold, hence of one chunk and one priority."""
        number, index = divmod(first, CHUNK)
        chunk = self.chunks[number]
        after = move.after[chunk[index]]
        self.held -= count
        if not after:
            chunk.alive -= count
            if not chunk.alive:
                self._drop(number)
                return
        if count == 1:
            chunk[index] = after
        else:
            chunk[index : index + count] = _BYTES[after] * count
        state = after & _STATE_MASK
        if state == State.READY:
            self.ready += count
            self._stand_in_line(after >> _PRIORITY_SHIFT, number)
        elif state == State.PARKED:
            self.parked += count
        elif state == State.LEAVING:
            self.leaving += count

    def move(self, first: int, count: int, move: Move) -> list[Run]:
        """Moves those of a run that the verb moves, and says which. Of what is held, the caller has ended the holds."""
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

    def move_one(self, entry: int, move: Move) -> bool:
        """Moves one entry, if the verb does. If it is held, the caller has ended the hold."""
        return bool(self.move(entry, 1, move))

    def _recount(self, number: int, chunk: Chunk, before: bytearray, after: bytearray) -> None:
        chunk.alive -= after.count(0) - before.count(0)
        old, new = before.translate(_STATE_ONLY), after.translate(_STATE_ONLY)
        self.ready += new.count(1) - old.count(1)
        self.parked += new.count(2) - old.count(2)
        self.held += new.count(3) - old.count(3)
        self.leaving += new.count(4) - old.count(4)
        if not chunk.alive:
            self._drop(number)
        elif 1 in new:
            self._line_up(number, after)

    def _line_up(self, number: int, some: bytes | bytearray) -> None:
        for priority, byte in enumerate(_READY_BYTES):
            if byte in some:
                self._stand_in_line(priority, number)

    def _drop(self, number: int) -> None:
        del self.chunks[number]
        if self.tries is not None:
            self.tries.forget(number)
        if self.limits is not None:
            self.limits.forget(number)
        if self.on_chunk_gone is not None:
            self.on_chunk_gone(number)

    # -- storing ----------------------------------------------------------------------------------------------------

    def dump(self, held: Iterable[Run]) -> StatesState:
        """What is held is stored as ready, and as handed out once more."""
        tries = self.tries
        if self.held:
            tries = Tallies() if tries is None else tries.copy()
            for first, count in held:
                tries.bump(first, count)
        return StatesState(
            newest=self.newest,
            numbers=list(self.chunks),
            chunks=[bytes(chunk.translate(_AT_REST)) for chunk in self.chunks.values()],
            tries=None if tries is None else tries.dump(),
            limits=None if self.limits is None else self.limits.dump(),
        )

    @classmethod
    def load(cls, state: StatesState) -> States:
        states = cls()
        states.newest = state.newest
        for number, stored in zip(state.numbers, state.chunks, strict=True):
            chunk = states.chunks[number] = Chunk(stored)
            chunk.alive = 0
            states._recount(number, chunk, bytearray(len(stored)), chunk)
        states.tries = None if state.tries is None else Tallies.load(state.tries)
        states.limits = None if state.limits is None else Tallies.load(state.limits)
        return states


def _run_length(chunk: Chunk, index: int, limit: int, priority: int) -> int:
    """How many from here on are ready with this priority, up to a limit."""
    count = min(limit, len(chunk) - index)
    if count == 1 or chunk.startswith(_ALL_READY[priority][:count], index):
        return count
    found = _NOT_READY[priority].search(chunk, index, index + count)
    return count if found is None else found.start() - index
