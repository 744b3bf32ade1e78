"""Blocking work in a simulation: threads that take turns, so that a seed repeats every interleaving.

In production, work handed to `world.offload` runs beside the event loop: a flush may be half through its files when the
loop appends to one of them. Here the work runs in a real thread, but exactly one thread runs at any moment, and the
turn changes only at disk operations and when the seed says so. What a race between the loop and a thread can break,
some seed breaks every time. (Races between two bytecodes without a disk operation between them are out of reach.)

As in production, cancelling the task that waits does not stop the work.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from tests.simulation.disk import SimDisk
from tests.simulation.disk_calls import callers

T = TypeVar("T")

_DELAY_S = 0.004
"""The mean of the virtual time that a step takes: of the order of a disk's flush."""


class _Worker:
    """A thread that does one piece of work after another: to start one for each takes longer than most of the work."""

    idle: ClassVar[list[_Worker]] = []

    def __init__(self) -> None:
        self.go = threading.Lock()
        self.stopped = threading.Lock()
        self.go.acquire()
        self.stopped.acquire()
        self.job: _Job | None = None
        self.thread = threading.Thread(target=self._run, daemon=True, name="simulated-disk-thread")
        self.thread.start()

    @classmethod
    def take(cls) -> _Worker:
        return cls.idle.pop() if cls.idle else cls()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            if self.job is not None:
                self.job.do()
            self.stopped.release()


class _Job:
    """One piece of work, perhaps in its own thread, which runs only between `resume()` and its return."""

    def __init__(self, work: Callable[[], Any], origin: tuple[str, ...], *, threaded: bool) -> None:
        self._work = work
        self.origin = origin
        self._threaded = threaded
        self._worker: _Worker | None = None
        self.finished = False
        self.result: Any = None
        self.error: BaseException | None = None

    def resume(self) -> None:
        """Lets the thread run until it pauses or ends; without a thread, does all the work."""
        if not self._threaded:
            self.do()
            return
        if self._worker is None:
            self._worker = _Worker.take()
            self._worker.job = self
        self._worker.go.release()
        self._worker.stopped.acquire()
        if self.finished:
            self._worker.job = None
            _Worker.idle.append(self._worker)

    def is_running_here(self) -> bool:
        return self._worker is not None and threading.get_ident() == self._worker.thread.ident

    def pause(self) -> None:
        """Called in the thread: gives the turn back."""
        if self._worker is not None:
            self._worker.stopped.release()
            self._worker.go.acquire()

    def do(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error
        self.finished = True


class SimOffload:
    """An `Offload` that runs a share (`threads`, 0 to 1) of its work in threads; those give the turn away at a share
    (`pauses`) of their disk operations. The rest of the work runs in one go: changing threads is what costs time here,
    most of all on a busy machine."""

    def __init__(self, rng: random.Random, disk: SimDisk, *, threads: float = 0.25, pauses: float = 0.3) -> None:
        self._rng = rng
        self._disk = disk
        self._threads = threads
        self._pauses = pauses
        self._jobs: dict[int, _Job] = {}
        self._running: _Job | None = None
        disk.before_operation = self._before_disk_operation

    async def __call__(self, work: Callable[..., T], /, *args: object) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        origin = () if self._disk.on_operation is None else callers(sys._getframe(1))
        job = _Job(lambda: work(*args), origin, threaded=self._rng.random() < self._threads)
        self._jobs[id(job)] = job
        self._later(loop, self._turn, loop, job, done)
        return await done

    @property
    def origin(self) -> tuple[str, ...]:
        """Who asked for the work that is running, innermost first; nobody while the loop has the turn. Known only where
        somebody watches the disk's operations."""
        return () if self._running is None else self._running.origin

    def close(self) -> None:
        """Lets every thread come to its end, as the real pool does."""
        while self._jobs:
            self._resume(next(iter(self._jobs.values())))

    def _turn(self, loop: asyncio.AbstractEventLoop, job: _Job, done: asyncio.Future[Any]) -> None:
        if not job.finished:
            self._resume(job)
        if job.finished:
            self._later(loop, _settle, job, done)
        else:
            self._later(loop, self._turn, loop, job, done)

    def _later(self, loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: Any) -> None:
        delay = 0.0 if self._rng.random() < 0.4 else self._rng.expovariate(1 / _DELAY_S)
        loop.call_later(delay, callback, *args)

    def _resume(self, job: _Job) -> None:
        before, self._running = self._running, job
        try:
            job.resume()
        finally:
            self._running = before
        if job.finished:
            del self._jobs[id(job)]

    def _before_disk_operation(self) -> None:
        job = self._running
        if job is not None and job.is_running_here() and self._rng.random() < self._pauses:
            job.pause()


def _settle(job: _Job, done: asyncio.Future[Any]) -> None:
    if done.cancelled():
        return
    if job.error is None:
        done.set_result(job.result)
    elif isinstance(job.error, StopIteration):
        done.set_exception(RuntimeError("work raised StopIteration"))
    else:
        done.set_exception(job.error)
