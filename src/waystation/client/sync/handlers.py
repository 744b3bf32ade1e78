"""Functions that are called for messages, for threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waystation.client.sync.subscription import Subscription


class Handlers:
    """Of one client: its functions, each with its subscriptions."""

    def __init__(self) -> None:
        self._started: dict[Callable[..., Any], list[Subscription]] = {}

    def add(
        self,
        handler: Callable[..., Any],
        subscription: Subscription,
        work: Callable[..., Any],
        concurrency: int,
    ) -> None:
        """Has `work`, which is what became of `handler`, called for the messages of a subscription."""
        subscription.start_consuming(work, concurrency=concurrency)
        self._started.setdefault(handler, []).append(subscription)

    def remove(self, handler: Callable[..., Any], timeout: float | None) -> None:
        for subscription in self._started.pop(handler, []):
            subscription.stop_consuming(timeout)
            subscription.close()

    def all(self) -> list[Callable[..., Any]]:
        return list(self._started)
