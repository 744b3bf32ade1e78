"""What a client needs of a connection, whatever it is made of: a socket, or the broker in this very process.

A link carries commands one way and answers and pushes the other, in order, and says once when it is lost. All calls
are for the thread of the client's loop. A link is used once: after it is lost or closed, another one is opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from waystation.errors import WaystationError
from waystation.message import Delivered
from waystation.protocol import Command


class Ear(Protocol):
    """Who listens to a link."""

    def answered(self, id: int, value: Any) -> None:
        """`value` is for `Link.read`."""

    def failed(self, id: int, error: str, text: str) -> None:
        """`id` 0: the connection's own failure, not a request's."""

    def delivered(self, consumer: int, messages: list[Delivered]) -> None: ...

    def ceased(self, consumer: int, error: str, text: str) -> None: ...

    def lost(self, error: WaystationError) -> None:
        """The last that is heard of this link."""


class Link(Protocol):
    """One connection."""

    peer: str
    """Who is at the other end, for errors."""
    remote: bool
    """Whether silence may mean that the other side has disconnected."""

    def send(self, command: Command) -> None:
        """In order. What cannot be sent any more is dropped: `lost` says so for all of it."""

    def read(self, value: Any, kind: Any) -> Any:
        """An answer's value as the type that its command promises."""

    @property
    def busy(self) -> bool:
        """Whether so much waits to be sent that senders who can should wait."""

    def close(self) -> None:
        """The other side sees us go. `lost` is not called."""

    def forked(self) -> None:
        """In a forked child: nothing is sent any more, and the connection is the parent's alone."""


Dial = Callable[[Ear], Awaitable[Link]]
"""Opens a link; raises ConnectionLost."""
