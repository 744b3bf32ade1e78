"""Where replies to this client come. Only the thread of the client's loop may call this."""

from __future__ import annotations

import asyncio
from typing import Any

from waystation.client.links.connection import Connection
from waystation.errors import Conflict, ConnectionLost, WaystationError
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
                self._opening = self._connection.loop.create_future()
                opening = _Opening(self, self._opening)
                self._connection.request(
                    OpenInbox(consumer=self._number), str, opening, resend=True, orphan=self.opened
                )
            return await asyncio.shield(self._opening)
        return self._name

    def opened(self, name: str | None) -> None:
        """The broker's answer; None: it refused. It may come when nobody waits for it any more."""
        self._name, self._opening = name, None

    def expect(self, correlation_id: str) -> asyncio.Future[Delivered]:
        if correlation_id in self._waiting:
            raise Conflict(f"correlation_id: {correlation_id!r:.60} is that of a request that still waits")
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


class _Opening:
    """Waits for the broker's answer, whoever asked for it first: they may be cancelled, and the inbox is open then."""

    def __init__(self, inbox: Inbox, future: asyncio.Future[str]) -> None:
        self._inbox = inbox
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def set_result(self, name: Any) -> None:
        self._inbox.opened(name)
        self._future.set_result(name)

    def set_exception(self, error: WaystationError) -> None:
        self._inbox.opened(None)
        self._future.set_exception(error)
        self._future.exception()  # those who waited may have been cancelled
