"""`ExchangeAccess`: exchanges and their bindings, to be looked at. What changes them is `Access`'s own.

A family of `Access`; on the loop's thread only.
"""

from __future__ import annotations

from waystation.broker.access.family import Family
from waystation.routing.binding import Binding
from waystation.routing.exchange import Exchange


class ExchangeAccess(Family):
    """One principal's."""

    __slots__ = ()

    def names(self) -> list[str]:
        """Of all namespaces, with the default exchange, in no order."""
        self._ask("describe", "exchange", "*")
        return self._broker.routing.exchange_names()

    def find(self, exchange: str) -> Exchange | None:
        """To be looked at, not changed."""
        self._ask("describe", "exchange", exchange)
        return self._broker.routing.find(exchange)

    def bindings_of(self, exchange: str) -> list[Binding]:
        """None, if there is no such exchange (any more)."""
        found = self.find(exchange)
        return [] if found is None else list(found.bindings.values())

    def bindings_to(self, target: str) -> list[Binding]:
        """`queue:NAME`, `topic:NAME` or `exchange:NAME`; of all exchanges."""
        self._ask("describe", "exchange", "*")
        return self._broker.routing.bindings_to(target)
