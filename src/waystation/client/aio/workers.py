"""Tasks that call a handler for message after message, and live through its failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from waystation.client.aio.deliveries import Deliveries
from waystation.client.aio.handling import handle
from waystation.client.aio.message import Message
from waystation.errors import WaystationError
from waystation.observe.events import event_logger

log = event_logger("waystation.client")


class Workers:
    """Each takes a message when it is done with the one before."""

    def __init__(self, deliveries: Deliveries, handler: Callable[[Message], Any], concurrency: int) -> None:
        self._deliveries = deliveries
        self._handler = handler
        self._stopping = False
        self._busy: set[asyncio.Task[None]] = set()
        self._tasks = {asyncio.create_task(self._work()) for _ in range(max(1, concurrency))}

    async def stop(self, timeout: float | None) -> None:
        """Those that wait for a message end at once, those that work on one when it is done, if that is in time."""
        self._stopping = True
        for task in self._tasks - self._busy:
            task.cancel()
        others = self._tasks - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=timeout)

    async def _work(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a worker needs a task")
        while not self._stopping:
            try:
                taken = await self._deliveries.next(1, None)
                self._busy.add(task)  # from here on it is not cancelled: what is acked is handled
                given = await self._deliveries.confirmed(taken)
                if not (taken or given):
                    return
                for unsettled in given:
                    await handle(self._handler, Message(unsettled))
            except WaystationError as error:
                log.error("consumer.ended", "a consumer has ended: {error}", error=error)
                return
            finally:
                self._busy.discard(task)
