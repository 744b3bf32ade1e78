"""Blocking work away from the event loop: a few threads in production, inline in simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Offload(Protocol):
    """`await offload(f, x)` runs f(x) where it may block, and returns what it returns."""

    async def __call__(self, work: Callable[..., T], /, *args: object) -> T: ...

    def close(self) -> None:
        """Waits for what is running; nothing may be handed in afterwards."""


class ThreadOffload:
    """A small pool: flushes and scans are bound by the disk, not by the number of threads."""

    def __init__(self, threads: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="waystation-disk")

    async def __call__(self, work: Callable[..., T], /, *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class InlineOffload:
    """Runs the work where it stands, after giving other tasks a turn: what a simulation needs to be repeatable."""

    async def __call__(self, work: Callable[..., T], /, *args: object) -> T:
        await asyncio.sleep(0)
        result = work(*args)
        await asyncio.sleep(0)
        return result

    def close(self) -> None:
        pass
