"""Work that must happen in the order it was asked for, while other work goes on.

A publish that waits for room in its queue, or for its topic to be made, keeps the ones behind it waiting too, but only
those for the same place; the steps of a transaction follow one another. Used by the session alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

Step = Callable[[], Awaitable[None]]

UNANSWERED = object()
"""What work returns that has taken care of its answer, or has left it to a later step."""


class Turns:
    """Lines of steps by key; a line exists while it has something to do."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[Step]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._lines

    def add(self, key: Hashable, step: Step) -> None:
        """Runs `step`, which raises nothing, after all that were added under this key before."""
        line = self._lines.get(key)
        if line is not None:
            line.append(step)
            return
        self._lines[key] = deque([step])
        task = asyncio.get_running_loop().create_task(self._run(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: Hashable) -> None:
        line = self._lines[key]
        try:
            while line:
                await line.popleft()()
        finally:
            self._lines.pop(key, None)

    def close(self) -> None:
        """Ends all of it where it is."""
        for task in list(self._tasks):
            task.cancel()
