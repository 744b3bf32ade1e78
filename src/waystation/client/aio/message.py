"""A received message, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Unpack

from waystation.client.aio.bridge import gathered
from waystation.client.consuming.received import Received, judged, reason, reply_command
from waystation.client.consuming.settler import Say, Verdict
from waystation.client.links.connection import Ignored
from waystation.client.options.payloads import Value
from waystation.client.options.values import MessageOptions, Seconds, make_message, milliseconds


class Message(Received):
    """A message, in flight to this client until it is settled (acked, rejected, released or dead-lettered).

    async with jobs.get(timeout=5) as message:        # acked on exit, rejected on exception
        work(message.json())
    """

    __slots__ = ()

    async def ack(self, *, wait: bool = True) -> None:
        """Acknowledges it. Returns when that is durable; with `wait=False` at once, and it is sent with the next
        ones."""
        if self._judge("ack"):
            if wait:
                await self._say("ack")
            else:
                self._settler.ack(self._delivered)

    async def reject(self, error: str | BaseException | None = None, *, wait: bool = True) -> None:
        """Reports a failure: it is retried by the queue's retry policy, until it is dead. `error` is stored in its
        failure history."""
        text = reason(error)
        if self._judge("reject"):
            await self._say("reject", error=text, wait=wait)

    async def release(self, delay: Seconds | None = None, *, wait: bool = True) -> None:
        """Requeues it for any consumer, at once or after `delay` seconds. This does not count as a failure."""
        delay_ms = milliseconds("delay", delay)
        if self._judge("release"):
            await self._say("release", delay_ms=delay_ms, wait=wait)

    async def kill(self, error: str | BaseException | None = None, *, wait: bool = True) -> None:
        """Dead-letters it at once, without another retry."""
        text = reason(error)
        if self._judge("kill"):
            await self._say("kill", error=text, wait=wait)

    async def touch(self, seconds: Seconds | None = None) -> None:
        """Extends the visibility timeout: by the queue's again, or to `seconds` from now."""
        if not self._settler.settles:
            return
        settler, tag, deliveries = self._settler, self._delivered.tag, self._delivered.deliveries
        waiter: asyncio.Future[Any] = asyncio.Future()
        visibility_timeout_ms = milliseconds("seconds", seconds)
        settler.soon(
            lambda: settler.touch([(tag, 1)], visibility_timeout_ms, settler.known((tag,), waiter), deliveries)
        )
        await waiter

    async def reply(self, value: Value, **options: Unpack[MessageOptions]) -> bool:
        """Replies to a request; False if nobody waits for the reply any more."""
        command, kind = reply_command(self, make_message(value, options))
        connection = self._settler.connection
        waiter: asyncio.Future[Any] = asyncio.Future()
        self._settler.soon(lambda: connection.request(command, kind, waiter))
        return await waiter is not False

    async def _say(
        self, verdict: Verdict, *, delay_ms: int | None = None, error: str | None = None, wait: bool = True
    ) -> None:
        tags, deliveries = (self._delivered.tag,), self._delivered.deliveries
        if not wait:
            self._settler.say(Say(tags, verdict, delay_ms, error, Ignored(), deliveries))
            return
        waiter: asyncio.Future[None] = asyncio.Future()
        self._settler.say(Say(tags, verdict, delay_ms, error, waiter, deliveries))
        await waiter

    async def __aenter__(self) -> Message:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._verdict is not None or not self._settler.settles:
            return
        if error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self.reject(error)
        else:
            await self.release(wait=False)  # cancelled, or Ctrl-C: no fault of the message


async def settle_many(messages: Iterable[Message], verdict: Verdict, error: str | BaseException | None = None) -> None:
    """A verdict on many messages, in as few frames as can be; returns when all of it is durable."""
    text = reason(error)
    waiters: list[asyncio.Future[None]] = []
    for (settler, deliveries), tags in judged(messages, verdict).items():
        waiters.append(asyncio.Future())
        settler.say(Say(tags, verdict, None, text, waiters[-1], deliveries))
    await gathered(waiters)
