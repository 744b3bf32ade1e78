"""One byte per entry: its state and its priority, for millions of entries.

Entries are numbered in the order of their admission, so what is alive is a window that moves on. The bytes lie in
chunks, and a chunk goes when nothing in it is alive: a queue that was a million deep yesterday costs nothing today.
"""

from __future__ import annotations

from enum import IntEnum

CHUNK = 4096
_PRIORITY_SHIFT = 4
_STATE_MASK = 0x0F


class State(IntEnum):
    """Where an entry is. DONE is also what an entry is that never was, or is long forgotten."""

    DONE = 0
    READY = 1
    PARKED = 2
    HELD = 3


class States:
    """Entry id → (state, priority)."""

    __slots__ = ("_alive", "_chunks", "counts")

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}
        self._alive: dict[int, int] = {}
        self.counts = [0] * len(State)

    def get(self, entry_id: int) -> State:
        chunk = self._chunks.get(entry_id // CHUNK)
        return State.DONE if chunk is None else State(chunk[entry_id % CHUNK] & _STATE_MASK)

    def priority(self, entry_id: int) -> int:
        return self._chunks[entry_id // CHUNK][entry_id % CHUNK] >> _PRIORITY_SHIFT

    def add(self, entry_id: int, state: State, priority: int) -> None:
        """A new entry."""
        number, index = divmod(entry_id, CHUNK)
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = bytearray(CHUNK)
            self._alive[number] = 0
        chunk[index] = state | priority << _PRIORITY_SHIFT
        self._alive[number] += 1
        self.counts[state] += 1

    def move(self, entry_id: int, state: State) -> None:
        """An entry changes its state; its priority stays."""
        number, index = divmod(entry_id, CHUNK)
        chunk = self._chunks[number]
        before = chunk[index]
        self.counts[before & _STATE_MASK] -= 1
        if state:
            chunk[index] = state | before & ~_STATE_MASK
            self.counts[state] += 1
            return
        chunk[index] = 0
        self._alive[number] -= 1
        if not self._alive[number]:
            del self._chunks[number], self._alive[number]
