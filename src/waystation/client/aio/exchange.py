"""An exchange, for asyncio: messages go on to queues and topics as its bindings say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

from waystation.client import admin
from waystation.client.aio.queue import Queue
from waystation.client.options.payloads import Value
from waystation.client.options.values import MessageOptions
from waystation.client.sending.results import Published
from waystation.protocol import Publish

if TYPE_CHECKING:
    from waystation.client.aio.client import Client


class Exchange:
    """Returned by `Client.exchange`."""

    def __init__(self, client: Client, name: str, kind: str | None = None) -> None:
        self.name = name
        self._kind = kind
        """None: it was there before, of whatever kind."""
        self._client = client
        self._core = client._core
        self._bridge = client._bridge

    def __repr__(self) -> str:
        return f"<waystation.aio.Exchange {self.name!r}>"

    async def bind(
        self,
        target: str | Queue | Exchange,
        key: str = "",
        *,
        headers: Mapping[str, Any] | None = None,
        match: Literal["all", "any"] = "all",
        filter: str | None = None,
    ) -> None:
        """Binds a target to the exchange: a queue, another exchange, or `"topic:NAME"`.

        `key` is the routing key, or a pattern of a topic exchange; `headers` (all or any of them) is for headers
        exchanges, `filter` for filter exchanges.
        """
        admin.check_conditions(self.name, self._kind, headers, filter)
        arguments = admin.binding_arguments(headers, match, filter)
        await admin.bind(self._core, self.name, _target(target), key, arguments)

    async def unbind(
        self,
        target: str | Queue | Exchange,
        key: str = "",
        *,
        headers: Mapping[str, Any] | None = None,
        match: Literal["all", "any"] = "all",
        filter: str | None = None,
    ) -> None:
        """Removes the binding that was made with the same arguments."""
        arguments = admin.binding_arguments(headers, match, filter)
        await admin.unbind(self._core, self.name, _target(target), key, arguments)

    async def publish(
        self, value: Value, routing_key: str = "", *, mandatory: bool = False, **options: Unpack[MessageOptions]
    ) -> Published:
        """Sends a message to everything that is bound; durable when this returns.

        `mandatory`: NotFound if nothing is bound that matches.
        """
        shape = Publish(messages=[], exchange=self.name, routing_key=routing_key, mandatory=mandatory)
        return await self._client._publish(shape, [self._core.message(value, options)])

    async def route(self, value: Value, routing_key: str = "", **options: Unpack[MessageOptions]) -> list[str]:
        """Where such a message would be routed; nothing is sent."""
        return await admin.route(self._core, self.name, self._core.message(value, options), routing_key)

    async def delete(self, *, if_unused: bool = False) -> None:
        await admin.delete_exchange(self._core, self.name, if_unused=if_unused)


def _target(target: str | Queue | Exchange) -> str:
    if isinstance(target, Queue):
        return f"queue:{target.name}"
    if isinstance(target, Exchange):
        return f"exchange:{target.name}"
    return admin.target_name(target)
