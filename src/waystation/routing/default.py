"""The default exchange: without a name, always there, to the queue that is named by the routing key.

It behaves as if every queue were bound to it by its name, and has no binding of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from waystation.routing.binding import QUEUE, Binding
from waystation.routing.exchange import Exchange, ExchangeSettings
from waystation.routing.subject import Subject

NAME = ""


class DefaultExchange(Exchange):
    def __init__(self, is_queue: Callable[[str], bool]) -> None:
        super().__init__(NAME, ExchangeSettings())
        self._is_queue = is_queue

    def _admit(self, binding: Binding) -> None: ...

    def _dismiss(self, binding: Binding) -> None: ...

    def match(self, subject: Subject) -> Iterable[Binding]:
        key = subject.routing_key
        return (Binding(NAME, f"{QUEUE}:{key}", key),) if self._is_queue(key) else ()
