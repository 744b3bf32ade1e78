"""What can go wrong with a delivery."""

from __future__ import annotations

from waystation.errors import Conflict, Full


class UnknownHold(Conflict):
    """The message is not in flight to this consumer: it was settled already, its visibility timeout ended, or another
    has it."""


class UnknownConsumer(Conflict):
    """No such consumer is attached to the queue."""


class NeverFits(Full):
    """More at once than the queue can ever hold: waiting for room is of no use."""
