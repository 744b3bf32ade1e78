"""A fanout exchange: to all its bindings, whatever the key."""

from __future__ import annotations

from collections.abc import Iterable

from waystation.routing.exchanges.binding import Binding
from waystation.routing.exchanges.exchange import Exchange
from waystation.routing.filtering.subject import Subject


class FanoutExchange(Exchange):
    def _admit(self, binding: Binding) -> None: ...

    def _dismiss(self, binding: Binding) -> None: ...

    def match(self, subject: Subject) -> Iterable[Binding]:
        return self.bindings.values()
