"""Functions that are called for messages, for asyncio.

They are registered by decorators, which cannot wait: their subscriptions are opened by tasks, for which `ready` waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from waystation.client.aio.subscription import Subscription
from waystation.observe.events import event_logger

log = event_logger("waystation.client")


class Handlers:
    """Of one client: its functions, each with its subscriptions."""

    def __init__(self) -> None:
        self._starting: set[asyncio.Task[Subscription]] = set()
        self._refused: list[BaseException] = []
        self._started: dict[Callable[..., Any], list[Subscription]] = {}

    def add(
        self,
        handler: Callable[..., Any],
        opening: Awaitable[Subscription],
        work: Callable[..., Any],
        concurrency: int,
    ) -> None:
        """Has `work`, which is what became of `handler`, called for the messages of a subscription."""
        task = asyncio.ensure_future(self._start(opening, work, concurrency))
        self._starting.add(task)

        def started(task: asyncio.Task[Subscription]) -> None:
            self._starting.discard(task)
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                self._started.setdefault(handler, []).append(task.result())
            else:
                self._refused.append(error)
                log.error("handler.ended", "a handler gets no messages: {error}", error=error)

        task.add_done_callback(started)

    async def _start(
        self, opening: Awaitable[Subscription], work: Callable[..., Any], concurrency: int
    ) -> Subscription:
        subscription = await opening
        subscription.start_consuming(work, concurrency=concurrency)
        return subscription

    async def ready(self) -> None:
        """Waits until all that were added get messages; raises what one was refused for."""
        if self._starting:
            await asyncio.wait(self._starting)
        if self._refused:
            raise self._refused.pop(0)

    async def settle(self, wait_s: float) -> None:
        """None is being opened any more when this returns: those that need longer are given up."""
        if self._starting:
            _, late = await asyncio.wait(self._starting, timeout=wait_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def remove(self, handler: Callable[..., Any], timeout: float | None) -> None:
        await asyncio.gather(*self._starting, return_exceptions=True)
        for subscription in self._started.pop(handler, []):
            await subscription.stop_consuming(timeout)
            await subscription.close()

    def all(self) -> list[Callable[..., Any]]:
        return list(self._started)
