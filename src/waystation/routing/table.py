"""All exchanges and bindings of a broker, and the walk of a message through them.

Invariant: a binding is in its exchange and under its target, or in neither. A walk visits an exchange once, so bindings
between exchanges may form a circle and no message goes around in it. Pure; changed by routing/routing.py alone, which
also remembers the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from waystation.errors import Invalid, NotFound
from waystation.routing.exchanges.binding import EXCHANGE, QUEUE, TOPIC, Binding
from waystation.routing.exchanges.default import DefaultExchange
from waystation.routing.exchanges.delayed import ARGUMENT, DelayedExchange
from waystation.routing.exchanges.delayed import KIND as DELAYED
from waystation.routing.exchanges.direct import DirectExchange
from waystation.routing.exchanges.exchange import Exchange, ExchangeSettings
from waystation.routing.exchanges.fanout import FanoutExchange
from waystation.routing.exchanges.filter import FilterExchange
from waystation.routing.exchanges.hashing import KIND as CONSISTENT_HASH
from waystation.routing.exchanges.hashing import HashExchange
from waystation.routing.exchanges.headers import HeadersExchange
from waystation.routing.exchanges.topic import TopicExchange
from waystation.routing.filtering.subject import Subject

_PLAIN: dict[str, Callable[[str, ExchangeSettings], Exchange]] = {
    "direct": DirectExchange,
    "fanout": FanoutExchange,
    "topic": TopicExchange,
    "headers": HeadersExchange,
    "filter": FilterExchange,
    CONSISTENT_HASH: HashExchange,
}
KINDS = (*_PLAIN, DELAYED)

RESERVED_PREFIX = "amq."
PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}
"""There from the start and for good, as AMQP clients expect."""

MAX_NAME_BYTES = 255
_EXCHANGE_TARGET = f"{EXCHANGE}:"


class Walk(NamedTuple):
    """Where a message goes, each name once, and what that depends on besides the routing key."""

    queues: dict[str, None]
    topics: dict[str, None]
    reads_messages: bool
    """On the message."""
    reads_names: bool
    """On which queues and topics there are."""

    @property
    def targets(self) -> list[str]:
        """As bindings write them."""
        return [*(f"{QUEUE}:{name}" for name in self.queues), *(f"{TOPIC}:{name}" for name in self.topics)]


class Removal(msgspec.Struct, frozen=True):
    """What goes, and what has to go with it."""

    exchanges: list[Exchange]
    bindings: list[Binding]


def check_exchange_name(name: str) -> None:
    size = len(name.encode(errors="replace"))
    if not 0 < size <= MAX_NAME_BYTES or not name.isprintable():
        raise Invalid(f"exchange: a name has 1 to {MAX_NAME_BYTES} printable bytes, not {name[:60]!r}")


def make_exchange(name: str, settings: ExchangeSettings) -> Exchange:
    """Raises Invalid for a kind that there is not, and for arguments that the kind does not take."""
    if settings.kind == DELAYED:
        inner = settings.arguments.get(ARGUMENT)
        if not isinstance(inner, str) or inner not in _PLAIN:
            raise Invalid(f"arguments: {ARGUMENT} is one of {', '.join(_PLAIN)}, not {str(inner)[:60]!r}")
        return DelayedExchange(name, settings, _PLAIN[inner](name, settings))
    make = _PLAIN.get(settings.kind)
    if make is None:
        raise Invalid(f"kind: {settings.kind[:60]!r} is none; exchanges are {', '.join(KINDS)}")
    return make(name, settings)


class RoutingTable:
    """One per broker."""

    def __init__(self, is_queue: Callable[[str], bool], topic_of: Callable[[str], str | None]) -> None:
        self.default = DefaultExchange(is_queue, topic_of)
        self._exchanges: dict[str, Exchange] = {"": self.default}
        self._by_target: dict[str, dict[Binding, None]] = {}
        self._bindings = 0
        for name, kind in PREDECLARED.items():
            self.add_exchange(make_exchange(name, ExchangeSettings(kind)))

    # -- finding ----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Exchange:
        """Raises NotFound."""
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise NotFound(f"there is no exchange {name[:MAX_NAME_BYTES]!r}", "exchange", name)
        return exchange

    def find(self, name: str) -> Exchange | None:
        return self._exchanges.get(name)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(list(self._exchanges.values()))

    def __len__(self) -> int:
        return len(self._exchanges)

    @property
    def binding_count(self) -> int:
        return self._bindings

    def has_like(self, binding: Binding) -> bool:
        """Whether there is one that says the same."""
        exchange = self._exchanges.get(binding.exchange)
        return exchange is not None and binding.identity in exchange.bindings

    def bindings_to(self, target: str) -> list[Binding]:
        return list(self._by_target.get(target, ()))

    # -- the walk ---------------------------------------------------------------------------------------------------

    def walk(self, name: str, subjects: Sequence[Subject]) -> Walk:
        """Where a message goes that is published to this exchange, once for every routing key (`subjects` differ in
        nothing else). An alternate exchange has its turn if none of the keys matches."""
        queues: dict[str, None] = {}
        topics: dict[str, None] = {}
        reads_messages = reads_names = False
        todo = [self.get(name)]
        seen = {name}
        for exchange in todo:  # it grows while we go
            reads_messages = reads_messages or exchange.reads_messages
            reads_names = reads_names or exchange.reads_names
            onward: list[str] = []
            matched = False
            for subject in subjects[:1] if exchange.reads_one_key else subjects:
                for binding in exchange.match(subject):
                    matched = True
                    kind = binding.kind
                    if kind == QUEUE:
                        queues[binding.name] = None
                    elif kind == TOPIC:
                        topics[binding.name] = None
                    else:
                        onward.append(binding.name)
            if not matched and (alternate := exchange.alternate) is not None:
                onward.append(alternate)
            for other in onward:
                following = self._exchanges.get(other)
                if following is not None and other not in seen:
                    seen.add(other)
                    todo.append(following)
        return Walk(queues, topics, reads_messages, reads_names)

    # -- changes ----------------------------------------------------------------------------------------------------

    def add_exchange(self, exchange: Exchange) -> None:
        self._exchanges[exchange.name] = exchange

    def add_binding(self, binding: Binding) -> None:
        self._exchanges[binding.exchange].add(binding)
        self._by_target.setdefault(binding.target, {})[binding] = None
        self._bindings += 1

    def remove_binding(self, binding: Binding) -> None:
        """Nothing if it is not there."""
        exchange = self._exchanges.get(binding.exchange)
        if exchange is None or exchange.bindings.get(binding.identity) is not binding:
            return
        exchange.remove(binding)
        self._bindings -= 1
        same_target = self._by_target[binding.target]
        del same_target[binding]
        if not same_target:
            del self._by_target[binding.target]

    def plan(self, exchanges: Iterable[Exchange], bindings: Iterable[Binding]) -> Removal:
        """What removing these takes with it: the bindings from and to an exchange that goes, and the auto-delete
        exchanges whose last binding goes."""
        going: dict[Exchange, None] = dict.fromkeys(exchanges)
        removed: dict[Binding, None] = dict.fromkeys(bindings)
        left: dict[str, int] = {}
        for exchange in going:
            removed.update(self._around(exchange))
        todo = list(removed)
        for binding in todo:  # it grows while we go
            source = self._exchanges.get(binding.exchange)
            if source is None:
                continue
            left[source.name] = left.get(source.name, len(source.bindings)) - 1
            if source.settings.auto_delete and not left[source.name] and source not in going:
                going[source] = None
                todo += [other for other in self._around(source) if other not in removed]
                removed.update(self._around(source))
        return Removal(list(going), list(removed))

    def plan_departed(self, departed: Iterable[Binding]) -> Removal:
        """What goes with bindings that have left the table already: exchanges that they were the last of."""
        bindings = list(departed)
        sources = {binding.exchange: self._exchanges.get(binding.exchange) for binding in bindings}
        idle = [
            each for each in sources.values() if each is not None and each.settings.auto_delete and not each.bindings
        ]
        removal = self.plan(idle, [])
        return Removal(removal.exchanges, bindings + removal.bindings)

    def _around(self, exchange: Exchange) -> dict[Binding, None]:
        """From it and to it."""
        return {
            **dict.fromkeys(exchange.bindings.values()),
            **self._by_target.get(_EXCHANGE_TARGET + exchange.name, {}),
        }

    def apply(self, removal: Removal) -> None:
        """Nothing of it that is deleted already, or was replaced by another of the same name."""
        for binding in removal.bindings:
            self.remove_binding(binding)
        for exchange in removal.exchanges:
            if self._exchanges.get(exchange.name) is exchange:
                del self._exchanges[exchange.name]
