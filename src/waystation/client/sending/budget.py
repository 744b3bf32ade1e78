"""How much may be sent and not yet acknowledged: what makes a sender feel that the broker is behind."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from waystation.errors import Full

DEFAULT_IN_FLIGHT_BYTES = 64 * 1024 * 1024


class Budget:
    """Bytes that are given and not yet acknowledged. This one is for the tasks of one loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def try_take(self, size: int) -> bool:
        """A message larger than everything passes alone."""
        if self._used and (self._used + size > self._most or self._waiting):
            return False
        self._used += size
        return True

    async def take(self, size: int) -> None:
        if self.try_take(size):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, waiter))
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.give(size)  # it was granted in the moment in which the task was cancelled
            raise

    def take_anyway(self, size: int) -> None:
        """For the loop itself, which may not block: it takes, whatever is there."""
        self._used += size

    def take_now(self, size: int) -> None:
        if not self.try_take(size):
            raise Full(
                f"{self._used} bytes are on their way and not acknowledged (the most is {self._most}); "
                "wait for some of them, or use the form that waits"
            )

    def give(self, size: int) -> None:
        self._used -= size
        while self._waiting:
            wanted, waiter = self._waiting[0]
            if waiter.done():
                self._waiting.popleft()
                continue
            if self._used and self._used + wanted > self._most:
                return
            self._waiting.popleft()
            self._used += wanted
            waiter.set_result(None)


class ThreadBudget(Budget):
    """The same for threads: they take, the loop gives back."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._changed = threading.Condition()

    def take_waiting(self, size: int) -> None:
        """Blocks the calling thread until there is room."""
        with self._changed:
            while self._used and self._used + size > self._most:
                self._changed.wait()
            self._used += size

    def take_anyway(self, size: int) -> None:
        with self._changed:
            self._used += size

    def give(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._changed.notify_all()
