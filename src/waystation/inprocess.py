"""A broker in your own process together with a client for it: what `waystation.open` and `waystation.aio.open` give.

The client of `open` lives on the broker's own loop, the one of `aio.open` on the caller's; no socket is between them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from waystation.client.aio.bridge import Bridge as AsyncBridge
from waystation.client.aio.client import Client as AsyncClient
from waystation.client.core import Core
from waystation.client.options.values import MessageOptions, Seconds, message_defaults
from waystation.client.sending.budget import DEFAULT_IN_FLIGHT_BYTES, Budget, ThreadBudget
from waystation.client.sending.producing import Guarantee
from waystation.client.sync.bridge import Bridge
from waystation.client.sync.client import Client
from waystation.client.sync.connecting import AtExit, make_core
from waystation.embedded import BrokerThread, Setting


class EmbeddedBroker(Client):
    """A running broker and a client of it in one. Use it as a context manager, or call `close`.

    `kafka`, `http` and `amqp` are the addresses of its listeners, empty where they are closed; `data` is its
    folder. If the process exits without `close`, the broker is closed at exit; if it is killed, nothing that was
    acknowledged is lost.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Mapping[str, Setting] | None = None,
        kafka: str = "127.0.0.1:0",
        http: str = "off",
        amqp: str = "off",
        *,
        guarantee: Guarantee = "at-least-once",
        timeout: float = 30.0,
        max_in_flight: int = DEFAULT_IN_FLIGHT_BYTES,
        default_priority: int | None = None,
        default_ttl: Seconds | None = None,
    ) -> None:
        defaults = message_defaults(default_priority, default_ttl)
        self._broker = BrokerThread(path, settings, kafka, http, amqp)
        self.data = self._broker.data
        self.kafka = self._broker.addresses.get("kafka", "")
        self.http = self._broker.addresses.get("http", "")
        self.amqp = self._broker.addresses.get("amqp", "")
        try:
            bridge = Bridge(self._broker.loop, self._broker.thread_id, ThreadBudget(max_in_flight))
            core = bridge.run(
                make_core([self._broker.dial()], bridge, "embedded", guarantee, timeout, defaults=defaults)
            )
        except BaseException:
            self._broker.close()
            raise
        super().__init__(core, bridge)
        self._at_exit = AtExit(self)

    @property
    def url(self) -> str:
        """The address for `waystation.connect` in another process."""
        return f"waystation://{self.kafka}" if self.kafka else ""

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __repr__(self) -> str:
        state = f"kafka={self.kafka!r}" if self._broker.running else "closed"
        return f"<waystation.EmbeddedBroker data={self.data!r} {state}>"

    def _end(self) -> None:
        self._bridge.end()
        self._broker.close()


class AsyncEmbeddedBroker(AsyncClient):
    """A running broker, on a thread of its own, and a client of it on the caller's loop."""

    def __init__(self, core: Core, broker: BrokerThread) -> None:
        super().__init__(core, AsyncBridge(core))
        self._broker = broker
        self.data = broker.data
        self.kafka = broker.addresses.get("kafka", "")
        self.http = broker.addresses.get("http", "")
        self.amqp = broker.addresses.get("amqp", "")

    @property
    def url(self) -> str:
        """The address for `waystation.connect` in another process."""
        return f"waystation://{self.kafka}" if self.kafka else ""

    async def __aenter__(self) -> AsyncEmbeddedBroker:
        return self

    def __repr__(self) -> str:
        state = f"kafka={self.kafka!r}" if self._broker.running else "closed"
        return f"<waystation.aio.EmbeddedBroker data={self.data!r} {state}>"

    async def _end(self) -> None:
        await asyncio.to_thread(self._broker.close)


async def open_async(
    path: str | os.PathLike[str],
    settings: Mapping[str, Setting] | None,
    kafka: str,
    http: str,
    amqp: str,
    *,
    guarantee: Guarantee,
    timeout: float,
    max_in_flight: int,
    defaults: MessageOptions,
) -> AsyncEmbeddedBroker:
    """See `waystation.aio.open`."""
    starting = asyncio.ensure_future(asyncio.to_thread(BrokerThread, path, settings, kafka, http, amqp))
    try:
        broker = await asyncio.shield(starting)
    except asyncio.CancelledError:  # the thread goes on: nobody would close what it starts
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await asyncio.to_thread(starting.result().close)
        raise
    try:
        core = Core(
            [broker.dial()],
            budget=Budget(max_in_flight),
            name="embedded",
            guarantee=guarantee,
            timeout_s=timeout,
            defaults=defaults,
        )
        await core.open()
    except BaseException:
        await asyncio.to_thread(broker.close)
        raise
    return AsyncEmbeddedBroker(core, broker)
