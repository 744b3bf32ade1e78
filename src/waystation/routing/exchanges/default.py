"""The default exchange: without a name, always there, to the queue that is named by the routing key, or else the topic.

It behaves as if every queue and every topic were bound to it by its name, and has no binding of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from waystation.routing.exchanges.binding import QUEUE, TOPIC, Binding
from waystation.routing.exchanges.exchange import Exchange, ExchangeSettings
from waystation.routing.filtering.subject import Subject

NAME = ""


class DefaultExchange(Exchange):
    reads_names = True

    def __init__(self, is_queue: Callable[[str], bool], topic_of: Callable[[str], str | None]) -> None:
        super().__init__(NAME, ExchangeSettings())
        self._is_queue = is_queue
        self._topic_of = topic_of

    def _admit(self, binding: Binding) -> None: ...

    def _dismiss(self, binding: Binding) -> None: ...

    def match(self, subject: Subject) -> Iterable[Binding]:
        key = subject.routing_key
        queue, topic = self.find(key)
        if queue is not None:
            return (Binding(NAME, f"{QUEUE}:{queue}", key),)
        return () if topic is None else (Binding(NAME, f"{TOPIC}:{topic}", key),)

    def find(self, key: str) -> tuple[str | None, str | None]:
        """The queue or else the topic that the key names."""
        if self._is_queue(key):
            return key, None
        return None, self._topic_of(key)
