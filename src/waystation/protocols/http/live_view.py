"""The live feed of the dashboard: one look at the broker every two seconds for all who watch, encoded once.

Nobody looks, nothing happens: the timer runs while somebody watches. Whoever does not keep up misses what comes, and
gets the next look instead; nothing piles up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.errors import Invalid, NotAllowed
from waystation.observe.events import event_logger
from waystation.protocols.http.transport.replies import encode_json

if TYPE_CHECKING:
    from waystation.broker.access.administration.views import ViewAccess
    from waystation.broker.access.types import Point
    from waystation.protocols.http.transport.wire import Outlet

logger = event_logger("waystation.http")

EVERY_S = 2.0


class LiveView:
    """One per listener."""

    def __init__(self, views: ViewAccess) -> None:
        self._views = views
        self._viewers: dict[Viewer, Outlet] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def viewer(self) -> Viewer:
        return Viewer(self)

    def add(self, viewer: Viewer, outlet: Outlet) -> None:
        """It sees the present at once."""
        self._viewers[viewer] = outlet
        outlet.tell("overview", self._look())
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._tick)
            self._unsubscribe = self._views.watch(self._on_point)

    def discard(self, viewer: Viewer) -> None:
        self._viewers.pop(viewer, None)
        if not self._viewers:
            self._rest()

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._tick)
        try:
            self._tell("overview", self._look())
        except NotAllowed as error:
            for viewer, outlet in list(self._viewers.items()):
                self.discard(viewer)
                outlet.finish(error)
        except Exception:
            logger.exception("live_view.failed", "the overview could not be made; it is retried")

    def _look(self) -> bytes:
        return encode_json(self._views.overview())

    def _on_point(self, point: Point) -> None:
        self._tell("sample", encode_json(point))

    def _tell(self, kind: str, data: bytes) -> None:
        for outlet in list(self._viewers.values()):
            if outlet.writable:
                outlet.tell(kind, data)


class Viewer:
    """One who watches, on an event stream or a WebSocket (`wire.Session`)."""

    def __init__(self, live: LiveView) -> None:
        self._live = live

    def begin(self, outlet: Outlet) -> None:
        self._live.add(self, outlet)

    async def receive(self, value: dict[str, Any]) -> dict[str, Any] | None:
        raise Invalid("there is nothing to say here; this only shows")

    def filled(self) -> None:
        """It misses what comes."""

    def drained(self) -> None:
        """What was missed is old by now."""

    def end(self) -> None:
        self._live.discard(self)
