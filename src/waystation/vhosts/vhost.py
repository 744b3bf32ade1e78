"""The queues and exchanges of a virtual host as one connection finds and binds them, and RabbitMQ's words of refusal.

Clients use the names of their virtual host, the heart is asked by full names, and no text shows a full one. What is in
another virtual host is out of reach, however it is spelled. For the door's declaring alone; on the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from waystation.errors import NotFound, WaystationError
from waystation.queues.shard.queue import Queue
from waystation.routing.binding import EXCHANGE, QUEUE
from waystation.routing.exchange import ExchangeSettings
from waystation.wire.amqp.errors import ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, AmqpError, of_error

if TYPE_CHECKING:
    from waystation.routing.namespace_names import Names
    from waystation.vhosts.hosting import HostingBroker
    from waystation.vhosts.sources import Sources

RESERVED_PREFIX = "amq."
_LINE_ENDS = str.maketrans("", "", "\r\n")


class Channel(Protocol):
    """What declaring remembers of a channel."""

    last_queue: str
    """The queue that was declared last: what an empty name means from then on."""


class Things:
    """One connection's view."""

    def __init__(self, broker: HostingBroker, names: Names, owner: str, sources: Sources) -> None:
        self._broker = broker
        self._names = names
        self._owner = owner
        self._sources = sources

    # -- finding ------------------------------------------------------------------------------------------------------

    def _full(self, name: str) -> str:
        """Raises 403 for a name that is another virtual host's: `/` has no prefix that would keep it apart."""
        full = self._names.full(name)
        if "/" in name and self._broker.namespaces.of(full) != self._names.vhost:
            raise AmqpError(ACCESS_REFUSED, f"'{name}' is not in vhost '{self._names.vhost}'")
        return full

    def _name_of(self, channel: Channel, given: str) -> str:
        """A queue's name; an empty one is the queue's that the channel declared last."""
        name = plain(given) or channel.last_queue
        if not name:
            raise AmqpError(NOT_FOUND, "no previously declared queue")
        self._full(name)
        return name

    def _queue(self, name: str) -> Queue:
        """A queue that is there and that this connection may use."""
        full = self._full(name)
        if not name or full not in self._broker.queues:
            raise AmqpError(NOT_FOUND, f"no {self._where(name)}")
        try:
            _, queue = self._broker.queues.of_users(full)
        except WaystationError as error:
            raise self._refused(error) from error
        if self._is_anothers(queue):
            raise self._locked(name)
        return queue

    def _is_anothers(self, queue: Queue) -> bool:
        return queue.settings.exclusive and queue.owner is not None and queue.owner != self._owner

    def _not_default(self, given: str) -> str:
        name = plain(given)
        if not name:
            raise AmqpError(ACCESS_REFUSED, "operation not permitted on the default exchange")
        return name

    def _find_exchange(self, name: str) -> ExchangeSettings | None:
        try:
            return self._broker.routing.describe(self._full(name))
        except NotFound:
            return None

    def _exchange(self, name: str) -> ExchangeSettings:
        found = self._find_exchange(name)
        if found is None:
            raise AmqpError(NOT_FOUND, f"no {self._where(name, EXCHANGE)}")
        return found

    async def _bind(self, exchange: str, target: str, key: str, arguments: Mapping[str, Any] | None) -> None:
        try:
            await self._broker.routing.bind(self._full(exchange), target, key, table(arguments))
        except WaystationError as error:
            if isinstance(error, NotFound):
                self._exchange(exchange)  # it may have gone meanwhile
            raise self._refused(error) from error

    async def _unbind(self, exchange: str, target: str, key: str, arguments: Mapping[str, Any] | None) -> None:
        try:
            await self._broker.routing.unbind(self._full(exchange), target, key, table(arguments))
        except NotFound:
            pass  # as RabbitMQ: it is not bound now
        except WaystationError as error:
            raise self._refused(error) from error

    # -- words --------------------------------------------------------------------------------------------------------

    def _where(self, name: str, kind: str = QUEUE) -> str:
        return f"{kind} '{name}' in vhost '{self._names.vhost}'"

    def _locked(self, name: str) -> AmqpError:
        return AmqpError(
            RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked {self._where(name)}. It could be originally declared on another"
            " connection or the exclusive property value does not match that of the original declaration.",
        )

    @staticmethod
    def _reserved(kind: str, name: str) -> AmqpError:
        return AmqpError(ACCESS_REFUSED, f"{kind} name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'")

    def _refused(self, error: WaystationError) -> AmqpError:
        """The heart's refusal, in the names of the virtual host."""
        refusal = of_error(error)
        if self._names.prefix:
            refusal.text = refusal.text.replace(self._names.prefix, "")
        return refusal


def plain(name: str) -> str:
    """Without line ends, as RabbitMQ takes names."""
    return name.translate(_LINE_ENDS) if "\n" in name or "\r" in name else name


def table(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(arguments or {})
