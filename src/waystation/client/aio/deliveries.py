"""Waiting for what is delivered to one consumer, for asyncio."""

from __future__ import annotations

import asyncio

from waystation.client.aio.bridge import Bridge
from waystation.client.core import Core
from waystation.client.feeding import Feed, Held, Wanted
from waystation.protocol import Command


class Deliveries:
    """Of one subscription. Any number of tasks may wait; each message goes to one of them."""

    def __init__(self, core: Core, bridge: Bridge, wanted: Wanted, before: Command | None, hold_ms: int | None) -> None:
        self._bridge = bridge
        self._news = asyncio.Event()
        self.feed: Feed = core.feed(wanted, self._news.set, before=before, hold_ms=hold_ms)

    def take_nowait(self, most: int) -> list[Held]:
        """What is here already; raises what the consumer ended for."""
        taken = self.feed.hand_out(most)
        if not taken and self.feed.error is not None:
            raise self.feed.error
        return taken

    async def take(self, most: int, timeout: float | None) -> list[Held]:
        """At least one; none when the time is over (None: it never is) or the consumer is closed."""
        taken = self.take_nowait(most)
        if taken:
            return taken
        try:
            async with asyncio.timeout(timeout):
                while not (self.feed.waiting or self.feed.error or self.feed.closed):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return []
        return self.take_nowait(most)

    def __del__(self) -> None:
        feed: Feed | None = getattr(self, "feed", None)
        if feed is not None and not feed.over:
            self._bridge.abandon(feed)
