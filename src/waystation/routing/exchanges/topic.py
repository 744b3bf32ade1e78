"""A topic exchange: to the bindings whose pattern (`*` one word, `#` any number) matches the routing key."""

from __future__ import annotations

from collections.abc import Iterable

from waystation.routing.exchanges.binding import Binding
from waystation.routing.exchanges.exchange import Exchange, ExchangeSettings
from waystation.routing.filtering.subject import Subject
from waystation.routing.matching.index import PatternIndex


class TopicExchange(Exchange):
    def __init__(self, name: str, settings: ExchangeSettings) -> None:
        super().__init__(name, settings)
        self._index: PatternIndex[Binding] = PatternIndex()

    def _admit(self, binding: Binding) -> None:
        self._index.add(binding.key, binding)

    def _dismiss(self, binding: Binding) -> None:
        self._index.remove(binding.key, binding)

    def match(self, subject: Subject) -> Iterable[Binding]:
        return self._index.lookup(subject.routing_key)
