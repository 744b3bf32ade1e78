"""The queues of a virtual host: declared, bound, emptied and deleted by RabbitMQ's rules.

This is the words: which of RabbitMQ's refusals a situation is, and what flags and arguments ask for. What is there and
what becomes of it, the broker's queues know, by full names. Queues that are none (streams, queues on topics) are passed
on to `Sources`. Each method returns when the change is durable, or raises an AmqpError.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from waystation.broker.access.types import QUEUE, TOPIC, QueueSettings, declared
from waystation.errors import Full, NotFound, WaystationError
from waystation.protocol import QueueInfo
from waystation.vhosts.arguments import (
    CLASSIC,
    DEAD_LETTER_EXCHANGE,
    QUEUE_TYPE,
    QUORUM,
    check_same,
    settings_of,
)
from waystation.vhosts.sources import X_TOPIC
from waystation.vhosts.vhost import RESERVED_PREFIX, Vhost, named_exchange, plain, table
from waystation.wire.amqp.errors import NOT_FOUND, PRECONDITION_FAILED, AmqpError

if TYPE_CHECKING:
    from waystation.vhosts.sources import Source

GENERATED_PREFIX = "amq.gen-"
_GENERATED_BYTES = 16


class QueueState(NamedTuple):
    """What a declaration is answered with."""

    name: str
    ready: int
    consumers: int


class VhostQueues:
    """One owner's."""

    __slots__ = ("_vhost",)

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost

    async def look(self, given: str) -> QueueState:
        """What is there; 404 if nothing is. A queue that expires when it is unused has been used by this."""
        name = plain(given)
        vhost = self._vhost
        vhost.full(name)
        source = vhost.sources.find(name) if name else None
        if source is not None:
            return _of_source(source)
        full = vhost.queue(name)
        try:
            info = await vhost.access.declare_queue(full, passive=True, owner=vhost.owner)
        except WaystationError as error:
            raise vhost.refused(error) from error
        return QueueState(name, info.ready, info.consumers)

    async def declare(
        self,
        given: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
    ) -> QueueState:
        """Made if it is not there, with a name of ours if it has none; 406 if there is another of that name."""
        name = plain(given)
        vhost = self._vhost
        vhost.full(name)
        if name.startswith(RESERVED_PREFIX):
            raise vhost.reserved("queue", name)
        said = table(arguments)
        flags = {"durable": durable, "exclusive": exclusive, "auto_delete": auto_delete}
        self._fill_in_type(name, said, **flags)
        if not name and said.get(QUEUE_TYPE) == QUORUM:
            raise AmqpError(PRECONDITION_FAILED, f"Cannot declare a server-named queue for type rabbit_{QUORUM}_queue")
        try:
            if vhost.sources.wants(said):
                if X_TOPIC in said:
                    name = name or self._generated()
                return _of_source(await vhost.sources.declare(name, said, **flags))
            name = name or self._generated()
            vhost.sources.check_ordinary(name, said)
            settings = settings_of(said, vhost.names, vhost.where(name), **flags)
            vhost.full(said.get(DEAD_LETTER_EXCHANGE, ""))
            info = await self._declare_queue(name, settings, said)
        except Full as error:
            raise AmqpError(PRECONDITION_FAILED, f"cannot declare {vhost.where(name)}: {error}") from error
        except WaystationError as error:
            raise vhost.refused(error) from error
        return QueueState(name, info.ready, info.consumers)

    def _fill_in_type(
        self, name: str, arguments: dict[str, Any], *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> None:
        """The namespace's usual type of queue, where the declaration says none and could be one of that type."""
        namespaces, vhost = self._vhost.access.namespaces, self._vhost.names.vhost
        if QUEUE_TYPE in arguments or X_TOPIC in arguments or not namespaces.exists(vhost):
            return
        usual = namespaces.describe(vhost).default_queue_type
        if usual is not None and (usual == CLASSIC or (name and durable and not exclusive and not auto_delete)):
            arguments[QUEUE_TYPE] = usual

    async def _declare_queue(self, name: str, settings: QueueSettings, arguments: Mapping[str, Any]) -> QueueInfo:
        vhost = self._vhost
        full = vhost.full(name)
        present = vhost.find_queue(name)
        if present is None:
            return await vhost.access.declare_queue(full, settings, owner=vhost.owner)
        there = declared(present.settings)
        if present.locked or there.exclusive != settings.exclusive:
            raise vhost.locked(name)
        check_same(there, settings, arguments, vhost.names, vhost.where(name))
        return await vhost.access.declare_queue(full, owner=vhost.owner)

    async def bind(self, given: str, exchange: str, key: str, arguments: Mapping[str, Any] | None = None) -> None:
        name, exchange = self._named(given), named_exchange(exchange)
        self._vhost.exchange(exchange)
        await self._vhost.bind(exchange, self._target(name), key, arguments)

    async def unbind(self, given: str, exchange: str, key: str, arguments: Mapping[str, Any] | None = None) -> None:
        name, exchange = self._named(given), named_exchange(exchange)
        try:
            self._vhost.exchange(exchange)
            target = self._target(name)
        except AmqpError as error:
            if error.code == NOT_FOUND:
                return  # as RabbitMQ: it is not bound now
            raise
        await self._vhost.unbind(exchange, target, key, arguments)

    async def purge(self, given: str) -> int:
        """Returns how many messages were deleted."""
        name = self._named(given)
        vhost = self._vhost
        source = vhost.sources.find(name)
        if source is not None:
            return await source.purge()
        full = vhost.queue(name)
        try:
            return await vhost.access.purge_queue(full)
        except WaystationError as error:
            raise vhost.refused(error) from error

    async def delete(self, given: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Returns how many messages it had; 0 if there is no such queue. As with RabbitMQ, what is in flight counts
        neither there nor for `if_empty`."""
        name = self._named(given)
        vhost = self._vhost
        source = vhost.sources.find(name)
        if source is not None:
            return await source.delete(if_unused=if_unused, if_empty=if_empty)
        if not vhost.access.queue_exists(vhost.full(name)):
            return 0
        full = vhost.queue(name)
        info = vhost.access.describe_queue(full)
        if if_unused and info.consumers:
            raise AmqpError(PRECONDITION_FAILED, f"{vhost.where(name)} in use")
        waiting = info.ready + info.parked  # delayed ones too: nobody has got them yet
        if if_empty and waiting:
            raise AmqpError(PRECONDITION_FAILED, f"{vhost.where(name)} not empty")
        try:
            await vhost.access.delete_queue(full)  # at once, in this turn: nothing comes between
        except NotFound:
            return 0
        except WaystationError as error:
            raise vhost.refused(error) from error
        return waiting

    def _named(self, given: str) -> str:
        name = plain(given)
        if not name:
            raise AmqpError(NOT_FOUND, "no previously declared queue")
        self._vhost.full(name)
        return name

    def _target(self, name: str) -> str:
        """Of a binding to a queue of this name, or to the topic behind it."""
        source = self._vhost.sources.find(name)
        return f"{QUEUE}:{self._vhost.queue(name)}" if source is None else f"{TOPIC}:{source.topic}"

    def _generated(self) -> str:
        token = self._vhost.world.random.token(_GENERATED_BYTES)
        return GENERATED_PREFIX + urlsafe_b64encode(token).rstrip(b"=").decode()


def _of_source(source: Source) -> QueueState:
    return QueueState(source.name, *source.counts())
