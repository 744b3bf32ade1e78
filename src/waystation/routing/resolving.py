"""Where a routing key leads, remembered: what is published again and again is not looked up again and again.

An answer is remembered until the exchanges or bindings change; the owner of the table says so by `forget`. Answers that
depend on the message, or on which queues and topics there are, are not remembered. Memory is bounded by what the
answers hold together (`MAX_REMEMBERED`): those that were not asked for since the last half of it filled up go first.
Pure; owned by routing/routing.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from waystation.errors import NotAllowed
from waystation.message import Message
from waystation.routing.exchanges.binding import check_key
from waystation.routing.filtering.subject import Subject
from waystation.routing.table import RoutingTable, Walk

MAX_REMEMBERED = 262_144
"""An answer counts `COST_OF_ONE`, and one for each queue and topic in it (eight bytes)."""
COST_OF_ONE = 32

_NOTHING = Message(b"")


class ResolvedRoute(msgspec.Struct, frozen=True, gc=False):
    """Where messages with a routing key go. If `reads_messages`, ask `route_all` with each message instead."""

    queues: tuple[str, ...]
    topics: tuple[str, ...]
    reads_messages: bool = False


_READS_MESSAGES = ResolvedRoute((), (), True)
_NOWHERE = ResolvedRoute((), ())

_Answers = dict[tuple[str, str], ResolvedRoute]


class Resolver:
    """One per table."""

    def __init__(self, table: RoutingTable) -> None:
        self._table = table
        self._young: _Answers = {}
        self._old: _Answers = {}
        self._young_cost = 0

    def resolve(self, exchange: str, routing_key: str) -> ResolvedRoute:
        """Raises NotFound for an exchange that there is not, NotAllowed for an internal one."""
        route = self._young.get((exchange, routing_key))
        return self._resolve(exchange, routing_key) if route is None else route

    def _resolve(self, exchange: str, routing_key: str) -> ResolvedRoute:
        if not exchange:
            return self._by_name(routing_key)
        route = self._old.pop((exchange, routing_key), None)
        if route is not None:
            self._remember(exchange, routing_key, route)
            return route
        walk = self._walk(exchange, (routing_key,), _NOTHING)
        if walk.reads_messages:
            route = _READS_MESSAGES
        else:
            route = ResolvedRoute(tuple(walk.queues), tuple(walk.topics))
        if not walk.reads_names:
            self._remember(exchange, routing_key, route)
        return route

    def _by_name(self, key: str) -> ResolvedRoute:
        """Through the default exchange: a look at the names is as fast as one at what is remembered."""
        queue, topic = self._table.default.find(key)
        if queue is not None:
            return ResolvedRoute((queue,), ())
        check_key(key)
        return _NOWHERE if topic is None else ResolvedRoute((), (topic,))

    def _remember(self, exchange: str, routing_key: str, route: ResolvedRoute) -> None:
        self._young[exchange, routing_key] = route
        self._young_cost += COST_OF_ONE + len(route.queues) + len(route.topics)
        if self._young_cost * 2 > MAX_REMEMBERED:
            self._old, self._young, self._young_cost = self._young, {}, 0

    def route_all(
        self, exchange: str, routing_keys: Sequence[str], message: Message
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(queues, topics) of one message with one or more routing keys, each once."""
        walk = self._walk(exchange, routing_keys, message)
        return tuple(walk.queues), tuple(walk.topics)

    def _walk(self, exchange: str, routing_keys: Sequence[str], message: Message) -> Walk:
        for key in routing_keys:
            check_key(key)
        if self._table.get(exchange).settings.internal:
            raise NotAllowed(f"exchange {exchange!r} is internal: it gets messages from other exchanges alone")
        return self._table.walk(exchange, [Subject(message, routing_key=key) for key in routing_keys])

    def forget(self) -> None:
        """Exchanges or bindings have changed."""
        if self._young or self._old:
            self._young, self._old, self._young_cost = {}, {}, 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
