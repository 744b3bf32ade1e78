"""One timer of the event loop for all groups.

Groups say when they want to be looked at; a thousand groups with a thousand members each still cost one timer handle.
The coordinator is the only caller; after `close` nothing rings any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from waystation.groups.deadlines import Deadlines

log = logging.getLogger(__name__)


class Alarm:
    """Calls `ring(name)` when the moment set for `name` has come. Times are milliseconds of `now_ms`'s clock."""

    def __init__(self, now_ms: Callable[[], int], ring: Callable[[str], None]) -> None:
        self._now_ms = now_ms
        self._ring = ring
        self._deadlines: Deadlines[str] = Deadlines()
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at_ms = 0
        self._closed = False

    def set(self, name: str, at_ms: int | None) -> None:
        """None: there is nothing to wait for."""
        if at_ms is None:
            self._deadlines.cancel(name)
            return
        self._deadlines.set(name, at_ms)
        if self._handle is None or at_ms < self._handle_at_ms:
            self._arm()

    def close(self) -> None:
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        at_ms = self._deadlines.next_ms()
        if at_ms is not None and not self._closed:
            delay_s = max(0, at_ms - self._now_ms()) / 1000
            self._handle_at_ms = at_ms
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._handle = None
        for name in self._deadlines.due(self._now_ms()):
            try:
                self._ring(name)
            except Exception:  # one group's trouble must not stop the clock of all others
                log.exception("group.timer_failed group=%s", name)
        if self._handle is None:
            self._arm()
