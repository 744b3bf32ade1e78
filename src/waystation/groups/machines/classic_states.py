"""The five states of a classic group and the legal moves between them, as a table that can be printed.

- *Empty*: no members; perhaps offsets. A simple consumer that only commits keeps its group here.
- *PreparingRebalance*: members are called back to join; each join is held until all came or the time is up.
- *CompletingRebalance*: the generation is made, the leader computes who gets what; each sync is held until it says so.
- *Stable*: everybody has an assignment.
- *Dead*: deleted or expired; the object is no longer in the coordinator.
"""

from __future__ import annotations

from enum import Enum


class ClassicState(Enum):
    """The values are what administration tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


MOVES: dict[tuple[ClassicState, ClassicState], str] = {
    (ClassicState.EMPTY, ClassicState.PREPARING): "the first member joins",
    (ClassicState.EMPTY, ClassicState.DEAD): "deleted, expired or taken over by the other protocol",
    (
        ClassicState.PREPARING,
        ClassicState.DEAD,
    ): "a member of the consumer protocol joined: the group uses that from now on",
    (ClassicState.COMPLETING, ClassicState.DEAD): "a member of the consumer protocol joined",
    (ClassicState.STABLE, ClassicState.DEAD): "a member of the consumer protocol joined",
    (ClassicState.PREPARING, ClassicState.COMPLETING): "all members joined, or the rebalance timeout passed",
    (ClassicState.PREPARING, ClassicState.EMPTY): "the last member left or timed out",
    (ClassicState.COMPLETING, ClassicState.STABLE): "the leader handed in the assignment",
    (ClassicState.COMPLETING, ClassicState.PREPARING): "a member joined, left, timed out or changed its metadata",
    (ClassicState.STABLE, ClassicState.PREPARING): "a member joined, left, timed out or changed its metadata",
}
"""Every legal move, and why it is made. Anything else is a fault of ours."""


class IllegalMove(RuntimeError):
    """A move that is not in the table: a bug in this package, never a client's fault."""


def check_move(old: ClassicState, new: ClassicState) -> None:
    if (old, new) not in MOVES:
        raise IllegalMove(f"a classic group cannot change from {old.value} to {new.value}")


def moves_table() -> str:
    """The table as text, for people and for the documentation."""
    width = max(len(state.value) for state in ClassicState)
    return "\n".join(f"{old.value:<{width}} → {new.value:<{width}} {why}" for (old, new), why in MOVES.items())
