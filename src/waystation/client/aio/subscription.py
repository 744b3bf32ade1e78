"""A consumer for asyncio: of a queue, or of topics."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import Any

from waystation.client.aio.message import Message, settle_many
from waystation.client.aio.opening import Opening
from waystation.client.aio.workers import Workers
from waystation.client.core import Core
from waystation.client.feeding import Feed, Wanted
from waystation.client.given import Given
from waystation.errors import Conflict
from waystation.protocol import Command

Handler = Callable[[Message], Awaitable[Any] | Any]


class Subscription:
    """Messages as they come. Iterate over it, or ask with `get_message` and `poll`, or give it a handler.

    Iterating acks a message when the next one is asked for, unless there was a verdict on it already or `manual=True`
    was said: leave the loop by an exception and the message comes again. `get_message` and `poll` ack nothing by
    themselves; `commit` acks everything that they gave so far. After a lost connection it goes on by itself.
    """

    def __init__(
        self, core: Core, wanted: Wanted, *, before: Command | None = None, hold_ms: int | None = None
    ) -> None:
        self._core = core
        self._manual = wanted.manual or not wanted.settles
        self._news = asyncio.Event()
        self._feed: Feed = core.feed(wanted, self._news.set, before=before, hold_ms=hold_ms)
        self._given: Given[Message] = Given(wanted.window)
        self._working: dict[int, Message] = {}  # by loop: what it was given last
        self._loops = itertools.count()
        self._workers: Workers | None = None

    async def _open(self) -> Subscription:
        await self._feed.open()
        return self

    @property
    def topics(self) -> list[str]:
        """Those that matched when it began; topics that are created later are picked up by themselves."""
        return self._feed.answer.topics if self._feed.answer is not None else []

    @property
    def closed(self) -> bool:
        return self._feed.over

    # -- one by one ----------------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Each loop acks its own messages, so several tasks may have a loop each."""
        number = next(self._loops)
        while True:
            last = self._working.pop(number, None)
            if last is not None and last.settled is None and not self._manual:
                await last.ack(wait=False)
            message = await self._next(None)
            if message is None:
                return
            self._working[number] = message
            yield message

    async def get_message(self, timeout: float | None = 1.0) -> Message | None:
        """The next message, or None if none came within `timeout` seconds (None: wait for ever)."""
        message = await self._next(timeout)
        if message is not None:
            self._given.add(message)
        return message

    def get_message_nowait(self) -> Message | None:
        """A message that is here already, or None."""
        for held in self._feed.hand_out(1):
            message = Message(held)
            self._given.add(message)
            return message
        return None

    async def poll(self, timeout: float = 1.0, max: int = 500) -> list[Message]:
        """What is here, at most `max`; waits up to `timeout` seconds for the first."""
        if not self._feed.waiting:
            await self._wait(timeout)
        messages = [Message(held) for held in self._feed.hand_out(max)]
        self._given.extend(messages)
        return messages

    async def _next(self, timeout: float | None) -> Message | None:
        while True:
            for held in self._feed.hand_out(1):
                return Message(held)
            if not await self._wait(timeout):
                return None

    async def _wait(self, timeout: float | None) -> bool:
        """Until there may be something; False when there is not."""
        try:
            async with asyncio.timeout(timeout):
                while not self._feed.waiting:
                    if self._feed.error is not None:
                        raise self._feed.error
                    if self._feed.closed:
                        return False
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    # -- verdicts ------------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Acks all that `get_message`, `poll` and iterating gave so far without a verdict; durable on return."""
        messages = self._given.unsettled()
        messages += [message for message in self._working.values() if message.settled is None]
        await settle_many(messages, "ack")
        await self._feed.settled()

    async def ack_many(self, messages: Iterable[Message]) -> None:
        """Acks many at once; returns when it is durable."""
        await settle_many(messages, "ack")

    async def reject_many(self, messages: Iterable[Message], error: str | None = None) -> None:
        await settle_many(messages, "reject", error)

    # -- handlers ------------------------------------------------------------------------------------------------------

    def start_consuming(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Calls `handler` for every message from now on, `concurrency` at a time, and acks each that it returns from.

        A handler that raises, or returns False, rejects the message; the error's text is kept with it.
        """
        if self._workers is not None:
            raise Conflict("this subscription has a handler already; stop_consuming comes first")
        self._workers = Workers(self._next_for_worker, handler, concurrency)

    async def _next_for_worker(self) -> Message | None:
        return await self._next(None)

    async def stop_consuming(self) -> None:
        """Lets handlers finish what they have, and starts no more."""
        workers, self._workers = self._workers, None
        if workers is not None:
            await workers.stop()
            await self._feed.settled()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends it. Verdicts that were given are kept; what is held without one is delivered to others."""
        await self.stop_consuming()
        await self._feed.close()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is None and not self._manual and not self.closed:
            for message in self._working.values():
                if message.settled is None:
                    await message.ack(wait=False)  # its loop was left on purpose, and it was worked on
        await self.close()

    def __del__(self) -> None:
        feed: Feed | None = getattr(self, "_feed", None)
        if feed is not None and not feed.over and not self._core.loop.is_closed():
            self._core.loop.call_soon_threadsafe(feed.abandon)


class Subscribing(Opening[Subscription]):
    """A subscription that is being opened: await it, enter it, or iterate over it."""

    def __init__(self, work: Coroutine[Any, Any, Subscription]) -> None:
        super().__init__(work)

    def __await__(self) -> Generator[Any, None, Subscription]:
        return super().__await__()

    async def __aiter__(self) -> AsyncIterator[Message]:
        async with self as subscription:
            async for message in subscription:
                yield message
