"""Exchanges and queues as AMQP clients declare, bind, empty and delete them.

The door's part is the words: which of RabbitMQ's refusals a situation is, and what a client's flags and arguments ask
for. What is there and what becomes of it, the heart knows, by full names; clients read and write the names of their
virtual host. Queues that are none (streams, queues on topics) are passed on to `Sources`.

One per connection, whose name is the owner of its exclusive queues. Each method of the protocol is one coroutine that
returns the answer or raises an AmqpError; whether the answer is sent is the caller's affair. On the loop's thread only.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pamqp import commands

from waystation.errors import Conflict, Full, NotFound, WaystationError
from waystation.protocol import QueueInfo
from waystation.protocols.amqp.declaring_exchanges import ExchangeDeclaring
from waystation.queues.settings import QueueSettings, declared
from waystation.routing.binding import QUEUE, TOPIC
from waystation.vhosts.arguments import (
    CLASSIC,
    DEAD_LETTER_EXCHANGE,
    QUEUE_TYPE,
    QUORUM,
    check_same,
    settings_of,
)
from waystation.vhosts.sources import X_TOPIC
from waystation.vhosts.vhost import RESERVED_PREFIX, Channel, plain, table
from waystation.wire.amqp.errors import NOT_FOUND, PRECONDITION_FAILED, AmqpError

if TYPE_CHECKING:
    from waystation.vhosts.sources import Source

GENERATED_PREFIX = "amq.gen-"
_GENERATED_BYTES = 16


class DeclareOk(commands.Queue.DeclareOk):
    """pamqp takes names of 127 plain characters at most; RabbitMQ's clients use others too."""

    def validate(self) -> None: ...


class Declaring(ExchangeDeclaring):
    """One connection's."""

    async def queue_declare(self, channel: Channel, method: commands.Queue.Declare) -> commands.Queue.DeclareOk:
        name = plain(method.queue)
        self._full(name)
        if method.passive:
            answer = self._look_at(name)
        else:
            if name.startswith(RESERVED_PREFIX):
                raise self._reserved("queue", name)
            answer = await self._declare(name, method)
        channel.last_queue = answer.queue or ""
        return answer

    def _look_at(self, name: str) -> DeclareOk:
        source = self._sources.find(name) if name else None
        if source is not None:
            return _of_source(source)
        queue = self._queue(name)
        self._broker.queues.get(queue.name)[0].touch(queue)
        info = self._broker.queues.describe(queue.name)
        return DeclareOk(name, info.ready, info.consumers)

    async def _declare(self, name: str, method: commands.Queue.Declare) -> DeclareOk:
        arguments = table(method.arguments)
        flags = {
            "durable": bool(method.durable),
            "exclusive": bool(method.exclusive),
            "auto_delete": bool(method.auto_delete),
        }
        self._fill_in_type(name, arguments, **flags)
        if not name and arguments.get(QUEUE_TYPE) == QUORUM:
            raise AmqpError(PRECONDITION_FAILED, f"Cannot declare a server-named queue for type rabbit_{QUORUM}_queue")
        try:
            if self._sources.wants(arguments):
                if X_TOPIC in arguments:
                    name = name or self._generated()
                return _of_source(await self._sources.declare(name, arguments, **flags))
            name = name or self._generated()
            self._sources.check_ordinary(name, arguments)
            settings = settings_of(arguments, self._names, self._where(name), **flags)
            self._full(arguments.get(DEAD_LETTER_EXCHANGE, ""))
            info = await self._declare_queue(name, settings, arguments)
        except Full as error:
            raise AmqpError(PRECONDITION_FAILED, f"cannot declare {self._where(name)}: {error}") from error
        except WaystationError as error:
            raise self._refused(error) from error
        return DeclareOk(name, info.ready, info.consumers)

    def _fill_in_type(
        self, name: str, arguments: dict[str, Any], *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> None:
        """The namespace's usual type of queue, where the declaration says none and could be one of that type."""
        if QUEUE_TYPE in arguments or X_TOPIC in arguments or self._names.vhost not in self._broker.namespaces:
            return
        usual = self._broker.namespaces.get(self._names.vhost).default_queue_type
        if usual is not None and (usual == CLASSIC or (name and durable and not exclusive and not auto_delete)):
            arguments[QUEUE_TYPE] = usual

    async def _declare_queue(self, name: str, settings: QueueSettings, arguments: Mapping[str, Any]) -> QueueInfo:
        full = self._full(name)
        queues = self._broker.queues
        if full not in queues:
            return await queues.declare(full, settings, owner=self._owner)
        _, present = queues.of_users(full)
        there = declared(present.settings)
        if self._is_anothers(present) or there.exclusive != settings.exclusive:
            raise self._locked(name)
        check_same(there, settings, arguments, self._names, self._where(name))
        return await queues.declare(full, owner=self._owner)

    async def queue_bind(self, channel: Channel, method: commands.Queue.Bind) -> commands.Queue.BindOk:
        target, exchange, key = self._ends(channel, method)
        self._exchange(exchange)
        full = self._bindable(target)
        await self._bind(exchange, full, key, method.arguments)
        return commands.Queue.BindOk()

    async def queue_unbind(self, channel: Channel, method: commands.Queue.Unbind) -> commands.Queue.UnbindOk:
        target, exchange, key = self._ends(channel, method)
        try:
            self._exchange(exchange)
            full = self._bindable(target)
        except AmqpError as error:
            if error.code == NOT_FOUND:
                return commands.Queue.UnbindOk()
            raise
        await self._unbind(exchange, full, key, method.arguments)
        return commands.Queue.UnbindOk()

    async def queue_purge(self, channel: Channel, method: commands.Queue.Purge) -> commands.Queue.PurgeOk:
        name = self._name_of(channel, method.queue)
        source = self._sources.find(name)
        if source is not None:
            return commands.Queue.PurgeOk(await source.purge())
        queue = self._queue(name)
        try:
            return commands.Queue.PurgeOk(await self._broker.queues.purge(queue.name))
        except WaystationError as error:
            raise self._refused(error) from error

    async def queue_delete(self, channel: Channel, method: commands.Queue.Delete) -> commands.Queue.DeleteOk:
        name = self._name_of(channel, method.queue)
        if_unused, if_empty = bool(method.if_unused), bool(method.if_empty)
        source = self._sources.find(name)
        if source is not None:
            return commands.Queue.DeleteOk(await source.delete(if_unused=if_unused, if_empty=if_empty))
        if self._full(name) not in self._broker.queues:
            return commands.Queue.DeleteOk(0)
        full = self._queue(name).name
        info = self._broker.queues.describe(full)
        if if_unused and info.consumers:
            raise AmqpError(PRECONDITION_FAILED, f"{self._where(name)} in use")
        try:
            await self._broker.queues.delete(full, if_empty=if_empty)
        except NotFound:
            return commands.Queue.DeleteOk(0)
        except Conflict as error:
            raise AmqpError(PRECONDITION_FAILED, f"{self._where(name)} not empty") from error
        except WaystationError as error:
            raise self._refused(error) from error
        return commands.Queue.DeleteOk(info.ready + info.parked)

    def _ends(self, channel: Channel, method: commands.Queue.Bind | commands.Queue.Unbind) -> tuple[str, str, str]:
        """(queue, exchange, key), with what the client leaves to us filled in."""
        queue, key = plain(method.queue), method.routing_key
        name = self._name_of(channel, queue)
        if not queue and not key:
            key = name
        return name, self._not_default(method.exchange), key

    def _bindable(self, name: str) -> str:
        """The target of a binding to a queue of this name, or to the topic behind it."""
        source = self._sources.find(name)
        return f"{QUEUE}:{self._queue(name).name}" if source is None else f"{TOPIC}:{source.topic}"

    def _generated(self) -> str:
        token = self._broker.world.random.token(_GENERATED_BYTES)
        return GENERATED_PREFIX + urlsafe_b64encode(token).rstrip(b"=").decode()


def _of_source(source: Source) -> DeclareOk:
    return DeclareOk(source.name, *source.counts())
