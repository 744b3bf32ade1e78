"""A filter exchange: to the bindings whose filter expression the message matches, whatever the key.

The expression is the binding's argument `filter`, or its key where there is no such argument. Bindings with the same
expression share one filter, and all filters share one reading of the payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from waystation.routing.exchanges.binding import Binding
from waystation.routing.exchanges.exchange import Exchange, ExchangeSettings
from waystation.routing.filtering.filters import Filter, compile_filter
from waystation.routing.filtering.subject import Subject

ARGUMENT = "filter"


class FilterExchange(Exchange):
    reads_messages = True
    reads_conditions = (ARGUMENT,)

    def __init__(self, name: str, settings: ExchangeSettings) -> None:
        super().__init__(name, settings)
        self._filters: dict[str, tuple[Filter, dict[Binding, None]]] = {}

    def check(self, key: str, arguments: dict[str, Any]) -> None:
        super().check(key, arguments)
        compile_filter(_expression(key, arguments))

    def _admit(self, binding: Binding) -> None:
        text = _expression(binding.key, binding.arguments)
        if text not in self._filters:
            self._filters[text] = (compile_filter(text), {})
        self._filters[text][1][binding] = None

    def _dismiss(self, binding: Binding) -> None:
        text = _expression(binding.key, binding.arguments)
        _, bindings = self._filters[text]
        del bindings[binding]
        if not bindings:
            del self._filters[text]

    def match(self, subject: Subject) -> Iterable[Binding]:
        return list(self._matching(subject))

    def _matching(self, subject: Subject) -> Iterator[Binding]:
        for expression, bindings in self._filters.values():
            if expression.accepts(subject):
                yield from bindings


def _expression(key: str, arguments: dict[str, Any]) -> str:
    expression: str = arguments.get(ARGUMENT, key)
    return expression
