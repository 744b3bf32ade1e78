# Generated from src/waystation/client/aio/responder.py by `python -m tests.client.sync_client`; do not edit.
"""Answering requests: what a function returns, or that it failed, goes back to the one who asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from waystation.client.core import FAILED_HEADER
from waystation.client.received import error_text
from waystation.client.sync.message import Message

log = logging.getLogger("waystation.client")


def responder(handler: Callable[[Message], Any]) -> Callable[[Message], None]:
    """A handler of requests made of a function. A request that failed was answered, so it is not tried again."""

    def respond(message: Message) -> None:
        try:
            result = handler(message)
        except Exception as error:
            if message.reply_to is None:
                raise
            log.exception("a request failed: message=%s", message.id)
            message.reply(b"", headers={FAILED_HEADER: error_text(error)})
            return
        if message.reply_to is not None:
            message.reply(result)

    return respond
