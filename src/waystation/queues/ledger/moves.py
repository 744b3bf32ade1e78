"""The states of an entry and the legal moves between them: a table that can be printed, and that everything obeys.

An entry's byte is its state, the level of its priority above, and for IN_FLIGHT the mark of an in-flight run's first
entry. Runs of entries are moved by translating their bytes, with tables that are made here from `MOVES`: there is no
second list of what is legal.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

LEVELS = 16  # as many as the upper half of a byte can tell apart
TOP = LEVELS - 1
"""The level of all priorities from this one on; `chunk.py` tells them apart."""

PRIORITY_SHIFT = 4
STATE_MASK = 0x07
HEAD = 0x08
"""Set in the first byte of each run in flight, so that the run of any entry is found by looking back."""


class State(IntEnum):
    """Where an entry is. DONE is also what an entry is that never was, or is long forgotten."""

    DONE = 0
    READY = 1
    DELAYED = 2
    IN_FLIGHT = 3
    LEAVING = 4  # claimed, part of an open transaction, or dead and not yet moved to where the dead go


DONE, READY, DELAYED, IN_FLIGHT, LEAVING = State
# By these names, since `State.READY` takes ten times as long as a name of the module: 95 ns, often enough to matter.

MOVES: dict[tuple[State, str], State] = {
    (State.READY, "acquire"): State.IN_FLIGHT,
    (State.IN_FLIGHT, "ack"): State.DONE,
    (State.IN_FLIGHT, "release"): State.READY,  # also when its visibility timeout ends
    (State.IN_FLIGHT, "release later"): State.DELAYED,
    (State.IN_FLIGHT, "reserve"): State.LEAVING,
    (State.IN_FLIGHT, "die"): State.DONE,  # rejected; or requeued when it has expired, or once too often
    (State.IN_FLIGHT, "die, kept"): State.LEAVING,
    (State.DELAYED, "due"): State.READY,
    (State.READY, "expire"): State.DONE,
    (State.DELAYED, "expire"): State.DONE,
    (State.READY, "expire, kept"): State.LEAVING,
    (State.DELAYED, "expire, kept"): State.LEAVING,
    (State.READY, "drop"): State.DONE,
    (State.READY, "drop, kept"): State.LEAVING,
    (State.READY, "cancel"): State.DONE,
    (State.DELAYED, "cancel"): State.DONE,
    (State.READY, "take out"): State.LEAVING,
    (State.DELAYED, "take out"): State.LEAVING,
    (State.IN_FLIGHT, "take out"): State.LEAVING,
    (State.READY, "claim"): State.LEAVING,
    (State.DELAYED, "claim"): State.LEAVING,
    (State.LEAVING, "restore"): State.READY,
    (State.READY, "delay"): State.DELAYED,
    (State.READY, "finish"): State.DONE,
    (State.DELAYED, "finish"): State.DONE,
    (State.IN_FLIGHT, "finish"): State.DONE,
    (State.LEAVING, "finish"): State.DONE,
}
"""Every legal move; `moves_table()` prints it. The bytes that runs are translated by are made from it."""


def moves_table() -> str:
    return "\n".join(f"{state.name:9} {verb:14} {after.name}" for (state, verb), after in MOVES.items())


class Move(NamedTuple):
    """A verb as tables of 256 bytes."""

    after: bytes  # what each byte becomes; what the verb does not move stays
    moved: bytes  # 1 for the bytes that it moves
    ends: bool  # what it moves is DONE


def _tables(verb: str) -> Move:
    after, moved, ends = bytearray(range(256)), bytearray(256), False
    for byte in range(256):
        state = byte & STATE_MASK
        target = MOVES.get((State(state), verb)) if state < len(State) else None
        if target is not None:
            after[byte] = target and target | byte >> PRIORITY_SHIFT << PRIORITY_SHIFT
            moved[byte] = 1
            ends = target is State.DONE
    return Move(bytes(after), bytes(moved), ends)


ACK, RELEASE, LATER, RESERVE = _tables("ack"), _tables("release"), _tables("release later"), _tables("reserve")
DUE, DELAY, CANCEL, FINISH = _tables("due"), _tables("delay"), _tables("cancel"), _tables("finish")
TAKE_OUT, RESTORE, CLAIM = _tables("take out"), _tables("restore"), _tables("claim")
# By whether the dead are kept.
DIE = (_tables("die"), _tables("die, kept"))
EXPIRE = (_tables("expire"), _tables("expire, kept"))
DROP = (_tables("drop"), _tables("drop, kept"))
