"""`QueueFigureAccess`: queues by name with what is counted of them, made for lists of a million.

`Access.describe_queue` says more of one queue, and may read the log for it; this reads nothing. A family of `Access`;
on the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from waystation.broker.access.messaging.family import Family
from waystation.queues.names import INTERNAL_PREFIX
from waystation.queues.settings import QueueSettings


class QueueFigures(msgspec.Struct, frozen=True, gc=False):
    """A queue as it is now; `put`, `delivered` and `acked` count from the start of the broker."""

    settings: QueueSettings
    owner: str | None
    """Whose it is alone, by the name of the connection."""
    consumers: int
    bytes: int
    ready: int
    delayed: int
    in_flight: int
    put: int
    delivered: int
    acked: int


class QueueFigureAccess(Family):
    """One principal's."""

    __slots__ = ()

    def names(self, prefix: str = "", after: str = "") -> Iterable[str]:
        """Queues that the principal may see and that are not the broker's own, in order, from behind `after` on. To be
        gone through at once; who wants turns of the loop in between takes a page, and asks for those behind its
        last."""
        names = self._broker.queues.names(prefix, after)
        return (name for name in names if not name.startswith(INTERNAL_PREFIX) and self._sees("queue", name))

    def find(self, queue: str) -> QueueFigures | None:
        self._ask("describe", "queue", queue)
        place = self._broker.queues.known(queue)
        if place is None:
            return None
        found = place[1]
        ledger = found.ledger
        ready, delayed, in_flight = (0, 0, 0) if ledger is None else (ledger.ready, ledger.delayed, ledger.in_flight)
        return QueueFigures(
            settings=found.settings,
            owner=found.owner,
            consumers=len(found.feeds or ()),
            bytes=found.bytes,
            ready=ready,
            delayed=delayed,
            in_flight=in_flight,
            put=found.put,
            delivered=found.delivered,
            acked=found.acked,
        )
