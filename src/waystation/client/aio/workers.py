"""Tasks that call a handler for message after message, and live through its failures."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from waystation.client.aio.message import Message
from waystation.errors import WaystationError

log = logging.getLogger("waystation.client")

Next = Callable[[], Awaitable[Message | None]]


class Workers:
    """Each takes a message when it is done with the one before. `next_message` gives None at the end."""

    def __init__(self, next_message: Next, handler: Callable[[Message], Any], concurrency: int) -> None:
        self._next = next_message
        self._handler = handler
        self._busy: set[asyncio.Task[None]] = set()
        self._tasks = {asyncio.create_task(self._work()) for _ in range(max(1, concurrency))}

    async def stop(self) -> None:
        """Those that wait for a message end at once, those that work on one when it is done."""
        for task in self._tasks - self._busy:
            task.cancel()
        self._stopping = True
        await asyncio.gather(*self._tasks, return_exceptions=True)

    _stopping = False

    async def _work(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a worker needs a task")
        while not self._stopping:
            try:
                message = await self._next()
            except WaystationError as error:
                log.error("a consumer has ended: %s", error)
                return
            if message is None:
                return
            self._busy.add(task)
            try:
                await handle(self._handler, message)
            finally:
                self._busy.discard(task)


async def handle(handler: Callable[[Message], Any], message: Message) -> None:
    """Acks if the handler returns, rejects if it raises or returns False; does nothing about a verdict that it gave."""
    try:
        result = handler(message)
        if inspect.isawaitable(result):
            result = await result
    except Exception as error:
        log.exception("a handler failed: message=%s deliveries=%d", message.id, message.deliveries)
        await finish(message, error)
    except BaseException:
        if message.settled is None and message._holder.settles:
            await message.release(wait=False)
        raise
    else:
        await finish(message, "the handler returned False" if result is False else None)


async def finish(message: Message, error: BaseException | str | None) -> None:
    if message.settled is not None or not message._holder.settles:
        return
    if error is None:
        await message.ack(wait=False)
    else:
        await message.reject(error, wait=False)
