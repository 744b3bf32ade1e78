"""A message in the hands of a function: a handler, after which it is settled, or a responder, which answers it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from waystation.client.aio.bridge import ends_worker
from waystation.client.aio.message import Message
from waystation.client.consuming.received import error_text
from waystation.client.core import FAILED_HEADER
from waystation.errors import Invalid, TooLarge, WaystationError
from waystation.observe.events import event_logger

log = event_logger("waystation.client")


async def handle(handler: Callable[[Message], Any], message: Message) -> None:
    """Acks if the handler returns, rejects if it raises or returns False; does nothing about a verdict that it gave."""
    failed: BaseException | str | None = None
    try:
        result = handler(message)
        if inspect.isawaitable(result):  # asyncio only
            result = await result
        if result is False:
            failed = "the handler returned False"
    except BaseException as error:
        if ends_worker(error):
            if message.settled is None and message._settler.settles:
                await message.release(wait=False)  # no fault of the message
            raise
        log.exception("handler.failed", "a handler failed", message=message.id, deliveries=message.deliveries)
        failed = error
    if message.settled is not None or not message._settler.settles:
        return
    try:
        if failed is None:
            await message.ack(wait=False)
        else:
            await message.reject(failed, wait=False)
    except WaystationError as error:
        log.warning(
            "message.not_settled", "message {message} could not be settled: {error}", message=message.id, error=error
        )


def responder(handler: Callable[[Message], Any]) -> Callable[[Message], Awaitable[None]]:
    """A handler of requests made of a function. A request that failed was answered, so it is not tried again."""

    async def respond(message: Message) -> None:
        try:
            result = handler(message)
            if inspect.isawaitable(result):  # asyncio only
                result = await result
        except Exception as error:
            if message.reply_to is None:
                raise
            log.exception("request.failed", "a request failed", message=message.id)
            await message.reply(b"", headers={FAILED_HEADER: error_text(error)})
            return
        if message.reply_to is None:
            return
        try:
            await message.reply(result)
        except (Invalid, TooLarge) as error:
            log.error("request.failed", "a reply cannot be sent: {error}", message=message.id, error=error)
            await message.reply(b"", headers={FAILED_HEADER: error_text(error)})

    return respond
