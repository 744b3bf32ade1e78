"""An asyncio event loop without a clock or sockets: when nothing is ready, time jumps to the next timer.

So a simulated hour passes in a blink, and a run is the same every time: callbacks run in the order asyncio promises,
and nothing outside can wake the loop. If nothing is ready and no timer is set, nothing will ever happen again; that
is a `Deadlock`, raised with the tasks that wait, instead of a hang. Only simulations use it.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary


class Deadlock(Exception):
    """Every task waits for another one, and no timer is set."""


class Livelock(Exception):
    """The loop turned more often than any honest simulation does: something spins."""


class VirtualTime:
    """Seconds since the simulated machine was switched on; several loops in a row may share it."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float = 1_000.0) -> None:
        self.seconds = seconds


class _JumpingSelector:
    """Takes the place of the selector that BaseEventLoop sleeps in."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            waiting = "\n".join(sorted(repr(task) for task in asyncio.all_tasks(self._loop)))
            raise Deadlock(f"nothing will ever happen again at {self._loop.time():.3f} s; waiting:\n{waiting}")
        if timeout > 0:
            self._loop.virtual_time.seconds += timeout
        return []


class SimLoop(asyncio.BaseEventLoop):
    """See the module's text."""

    def __init__(self, time: VirtualTime | None = None, *, turns_max: int = 5_000_000) -> None:
        super().__init__()
        self.virtual_time = VirtualTime() if time is None else time
        self._selector = _JumpingSelector(self)
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

    def _run_once(self) -> None:
        self._turns_left -= 1
        if self._turns_left < 0:
            raise Livelock(f"the loop never came to rest, at {self.time():.3f} s")
        super()._run_once()  # type: ignore[misc]

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no sockets, so there are no events."""

    def _write_to_self(self) -> None:
        """Only ever called from this thread or one that this thread waits for: there is no sleep to interrupt."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("a simulation has no threads of its own; blocking work goes through world.offload")
