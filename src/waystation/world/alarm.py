"""Timers of the event loop: one for many deadlines, on one of two clocks.

- What lives in memory only (visibility timeouts, sessions, locks, open transactions) ends by the monotonic clock:
  `Alarm`. Setting the machine's time does nothing to it. When its timer is late, the process was stopped or the loop
  was blocked, and what a client sent in time may lie unread in a socket: so sockets are read first, and then deadlines
  end (`PatientTimer`). For this to hold, an owner lets such a deadline end when it rings, and nowhere else.
- What is stored (delays, expiries) has a time of the wall clock: `CalendarAlarm`. It is never early by that clock, and
  looks at it at least every `LONGEST_S`, so that a clock that was set forward is noticed soon.

One timer handle serves any number of keys. Owners of deadlines construct these; after `close` nothing rings any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from waystation.observe.events import event_logger
from waystation.world.clock import Clock, monotonic_ms
from waystation.world.deadlines import Deadlines

logger = event_logger("waystation.alarm")

K = TypeVar("K", bound=Hashable)

LATE_S = 0.05
"""A timer that is later than this was kept from its time: the loop was blocked, or the process stopped."""
TURNS = 10
TURN_S = 0.02
"""So often, and so far apart, a late timer lets the loop read: connections are accepted, bytes arrive, tasks begin."""
LONGEST_S = 1.0
"""The loop's clock knows nothing of a wall clock that is set: so often it is looked at."""
RINGS = 128
"""Keys that ring in one turn of the loop: when a million are due at once, others get their turns in between."""
RETRY_MS = 1_000


class Cancellable(Protocol):
    """A timer that has not fired yet."""

    def cancel(self) -> None: ...


class PatientTimer:
    """Calls `callback` once after a while; sockets are read before, if it is late."""

    __slots__ = ("_callback", "_due_s", "_handle", "_loop", "_turns")

    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._due_s = self._loop.time() + delay_s
        self._turns: int | None = None  # that sockets still get; None: it was not late
        self._handle = self._loop.call_later(delay_s, self._fire)

    @property
    def late(self) -> bool:
        """It would have fired already, but lets sockets be read."""
        return self._turns is not None

    def cancel(self) -> None:
        self._handle.cancel()

    def _fire(self) -> None:
        if self._turns is None and self._loop.time() - self._due_s > LATE_S:
            self._turns = TURNS
        if self._turns:
            self._turns -= 1
            self._handle = self._loop.call_later(TURN_S, self._fire)
            return
        self._callback()


class Alarm(Generic[K]):
    """Calls `ring(key)` when the moment of a key has come, in milliseconds of the monotonic clock (`monotonic_ms`)."""

    def __init__(self, clock: Clock, ring: Callable[[K], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._deadlines: Deadlines[K] = Deadlines()
        self._timer: Cancellable | None = None
        self._timer_ms = 0
        self._ringing = False
        self._closed = False

    def __len__(self) -> int:
        """What it keeps in memory; some of it may be stale."""
        return self._deadlines.rows

    def set(self, key: K, at_ms: int | None) -> None:
        """The key's one moment; None: there is nothing to wait for."""
        if at_ms is None:
            self._deadlines.cancel(key)
            return
        if self._closed:
            return
        self._deadlines.set(key, at_ms)
        if not self._ringing and (self._timer is None or (at_ms < self._timer_ms and not self._waits_for_sockets)):
            self._start()

    def arm(self, key: K, at_ms: int) -> None:
        """No later than this. To ring too often does no harm, so an earlier moment stays."""
        known_ms = self._deadlines.get(key)
        if known_ms is None or at_ms < known_ms:
            self.set(key, at_ms)

    def close(self) -> None:
        self._closed = True
        self._stop()
        self._deadlines = Deadlines()

    # -- the clock it goes by -----------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)

    def _timer_in(self, wait_s: float) -> Cancellable:
        return PatientTimer(wait_s, self._fire)

    # -- parts --------------------------------------------------------------------------------------------------------

    @property
    def _waits_for_sockets(self) -> bool:
        return isinstance(self._timer, PatientTimer) and self._timer.late

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        self._stop()
        at_ms = self._deadlines.next_ms()
        if at_ms is not None:
            self._timer_ms = at_ms
            self._timer = self._timer_in(max(0, at_ms - self._now_ms()) / 1000)

    def _fire(self) -> None:
        self._timer = None
        self._ringing = True
        now_ms = self._now_ms()
        for key in self._deadlines.due(now_ms, RINGS):
            try:
                self._ring(key)
            except Exception:  # a mistake of ours with one of them must not stop the clock of all others
                logger.exception("alarm.failed", "what was due could not be done, trying again", key=key)
                self.arm(key, now_ms + RETRY_MS)
        self._ringing = False
        if self._closed:
            return
        next_ms = self._deadlines.next_ms()
        if next_ms is not None and next_ms <= now_ms:  # the rest, after others had their turn
            self._timer_ms = next_ms
            self._timer = asyncio.get_running_loop().call_soon(self._fire)
        else:
            self._start()


class CalendarAlarm(Alarm[K]):
    """The same by the wall clock, in milliseconds since the epoch."""

    def _now_ms(self) -> int:
        return self._clock.now_ms()

    def _timer_in(self, wait_s: float) -> Cancellable:
        return asyncio.get_running_loop().call_later(min(wait_s, LONGEST_S), self._fire)
