"""Methods of the classes `queue` and `exchange`, as calls of a virtual host.

The rules and the words of refusal are those of `vhosts`. What is AMQP's own is here: a channel remembers the queue that
it declared last, and an empty name means that one.

One per connection, whose name is the owner of its exclusive queues. Each method of the protocol is one coroutine that
returns the answer or raises an AmqpError; whether the answer is sent is the caller's affair. On the loop's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pamqp import commands

from waystation.vhosts.exchanges import VhostExchanges
from waystation.vhosts.queues import VhostQueues
from waystation.vhosts.vhost import Vhost, plain

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.vhosts.sources import Sources
    from waystation.world import World


class Channel(Protocol):
    """What declaring remembers of a channel."""

    last_queue: str
    """The queue that was declared last: what an empty name means from then on."""


class DeclareOk(commands.Queue.DeclareOk):
    """pamqp takes names of 127 plain characters at most; RabbitMQ's clients use others too."""

    def validate(self) -> None: ...


class Declaring:
    """One connection's."""

    __slots__ = ("_vhost",)

    def __init__(self, access: Access, world: World, owner: str, sources: Sources) -> None:
        self._vhost = Vhost(access, world, owner, sources)

    @property
    def _queues(self) -> VhostQueues:
        """Made for each method: a connection that declares nothing more does not have it in memory."""
        return VhostQueues(self._vhost)

    @property
    def _exchanges(self) -> VhostExchanges:
        return VhostExchanges(self._vhost)

    async def queue_declare(self, channel: Channel, method: commands.Queue.Declare) -> DeclareOk:
        if method.passive:
            state = await self._queues.look(method.queue)
        else:
            state = await self._queues.declare(
                method.queue,
                method.arguments,
                durable=bool(method.durable),
                exclusive=bool(method.exclusive),
                auto_delete=bool(method.auto_delete),
            )
        channel.last_queue = state.name
        return DeclareOk(*state)

    async def queue_bind(self, channel: Channel, method: commands.Queue.Bind) -> commands.Queue.BindOk:
        name, key = _queue_and_key(channel, method)
        await self._queues.bind(name, method.exchange, key, method.arguments)
        return commands.Queue.BindOk()

    async def queue_unbind(self, channel: Channel, method: commands.Queue.Unbind) -> commands.Queue.UnbindOk:
        name, key = _queue_and_key(channel, method)
        await self._queues.unbind(name, method.exchange, key, method.arguments)
        return commands.Queue.UnbindOk()

    async def queue_purge(self, channel: Channel, method: commands.Queue.Purge) -> commands.Queue.PurgeOk:
        return commands.Queue.PurgeOk(await self._queues.purge(_name(channel, method.queue)))

    async def queue_delete(self, channel: Channel, method: commands.Queue.Delete) -> commands.Queue.DeleteOk:
        name = _name(channel, method.queue)
        deleted = await self._queues.delete(name, if_unused=bool(method.if_unused), if_empty=bool(method.if_empty))
        return commands.Queue.DeleteOk(deleted)

    async def exchange_declare(
        self, channel: Channel, method: commands.Exchange.Declare
    ) -> commands.Exchange.DeclareOk:
        if method.passive:
            self._exchanges.check(method.exchange)
        else:
            await self._exchanges.declare(
                method.exchange,
                method.exchange_type,
                method.arguments,
                durable=bool(method.durable),
                auto_delete=bool(method.auto_delete),
                internal=bool(method.internal),
            )
        return commands.Exchange.DeclareOk()

    async def exchange_delete(self, channel: Channel, method: commands.Exchange.Delete) -> commands.Exchange.DeleteOk:
        await self._exchanges.delete(method.exchange, if_unused=bool(method.if_unused))
        return commands.Exchange.DeleteOk()

    async def exchange_bind(self, channel: Channel, method: commands.Exchange.Bind) -> commands.Exchange.BindOk:
        await self._exchanges.bind(method.source, method.destination, method.routing_key, method.arguments)
        return commands.Exchange.BindOk()

    async def exchange_unbind(self, channel: Channel, method: commands.Exchange.Unbind) -> commands.Exchange.UnbindOk:
        await self._exchanges.unbind(method.source, method.destination, method.routing_key, method.arguments)
        return commands.Exchange.UnbindOk()


def _name(channel: Channel, given: str) -> str:
    return plain(given) or channel.last_queue


def _queue_and_key(channel: Channel, method: commands.Queue.Bind | commands.Queue.Unbind) -> tuple[str, str]:
    """With what the client leaves to us filled in: without queue and key, the key is the last queue's name."""
    name, key = _name(channel, method.queue), method.routing_key
    if not key and not plain(method.queue):
        key = name
    return name, key
