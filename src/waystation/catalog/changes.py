"""Changes of what the catalog remembers: one at a time, and each to its end even when whoever asked for it has gone.

A change reads what there is, waits for the catalog, and then changes what there is: two at once would lose one of them,
and one that is cancelled while it waits would leave catalog and memory apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ChangeQueue:
    """One for each part of the broker whose changes must not overlap."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The same without waiting for it."""

        async def in_turn() -> T:
            async with self._turn:
                return await work

        task = asyncio.ensure_future(in_turn())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def settle(self) -> None:
        """Returns when no change is under way: before the broker stops."""
        while self._under_way:
            await asyncio.wait(set(self._under_way))
