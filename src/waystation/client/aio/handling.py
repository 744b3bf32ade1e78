"""One message in the hands of a handler, and what becomes of it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from waystation.client.aio.message import Message
from waystation.errors import WaystationError

log = logging.getLogger("waystation.client")


async def handle(handler: Callable[[Message], Any], message: Message) -> None:
    """Acks if the handler returns, rejects if it raises or returns False; does nothing about a verdict that it gave."""
    failed: BaseException | str | None = None
    try:
        result = handler(message)
        if inspect.isawaitable(result):  # asyncio only
            result = await result
        if result is False:
            failed = "the handler returned False"
    except Exception as error:
        log.exception("a handler failed: message=%s deliveries=%d", message.id, message.deliveries)
        failed = error
    except BaseException:
        if message.settled is None and message._holder.settles:
            await message.release(wait=False)  # the worker was stopped: no fault of the message
        raise
    if message.settled is not None or not message._holder.settles:
        return
    try:
        if failed is None:
            await message.ack(wait=False)
        else:
            await message.reject(failed, wait=False)
    except WaystationError as error:
        log.warning("message %s could not be settled: %s", message.id, error)
