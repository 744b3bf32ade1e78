"""Threads that call a handler for message after message, and live through its failures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from waystation.client.sync.message import Message
from waystation.errors import WaystationError

log = logging.getLogger("waystation.client")


class Workers:
    """Each takes a message when it is done with the one before. `next_message` gives None at the end."""

    def __init__(
        self, next_message: Callable[[], Message | None], handler: Callable[[Message], Any], concurrency: int
    ) -> None:
        self._next = next_message
        self._handler = handler
        name = f"waystation-{getattr(handler, '__name__', 'handler')}"
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(max(1, concurrency))
        ]
        for thread in self._threads:
            thread.start()

    def join(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(None if until is None else max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while True:
            try:
                message = self._next()
            except WaystationError as error:
                log.error("a consumer has ended: %s", error)
                return
            if message is None:
                return
            handle(self._handler, message)


def handle(handler: Callable[[Message], Any], message: Message) -> None:
    """Acks if the handler returns, rejects if it raises or returns False; does nothing about a verdict that it gave."""
    failed: BaseException | str | None = None
    try:
        if handler(message) is False:
            failed = "the handler returned False"
    except Exception as error:
        log.exception("a handler failed: message=%s deliveries=%d", message.id, message.deliveries)
        failed = error
    if message.settled is not None or not message._holder.settles:
        return
    try:
        if failed is None:
            message.ack(wait=False)
        else:
            message.reject(failed, wait=False)
    except WaystationError as error:
        log.warning("message %s could not be settled: %s", message.id, error)
