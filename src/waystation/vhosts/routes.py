"""Where a publish goes, as one virtual host sees it: by the routing table, and by names of queues and topics.

A virtual host reaches what is in it and nothing else; the routing table's own default exchange is that of `/`. AMQP has
one per connection, made when it has said which virtual host it wants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from waystation.errors import NotFound

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.message import Message
    from waystation.vhosts.sources import Sources


class Addressed(Protocol):
    """What a publish says of where it goes."""

    @property
    def exchange(self) -> str: ...

    @property
    def key(self) -> str: ...


class Routes:
    """One virtual host's."""

    __slots__ = ("_access", "_sources", "_table")

    def __init__(self, access: Access, sources: Sources) -> None:
        self._access = access
        self._sources = sources
        self._table = access.route_table

    def holds(self, name: str) -> bool:
        """Whether a queue or exchange of this name is in this virtual host, if there is one."""
        return self._access.holds(name)

    def resolve(self, exchange: str, key: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
        """Queues and topics that a publish goes to, and whether that depends on the message."""
        access, names = self._access, self._access.names
        if not self.holds(exchange):
            raise NotFound(f"exchange {exchange!r} is not in this virtual host")
        if not exchange and not self.holds(key):
            return (), (), False
        if not exchange and names.prefix:
            # The default exchange of a namespace reaches that namespace's queues alone.
            if access.admit_default(key):
                return (names.full(key),), (), False
            source = self._sources.find(key)
            return ((), (source.topic,), False) if source is not None else ((), (), False)
        route = access.resolve(names.full(exchange) if exchange else "", key)
        if not exchange and any(map(self._sources.hides, route.topics)):
            return (), (), False
        if not exchange and not route.queues:
            source = self._sources.find(key)
            if source is not None:
                return (), (source.topic,), False
        return route.queues, route.topics, route.reads_messages

    def route_all(
        self, target: Addressed, more: tuple[str, ...], message: Message
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Where one message goes: by what is in it, and by the other keys that it says."""
        queues: dict[str, None] = {}
        topics: dict[str, None] = {}
        if not target.exchange:
            for key in (target.key, *more):
                found = self.resolve("", key)
                queues.update(dict.fromkeys(found[0]))
                topics.update(dict.fromkeys(found[1]))
            return tuple(queues), tuple(topics)
        for key in more:
            self._access.check_key("write", self._access.names.full(target.exchange), key)
        routed = self._table.route_all(self._access.names.full(target.exchange), (target.key, *more), message)
        return tuple(routed[0]), tuple(routed[1])
