"""Answering requests: what a function returns, or that it failed, goes back to the one who asked."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from waystation.client.aio.message import Message
from waystation.client.core import FAILED_HEADER
from waystation.client.received import error_text

log = logging.getLogger("waystation.client")


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
            log.exception("a request failed: message=%s", message.id)
            await message.reply(b"", headers={FAILED_HEADER: error_text(error)})
            return
        if message.reply_to is not None:
            await message.reply(result)

    return respond
