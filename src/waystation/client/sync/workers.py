"""Threads that call a handler for message after message, and live through its failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from waystation.client.sync.deliveries import Deliveries
from waystation.client.sync.handling import handle
from waystation.client.sync.message import Message
from waystation.errors import WaystationError
from waystation.observe.events import event_logger

log = event_logger("waystation.client")


class Workers:
    """Each takes a message when it is done with the one before."""

    def __init__(self, deliveries: Deliveries, handler: Callable[[Message], Any], concurrency: int) -> None:
        self._deliveries = deliveries
        self._handler = handler
        self._stopping = False
        name = f"waystation-{getattr(handler, '__name__', 'handler')}"
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(max(1, concurrency))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float | None) -> None:
        """Those that wait for a message end at once, those that work on one when it is done, if that is in time."""
        self._stopping = True
        self._deliveries.pause(True)
        until = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(None if until is None else max(0.0, until - time.monotonic()))
        self._deliveries.pause(False)

    def _work(self) -> None:
        while not self._stopping:
            try:
                taken = self._deliveries.take(1, None)
            except WaystationError as error:
                log.error("consumer.ended", "a consumer has ended: {error}", error=error)
                return
            if not taken:
                return
            handle(self._handler, Message(taken[0]))
