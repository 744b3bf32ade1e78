"""The sides of a connection that is no longer request and answer: a WebSocket or an event stream.

A `Wire` is the connection as whoever took it over sees it; a `Takeover` is what took it over; a `Session` is what
happens there, whichever of the two carries it; an `Outlet` is the way out that a session has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from waystation.errors import WaystationError


class Wire(Protocol):
    """All calls are for the loop's thread."""

    @property
    def writable(self) -> bool:
        """Whether the client has read most of what it was sent."""

    @property
    def others_wait(self) -> bool:
        """Whether other clients wait for answers, so that what is done in one turn of the loop is to be short."""

    def write(self, data: bytes) -> None: ...

    def hold_back(self, stop: bool) -> None:
        """Whether to read no more from the client for now, and to hand on nothing of what was read."""

    async def turn(self) -> None:
        """Others get their turn first."""

    def close(self) -> None:
        """Ends the connection when all that was written is sent."""

    def abort(self) -> None:
        """Ends it at once."""


class Takeover(Protocol):
    """What has a connection for itself."""

    def begin(self) -> None:
        """The connection is its own now."""

    def received(self, data: bytes) -> bytes:
        """What of it is left for another turn of the loop: it is called with that again."""

    def filled(self) -> None:
        """The client does not read: it can take nothing until `drained`. Also from within a write."""

    def drained(self) -> None:
        """The client can take more."""

    def lost(self) -> None:
        """The connection is closed."""

    def shut(self) -> None:
        """The broker stops."""

    def finish(self, error: WaystationError) -> None:
        """Says why there will be no more, and ends."""

    def tick(self, now_s: float) -> None:
        """Called every few seconds."""


class Outlet(Protocol):
    """Where a session's messages go."""

    @property
    def writable(self) -> bool:
        """Whether the client keeps up."""

    def deliver(self, messages: Sequence[dict[str, Any]]) -> None: ...

    def deliver_part(self, part: bytes, *, first: bool, last: bool) -> None:
        """A message whose JSON comes in parts. Until the last one is here, nothing else is delivered."""

    def tell(self, kind: str, data: bytes) -> None:
        """Something else than messages: JSON, encoded already."""

    def finish(self, error: WaystationError) -> None:
        """Says why there will be no more, and ends."""


class Session(Protocol):
    """What happens on a WebSocket or an event stream."""

    def begin(self, outlet: Outlet) -> None:
        """It is open."""

    async def receive(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """A client's message, and its answer."""

    def filled(self) -> None:
        """The client can take nothing for now. Also from within a delivery."""

    def drained(self) -> None:
        """The client can take more."""

    def end(self) -> None:
        """It is closed, whoever closed it; or it never opened."""
