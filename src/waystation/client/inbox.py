"""Where replies to this client come. Only the thread of the client's loop may call this."""

from __future__ import annotations

import asyncio

from waystation.client.links.connection import Connection
from waystation.errors import ConnectionLost, WaystationError
from waystation.message import Delivered
from waystation.protocol import OpenInbox


class Inbox:
    """Replies by their correlation id. It is opened when first needed, and again after a lost link."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._number = connection.add_consumer(self)
        self._name: str | None = None
        self._opening: asyncio.Future[str] | None = None
        self._waiting: dict[str, asyncio.Future[Delivered]] = {}

    async def name(self) -> str:
        """What `reply_to` has to say."""
        if self._name is None:
            if self._opening is None:
                self._opening = asyncio.ensure_future(
                    self._connection.ask(OpenInbox(consumer=self._number), str, resend=True)
                )
            try:
                self._name = await asyncio.shield(self._opening)
            finally:
                self._opening = None
        return self._name

    def expect(self, correlation_id: str) -> asyncio.Future[Delivered]:
        future: asyncio.Future[Delivered] = self._connection.loop.create_future()
        self._waiting[correlation_id] = future
        future.add_done_callback(lambda _: self._waiting.pop(correlation_id, None))
        return future

    def delivered(self, messages: list[Delivered]) -> None:
        for delivered in messages:
            waiter = self._waiting.get(delivered.message.correlation_id or "")
            if waiter is not None and not waiter.done():
                waiter.set_result(delivered)

    def ended(self, error: WaystationError) -> None:
        self._name = None
        for waiter in list(self._waiting.values()):
            if not waiter.done():
                waiter.set_exception(error)

    def cut(self) -> None:
        self.ended(
            ConnectionLost(
                "the connection was lost while a reply was awaited: the request may have been carried out, or not"
            )
        )

    def resume(self) -> None:
        pass

    def forked(self, error: WaystationError) -> None:
        pass  # whoever waits for a reply is in the parent
