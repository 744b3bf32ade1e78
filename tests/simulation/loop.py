"""An asyncio event loop without a clock or sockets: when nothing is ready, time jumps to the next timer.

So a simulated hour passes in a blink, and a run is the same every time: callbacks run in the order asyncio promises,
and nothing outside can wake the loop. If nothing is ready and no timer is set, nothing will ever happen again; that
is a `Deadlock`, raised with the tasks that wait, instead of a hang. Only simulations use it.

A turn of the loop is a large part of what a simulation costs, so `_run_once` is asyncio's without what it does for
sockets and for debugging, and timers lie in the heap beside the time that they are for.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any
from weakref import WeakKeyDictionary

CANCELLED_KEPT = 100
"""Timers in the heap, cancelled or not, below which those that were cancelled are left where they are."""


class Deadlock(Exception):
    """Every task waits for another one, and no timer is set."""


class Livelock(Exception):
    """The loop turned more often than any honest simulation does: something spins."""


class VirtualTime:
    """Seconds since the simulated machine was switched on; several loops in a row may share it."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float = 1_000.0) -> None:
        self.seconds = seconds


class _NoSelector:
    """Takes the place of the selector that BaseEventLoop sleeps in."""

    def select(self, timeout: float | None) -> list[Any]:
        raise RuntimeError("a simulation does not sleep")


class SimLoop(asyncio.BaseEventLoop):
    """See the module's text."""

    def __init__(self, time: VirtualTime | None = None, *, turns_max: int = 5_000_000) -> None:
        super().__init__()
        self.virtual_time = VirtualTime() if time is None else time
        self._selector = _NoSelector()
        self._timers: list[tuple[float, asyncio.TimerHandle]] = []
        self.get_debug = bool  # type: ignore[method-assign]  # no: asked for by every handle, a fiftieth of a run
        self._turns_left = turns_max
        self._clock_resolution = 1e-6  # a timer is due when time is this close: years in floats have no nanoseconds
        self._made: WeakKeyDictionary[asyncio.Task[Any], None] = WeakKeyDictionary()
        self.set_task_factory(self._make_task)

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that have not ended, in the order in which they began: `asyncio.all_tasks` has none."""
        return [task for task in self._made if not task.done()]

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **kept: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **kept)
        self._made[task] = None
        return task

    def time(self) -> float:
        return self.virtual_time.seconds

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        heappush(self._timers, (when, timer))
        return timer

    def _run_once(self) -> None:
        self._turns_left -= 1
        if self._turns_left < 0:
            raise Livelock(f"the loop never came to rest, at {self.time():.3f} s")
        self._forget_cancelled()
        timers, ready = self._timers, self._ready  # type: ignore[attr-defined]
        time = self.virtual_time
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                self._nothing_left()
            sleeps_s = timers[0][0] - time.seconds
            if sleeps_s > 0:
                time.seconds += sleeps_s
        due = time.seconds + self._clock_resolution
        while timers and timers[0][0] < due:
            timer = heappop(timers)[1]
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        self._run_ready(ready)

    @staticmethod
    def _run_ready(ready: deque[asyncio.Handle]) -> None:
        """Those that are there now: what they make ready has its turn after them."""
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _forget_cancelled(self) -> None:
        timers = self._timers
        cancelled: int = self._timer_cancelled_count  # type: ignore[has-type]
        if len(timers) > CANCELLED_KEPT and cancelled / len(timers) > 0.5:
            for _, timer in timers:
                timer._scheduled = not timer.cancelled()  # type: ignore[attr-defined]
            timers[:] = [entry for entry in timers if not entry[1].cancelled()]
            heapify(timers)
            self._timer_cancelled_count = 0
            return
        while timers and timers[0][1]._cancelled:
            self._timer_cancelled_count -= 1
            heappop(timers)[1]._scheduled = False  # type: ignore[attr-defined]

    def _nothing_left(self) -> None:
        waiting = "\n".join(sorted(repr(task) for task in asyncio.all_tasks(self)))
        raise Deadlock(f"nothing will ever happen again at {self.time():.3f} s; waiting:\n{waiting}")

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no sockets, so there are no events."""

    def _write_to_self(self) -> None:
        """Only ever called from this thread or one that this thread waits for: there is no sleep to interrupt."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("a simulation has no threads of its own; blocking work goes through world.offload")
