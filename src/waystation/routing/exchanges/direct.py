"""A direct exchange: to the bindings whose key is the routing key."""

from __future__ import annotations

from collections.abc import Iterable

from waystation.routing.exchanges.binding import Binding
from waystation.routing.exchanges.exchange import Exchange, ExchangeSettings
from waystation.routing.filtering.subject import Subject


class DirectExchange(Exchange):
    def __init__(self, name: str, settings: ExchangeSettings) -> None:
        super().__init__(name, settings)
        self._by_key: dict[str, dict[Binding, None]] = {}

    def _admit(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.key, {})[binding] = None

    def _dismiss(self, binding: Binding) -> None:
        same_key = self._by_key[binding.key]
        del same_key[binding]
        if not same_key:
            del self._by_key[binding.key]

    def match(self, subject: Subject) -> Iterable[Binding]:
        return self._by_key.get(subject.routing_key, ())
