"""The queues and exchanges of a virtual host as one owner finds and binds them, and RabbitMQ's words of refusal.

Clients use the names of their virtual host, the broker is asked by full names, and no text shows a full one. What is in
another virtual host is out of reach, however it is spelled. For `VhostQueues` and `VhostExchanges`; on the loop's
thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from waystation.broker.access.types import EXCHANGE, QUEUE, ExchangeSettings
from waystation.errors import NotFound, WaystationError
from waystation.wire.amqp.errors import ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, AmqpError, of_error

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.types import KnownQueue, NamespaceNames
    from waystation.vhosts.sources import Sources
    from waystation.world import World

RESERVED_PREFIX = "amq."
_LINE_ENDS = str.maketrans("", "", "\r\n")


class Vhost:
    """One owner's view of it: a connection, whose name is the owner of its exclusive queues, or an API."""

    __slots__ = ("access", "owner", "sources", "world")

    def __init__(self, access: Access, world: World, owner: str, sources: Sources) -> None:
        self.access = access
        self.world = world
        self.sources = sources
        self.owner = owner

    @property
    def names(self) -> NamespaceNames:
        return self.access.names

    # -- finding ------------------------------------------------------------------------------------------------------

    def full(self, name: str) -> str:
        """Raises 403 for a name that is another virtual host's."""
        if not self.access.holds(name):
            raise AmqpError(ACCESS_REFUSED, f"'{name}' is not in vhost '{self.names.vhost}'")
        return self.names.full(name)

    def find_queue(self, name: str) -> KnownQueue | None:
        """An ordinary queue, whoever may use it; None: there is none."""
        full = self.full(name)
        if not name or not self.access.queue_exists(full):
            return None
        try:
            return self.access.look_up_queue(full, self.owner)
        except WaystationError as error:
            raise self.refused(error) from error

    def queue(self, name: str) -> str:
        """The full name of a queue that is there and that this owner may use."""
        found = self.find_queue(name)
        if found is None:
            raise AmqpError(NOT_FOUND, f"no {self.where(name)}")
        if found.locked:
            raise self.locked(name)
        return self.full(name)

    def find_exchange(self, name: str) -> ExchangeSettings | None:
        try:
            return self.access.describe_exchange(self.full(name))
        except NotFound:
            return None

    def exchange(self, name: str) -> ExchangeSettings:
        found = self.find_exchange(name)
        if found is None:
            raise AmqpError(NOT_FOUND, f"no {self.where(name, EXCHANGE)}")
        return found

    async def bind(self, exchange: str, target: str, key: str, arguments: Mapping[str, Any] | None) -> None:
        try:
            await self.access.bind(self.full(exchange), target, key, table(arguments))
        except WaystationError as error:
            if isinstance(error, NotFound):
                self.exchange(exchange)  # it may have been deleted meanwhile
            raise self.refused(error) from error

    async def unbind(self, exchange: str, target: str, key: str, arguments: Mapping[str, Any] | None) -> None:
        try:
            await self.access.unbind(self.full(exchange), target, key, table(arguments))
        except NotFound:
            pass  # as RabbitMQ: it is not bound now
        except WaystationError as error:
            raise self.refused(error) from error

    # -- words --------------------------------------------------------------------------------------------------------

    def where(self, name: str, kind: str = QUEUE) -> str:
        return f"{kind} '{name}' in vhost '{self.names.vhost}'"

    def locked(self, name: str) -> AmqpError:
        return AmqpError(
            RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked {self.where(name)}. It could be originally declared on another"
            " connection or the exclusive property value does not match that of the original declaration.",
        )

    @staticmethod
    def reserved(kind: str, name: str) -> AmqpError:
        return AmqpError(ACCESS_REFUSED, f"{kind} name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'")

    def refused(self, error: WaystationError) -> AmqpError:
        """The broker's refusal, in the names of the virtual host."""
        refusal = of_error(error, self.access.told(error))
        if self.names.prefix:
            refusal.text = refusal.text.replace(self.names.prefix, "")
        return refusal


def named_exchange(given: str) -> str:
    """An exchange's name as RabbitMQ takes it; 403 for the default exchange, which nobody declares or binds."""
    name = plain(given)
    if not name:
        raise AmqpError(ACCESS_REFUSED, "operation not permitted on the default exchange")
    return name


def plain(name: str) -> str:
    """Without line ends, as RabbitMQ takes names."""
    return name.translate(_LINE_ENDS) if "\n" in name or "\r" in name else name


def table(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(arguments or {})
