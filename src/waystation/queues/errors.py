"""What can go wrong with a delivery."""

from __future__ import annotations

from waystation.errors import Conflict, Full


class UnknownHold(Conflict):
    """The consumer does not hold this message: it was settled already, its hold ran out, or another has it."""


class UnknownConsumer(Conflict):
    """No such consumer is attached to the queue."""


class NeverFits(Full):
    """More at once than the queue can ever hold: waiting for room is of no use."""
