"""How many clients may be connected, over all ports together.

A connection is a file handle, and so is an open segment. Connections take at most half of the handles that the process
may have, whatever `max.connections` says: then the logs always have some, and a client cannot stop the disk.

Of several ports none takes more than three quarters of the places, so that a flood on one leaves the others open: the
dashboard's, for one, where somebody wants to see what is the matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from waystation.config import BrokerSettings
from waystation.observe.events import event_logger
from waystation.world.clock import Clock
from waystation.world.handles import Handles
from waystation.world.listener import Leave

logger = event_logger("waystation.admission")

TOLD_EVERY_S = 10.0
"""A client that connects in a loop would fill the log file."""
RECENT_S = 60.0


class Admission:
    """One per broker; a gate per port."""

    def __init__(
        self, settings: BrokerSettings, handles: Handles, clock: Clock, wait_s: Callable[[str], float] | None = None
    ) -> None:
        """`wait_s`: counts a connection from an address, or says for how long that has to wait (a quota)."""
        self._wait_s = wait_s
        self._settings = settings
        self._handles = handles
        self._clock = clock
        self._here: Counter[str] = Counter()  # by port, which is named after its first protocol
        self.refused: Counter[str] = Counter()
        self._untold = 0
        self._told_at = self._fast_told_at = -TOLD_EVERY_S
        self._refused_at = -RECENT_S

    @property
    def most(self) -> int:
        """Over all ports."""
        wanted = self._settings.integer("max.connections")
        handles = self._handles.most()
        return min(wanted, handles // 2) if handles else wanted

    @property
    def most_at_one(self) -> int:
        most = self.most
        return most - most // 4 if len(self._here) > 1 else most

    @property
    def count(self) -> int:
        return self._here.total()

    def at(self, port: str) -> int:
        return self._here[port]

    @property
    def by_port(self) -> dict[str, int]:
        return dict(self._here)

    @property
    def refused_lately(self) -> bool:
        return self._clock.monotonic() - self._refused_at < RECENT_S

    def gate(self, port: str) -> Gate:
        """For the listener of this port."""
        self._here[port] += 0
        return Gate(self, port)

    def enter(self, port: str, peer: str) -> Leave | None:
        if self.count >= self.most or self._here[port] >= self.most_at_one:
            self._refuse(port, peer)
            return None
        if self._wait_s is not None and self._wait_s(peer):
            self._refuse_fast(port, peer)
            return None
        self._here[port] += 1
        return _Place(self._here, port)

    def _refuse_fast(self, port: str, peer: str) -> None:
        """An address connects faster than its quota allows."""
        self.refused[port] += 1
        now = self._clock.monotonic()
        if now - self._fast_told_at >= TOLD_EVERY_S:
            self._fast_told_at = now
            logger.warning(
                "connections.too_fast",
                "a connection from {client} at the {port} port is refused: it connects faster than its quota"
                " connection_creation_rate allows",
                client=peer,
                port=port,
            )

    def _refuse(self, port: str, peer: str) -> None:
        self.refused[port] += 1
        self._untold += 1
        now = self._refused_at = self._clock.monotonic()
        if now - self._told_at >= TOLD_EVERY_S:
            logger.warning(
                "connections.refused",
                "connections refused: {refused}, the last from {client} at the {port} port, which has {here} of all"
                " {connections}; at most {most} ({most_here} at one port): raise max.connections, and the limit of open"
                " files ({open_files}) to twice that",
                refused=self._untold,
                client=peer,
                port=port,
                here=self._here[port],
                connections=self.count,
                most=self.most,
                most_here=self.most_at_one,
                open_files=self._handles.most() or "none",
            )
            self._untold = 0
            self._told_at = now


class _Place:
    """One connection's. Called when it is over; a second time does nothing."""

    __slots__ = ("_here", "_port")

    def __init__(self, here: Counter[str], port: str) -> None:
        self._here: Counter[str] | None = here
        self._port = port

    def __call__(self) -> None:
        if self._here is not None:
            self._here[self._port] -= 1
            self._here = None


class Gate:
    """The admission at one port."""

    __slots__ = ("_admission", "_port")

    def __init__(self, admission: Admission, port: str) -> None:
        self._admission = admission
        self._port = port

    def enter(self, peer: str) -> Leave | None:
        return self._admission.enter(self._port, peer)
