"""Time on the event loop that connections may take from each other: who has more to do than fits into one turn of the
loop goes on in a line, which all connections of all protocols share.

Invariant: in one turn of the loop one of those in the line goes on, in the order of asking; sockets are read and
ordinary requests are answered in between. So however many connections have long work, an ordinary one waits for one
step of one of them at most in each turn, and a step has a bound of its own (frames, bytes, one message) where it is
made. While nobody has long work, the line costs nothing.

Constructed once per broker, beside the budgets of memory. All calls are for the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class LongWork:
    """The line."""

    def __init__(self) -> None:
        self._line: deque[Callable[[], None]] = deque()
        self._running = False

    def __len__(self) -> int:
        return len(self._line)

    def then(self, step: Callable[[], None]) -> None:
        """Calls `step`, which raises nothing, in a later turn of the loop in which nobody else has one."""
        self._line.append(step)
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._next)

    async def turn(self) -> None:
        """Waits for such a turn; what is done until the next `await` is one step."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.then(lambda: None if granted.done() else granted.set_result(None))
        await granted

    def _next(self) -> None:
        if not self._line:
            self._running = False
            return
        step = self._line.popleft()
        asyncio.get_running_loop().call_soon(self._next)  # also if the line is empty now: whoever comes next waits
        step()
