"""A whole world from one seed: virtual time, repeatable chance, a disk that loses power, threads that take turns.

`simulated_world(seed)` is what a broker is constructed with. `Simulation` adds the loop and runs a coroutine in that
world until it is done or the power goes. After that, `disk.power_cut()` or `disk.process_crash()` gives the disk to
start the next simulation with.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.loop import SimLoop, VirtualTime
from tests.simulation.offload import SimOffload
from waystation.world import World

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
"""The wall clock's time when virtual time is 0."""


class SimClock:
    """Virtual time, and a wall clock that a test may set forward or back with `jump_ms`."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.jump_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._time.seconds * 1000) + self.jump_ms

    def monotonic(self) -> float:
        return self._time.seconds


class SimRandom:
    """Chance that repeats."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token(self, n: int) -> bytes:
        return self._rng.randbytes(n)

    def uuid(self) -> UUID:
        return UUID(bytes=self._rng.randbytes(16), version=4)

    def below(self, n: int) -> int:
        return self._rng.randrange(n)

    def uniform(self) -> float:
        return self._rng.random()


def simulated_world(seed: int, disk: SimDisk | None = None, *, time: VirtualTime | None = None) -> World:
    """A world whose every accident follows from the seed. Its clock stands still unless a loop shares `time`."""
    rng = random.Random(f"world {seed}")
    disk = SimDisk(seed) if disk is None else disk
    time = VirtualTime() if time is None else time
    return World(SimClock(time), SimRandom(rng), disk, SimOffload(rng, disk))


class Complaint(AssertionError):
    """Something went wrong in a task or callback that nobody was waiting for."""


class Simulation:
    """One life of a machine: from switching it on to the end of `run`, or of the power."""

    def __init__(self, seed: int, disk: SimDisk | None = None, *, time: VirtualTime | None = None) -> None:
        self.disk = SimDisk(seed) if disk is None else disk
        self.loop = SimLoop(time)
        self.time = self.loop.virtual_time
        self.world = simulated_world(seed, self.disk, time=self.time)
        self._complaints: list[str] = []
        self._running = False
        self.loop.set_exception_handler(self._complain)

    @property
    def clock(self) -> SimClock:
        clock = self.world.clock
        if not isinstance(clock, SimClock):
            raise TypeError("not a simulated clock")
        return clock

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Returns what `main` returns; raises PowerCut at the moment the power goes. Can be called once."""
        task = self.loop.create_task(main)
        task.add_done_callback(self._stop)
        self.disk.on_power_off = self.loop.stop
        self._running = True
        try:
            self.loop.run_forever()
            if not self.disk.powered:
                raise PowerCut
            result = task.result()
        finally:
            self._running = False
            self.disk.on_power_off = None
            self._end()
        if self._complaints:
            raise Complaint("\n".join(self._complaints))
        return result

    def _stop(self, task: asyncio.Task[Any]) -> None:
        if self._running:
            self.loop.stop()

    def _end(self) -> None:
        """Ends what still runs. If the power is gone it cannot do harm: each disk operation raises PowerCut again."""
        try:
            for _ in range(100):
                self.world.offload.close()
                left = self.loop.tasks()
                if not left:
                    return
                for task in left:
                    task.cancel()
                self.loop.run_until_complete(asyncio.wait(left, timeout=60))
            raise Complaint(f"tasks refuse to end: {left}")
        finally:
            self.loop.close()

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.disk.powered and not isinstance(error, PowerCut):
            self._complaints.append(f"{context.get('message')}: {error!r} in {context.get('future')}")
