"""Waiting for what is delivered to one consumer, for asyncio."""

from __future__ import annotations

import asyncio
from collections import deque

from waystation.client.aio.bridge import Bridge
from waystation.client.consuming.feeding import ConsumerRequest, Feed, Unsettled
from waystation.client.core import Core
from waystation.errors import Invalid
from waystation.protocol import Command


class Deliveries:
    """Of one subscription. Any number of tasks may wait; each message goes to one of them."""

    def __init__(
        self,
        core: Core,
        bridge: Bridge,
        wanted: ConsumerRequest,
        before: Command | None,
        visibility_timeout_ms: int | None,
    ) -> None:
        self._bridge = bridge
        self._news = asyncio.Event()
        self._acked: deque[Unsettled] = deque()  # at most once: for whom they were acked was cancelled
        self.feed: Feed = core.feed(wanted, self._news.set, before=before, visibility_timeout_ms=visibility_timeout_ms)

    def take_nowait(self, most: int) -> list[Unsettled]:
        """What is here already; raises what the consumer ended for."""
        if self.feed.acks_first:
            raise Invalid("at-most-once acks a message before you get it, which takes a moment: await get_message(0)")
        return self._here(most)

    def _here(self, most: int) -> list[Unsettled]:
        taken = self.feed.hand_out(most)
        if not taken and self.feed.error is not None:
            raise self.feed.error
        return taken

    async def take(self, most: int, timeout: float | None) -> list[Unsettled]:
        """At least one; none when the time is over (None: it never is) or the consumer is closed."""
        if not self.feed.acks_first:
            return await self.next(most, timeout)
        now = asyncio.get_running_loop().time
        until = None if timeout is None else now() + timeout
        while True:
            taken = await self.next(most, None if until is None else max(0.0, until - now()))
            acked = await self.confirmed(taken)
            if acked or not taken:
                return acked

    async def confirmed(self, taken: list[Unsettled]) -> list[Unsettled]:
        """At most once: those that are acked now and may be handed out. If whoever asks is cancelled meanwhile, the
        next one gets them."""
        if not taken and self._acked:
            return [self._acked.popleft()]
        if not taken or not self.feed.acks_first:
            return taken
        acking = asyncio.ensure_future(self.feed.ack_first(taken))
        try:
            return await asyncio.shield(acking)
        except asyncio.CancelledError:
            acking.add_done_callback(self._keep)
            raise

    def _keep(self, acking: asyncio.Future[list[Unsettled]]) -> None:
        if not acking.cancelled() and acking.exception() is None:
            self._acked.extend(acking.result())
            self._news.set()

    async def next(self, most: int, timeout: float | None) -> list[Unsettled]:
        """What is here, or comes in time; not acked yet where it is to be acked first. None if there is something that
        was acked for somebody who was cancelled: `confirmed` has it."""
        taken = [] if self._acked else self._here(most)
        if taken:
            return taken
        try:
            async with asyncio.timeout(timeout):
                while not (self._acked or self.feed.waiting or self.feed.error or self.feed.closed):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return []
        return [] if self._acked else self._here(most)

    def __del__(self) -> None:
        feed: Feed | None = getattr(self, "feed", None)
        if feed is not None and not feed.over:
            self._bridge.abandon(feed)
