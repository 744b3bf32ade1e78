"""A message that was looked at and not taken: what `peek` and `find` give."""

from __future__ import annotations

from datetime import datetime

from waystation.client.consuming.feeding import Unsettled
from waystation.client.consuming.received import Received
from waystation.client.options.values import moment


class Looked(Received):
    """It can be read; it is not in flight to anyone here, so there is nothing to ack."""

    __slots__ = ("_ready_at_ms", "place", "state")

    def __init__(self, unsettled: Unsettled, place: str, state: str, ready_at_ms: int | None) -> None:
        super().__init__(unsettled)
        self.place = place
        """`queue:NAME` or `topic:NAME`."""
        self.state = state
        """In a queue: `ready`, `parked` (delayed) or `held` (in flight); in a topic: `stored`."""
        self._ready_at_ms = ready_at_ms

    @property
    def ready_at(self) -> datetime | None:
        """When a delayed message will be ready."""
        return None if self._ready_at_ms is None else moment(self._ready_at_ms)

    @property
    def tag(self) -> int:
        """Its number in the queue: what `peek(after=…)` goes on from."""
        return self._delivered.tag

    def __repr__(self) -> str:
        return f"<Looked {self.id!r} {self.state} in {self.place}>"
