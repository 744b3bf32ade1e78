"""Blocking work away from the event loop: a few threads in production, inline in simulation.

Work that was handed in is done, whether or not somebody still waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Offload(Protocol):
    """`await offload(f, x)` runs f(x) where it may block, and returns what it returns."""

    async def __call__(self, work: Callable[..., T], /, *args: object) -> T: ...

    def close(self) -> None:
        """Waits for what is running; nothing may be handed in afterwards."""


class _Job:
    """One piece of work, and who waits for it."""

    __slots__ = ("args", "done", "error", "loop", "result", "work")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[..., Any], args: tuple[object, ...]) -> None:
        self.loop = loop
        self.work = work
        self.args = args
        self.done: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.work(*self.args)
        except BaseException as error:
            self.error = error

    def settle(self) -> None:
        """On the loop's thread."""
        if self.done.done():
            return  # who waited was cancelled
        if self.error is None:
            self.done.set_result(self.result)
        elif isinstance(self.error, StopIteration):
            self.done.set_exception(RuntimeError("work raised StopIteration"))
        else:
            self.done.set_exception(self.error)


class ThreadOffload:
    """A few threads: flushes and scans are bound by the disk, not by the number of threads.

    Without `concurrent.futures`, whose two futures for each piece of work, with their locks and callbacks, cost a lone
    put as much as writing it does. All methods are for the loop's thread.
    """

    def __init__(self, threads: int = 4, name: str = "waystation-disk") -> None:
        self._name = name
        self._most = threads
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._under_way = 0

    async def __call__(self, work: Callable[..., T], /, *args: object) -> T:
        job = _Job(asyncio.get_running_loop(), work, args)
        self._under_way += 1
        if self._under_way > len(self._threads) < self._most:
            self._start_thread()
        self._jobs.put(job)
        result: T = await job.done
        return result

    def _start_thread(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
                job.loop.call_soon_threadsafe(self._over, job)
            del job  # what it holds is not kept until the next one comes

    def _over(self, job: _Job) -> None:
        self._under_way -= 1
        job.settle()

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()


class InlineOffload:
    """Runs the work where it stands, after giving other tasks a turn: what a simulation needs to be repeatable."""

    async def __call__(self, work: Callable[..., T], /, *args: object) -> T:
        await asyncio.sleep(0)
        result = work(*args)
        await asyncio.sleep(0)
        return result

    def close(self) -> None:
        pass
