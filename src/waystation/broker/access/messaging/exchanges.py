"""`ExchangeAccess`: exchanges and their bindings, to be looked at. What changes them is `Access`'s own.

A family of `Access`; on the loop's thread only.
"""

from __future__ import annotations

from waystation.broker.access.messaging.family import Family
from waystation.routing.exchanges.binding import Binding
from waystation.routing.exchanges.exchange import Exchange
from waystation.security.whereabouts import target_of


class ExchangeAccess(Family):
    """One principal's."""

    __slots__ = ()

    def names(self) -> list[str]:
        """Of all namespaces, with the default exchange, in no order: those that the principal may see."""
        return [name for name in self._broker.routing.exchange_names() if self._sees("exchange", name)]

    def find(self, exchange: str) -> Exchange | None:
        """To be looked at, not changed. The default exchange is everywhere, so nobody is asked about it."""
        if exchange:
            self._ask("describe", "exchange", exchange)
        return self._broker.routing.find(exchange)

    def bindings_of(self, exchange: str) -> list[Binding]:
        """None, if there is no such exchange (any more); those whose target the principal may see, too."""
        found = self.find(exchange)
        return [] if found is None else [one for one in found.bindings.values() if self._sees(*target_of(one.target))]

    def bindings_to(self, target: str) -> list[Binding]:
        """`queue:NAME`, `topic:NAME` or `exchange:NAME`; of all exchanges that the principal may see."""
        self._ask("describe", *target_of(target))
        return [one for one in self._broker.routing.bindings_to(target) if self._sees("exchange", one.exchange)]
