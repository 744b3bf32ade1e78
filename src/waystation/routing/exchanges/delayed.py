"""A delayed-message exchange, as RabbitMQ's plugin has it: it routes like an exchange of the kind `x-delayed-type`.

A message is routed when it is published. Its delay travels with it, and whoever stores it keeps it until it is due; so
any exchange delays what asks for it, and this kind is here for those who declare it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from waystation.routing.exchanges.binding import Binding
from waystation.routing.exchanges.exchange import Exchange, ExchangeSettings
from waystation.routing.filtering.subject import Subject

KIND = "x-delayed-message"
ARGUMENT = "x-delayed-type"


class DelayedExchange(Exchange):
    reads_arguments = (ARGUMENT,)

    def __init__(self, name: str, settings: ExchangeSettings, inner: Exchange) -> None:
        super().__init__(name, settings)
        self._inner = inner
        self.reads_messages = inner.reads_messages
        self.reads_one_key = inner.reads_one_key

    def check(self, key: str, arguments: dict[str, Any]) -> None:
        self._inner.check(key, arguments)

    def _admit(self, binding: Binding) -> None:
        self._inner.add(binding)

    def _dismiss(self, binding: Binding) -> None:
        self._inner.remove(binding)

    def match(self, subject: Subject) -> Iterable[Binding]:
        return self._inner.match(subject)
