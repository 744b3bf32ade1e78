"""Messages that were handed out one by one and may still need a verdict: what `commit` goes through."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Generic, TypeVar

from waystation.client.consuming.received import Received

M = TypeVar("M", bound=Received)


class UnsettledMessages(Generic[M]):
    """Forgets those that have a verdict, now and then, so that it stays as small as what is in flight. For any
    thread."""

    def __init__(self, window: int) -> None:
        self._messages: list[M] = []
        self._lock = Lock()
        self._prune_at = self._most = max(1_000, 2 * window)

    def extend(self, messages: Iterable[M]) -> None:
        with self._lock:
            self._messages.extend(messages)
            if len(self._messages) >= self._prune_at:
                self._messages = [message for message in self._messages if message.settled is None]
                self._prune_at = 2 * len(self._messages) + self._most

    def unsettled(self) -> list[M]:
        """All without a verdict that are still in flight; they are forgotten here."""
        with self._lock:
            messages, self._messages = self._messages, []
        return [message for message in messages if message.settled is None and message._settler.alive]
