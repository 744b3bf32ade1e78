"""RabbitMQ's management API as a whole: its routes, and what its calls remember from one to the next.

The routes are not in the OpenAPI document: RabbitMQ's own describes them. The HTTP listener constructs it for the first
request to it, and is told of it where the listener itself is constructed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

from waystation.broker.access.types import ANONYMOUS, DEFAULT, Principal
from waystation.errors import NotFound, WaystationError
from waystation.protocols.http.router import Router
from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.management import (
    bindings,
    connections,
    definitions,
    exchanges,
    health,
    overview,
    policies,
    queues,
    users,
    vhosts,
)
from waystation.protocols.management.calls import Refused, error_reply, parts_of
from waystation.protocols.management.rates import MessageRates
from waystation.protocols.management.totals import Totals

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.node import Node

ROUTES: tuple[AnyRoute, ...] = (
    *overview.ROUTES,
    *health.ROUTES,
    *users.ROUTES,
    *vhosts.ROUTES,
    *connections.ROUTES,
    *queues.ROUTES,
    *exchanges.ROUTES,
    *bindings.ROUTES,
    *policies.ROUTES,
    *definitions.ROUTES,
)


MOST_PRINCIPALS = 1_000
"""Whose access is remembered from one request to the next."""


class Management:
    """One per HTTP listener, mounted at `/api/`. Handlers are given it."""

    def __init__(self, node: Node, listening: Callable[[], list[tuple[str, int]]]) -> None:
        """`listening`: the node's open listeners by protocol and port, as `amqp` and 5672, or `amqp/ssl` and 5671."""
        self.node = node
        self.listening = listening
        self.meter = node.meters.http
        self.principal = ANONYMOUS
        self.access = self.within(DEFAULT)
        self._others: OrderedDict[Principal, Management] = OrderedDict()
        self.rates = MessageRates(node.world.clock.monotonic)
        self.totals = Totals(self.access, node.world.clock)
        self._router = Router(ROUTES)

    def within(self, vhost: str) -> Access:
        """For a call that is about this virtual host."""
        return self.node.access(self.principal, vhost, self.meter)

    def of(self, principal: Principal) -> Management:
        """The same for requests of this principal."""
        if principal == self.principal:
            return self
        found = self._others.get(principal)
        if found is None:
            found = self._others[principal] = copy(self)
            found.principal = principal
            found.access = found.within(DEFAULT)
            found.totals = Totals(found.access, self.node.world.clock)
            if len(self._others) > MOST_PRINCIPALS:
                self._others.popitem(last=False)
        return found

    def find(self, method: str, parts: list[str]) -> tuple[AnyRoute, dict[str, str]]:
        """The route and the names in its path; raises Refused or MethodNotAllowed."""
        try:
            return self._router.find(method, parts_of(parts))
        except NotFound:
            reason = "Not Found: this part of RabbitMQ's API is not offered, see docs/reference/management-api.md"
            raise Refused(404, "Object Not Found", reason) from None

    @staticmethod
    def error_reply(error: WaystationError) -> Reply:
        return error_reply(error)
