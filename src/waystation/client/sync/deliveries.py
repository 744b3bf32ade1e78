"""Waiting for what is delivered to one consumer, for threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from waystation.client.consuming.feeding import ConsumerRequest, Feed, Unsettled
from waystation.client.core import Core
from waystation.client.sync.bridge import Bridge
from waystation.protocol import Command


class Deliveries:
    """Of one subscription, open when it is constructed. Any number of threads may wait; each message goes to one."""

    def __init__(
        self,
        core: Core,
        bridge: Bridge,
        wanted: ConsumerRequest,
        before: Command | None,
        visibility_timeout_ms: int | None,
    ) -> None:
        self._bridge = bridge
        self._news = threading.Condition()
        self._paused = False
        self.feed: Feed = bridge.run(_open(core, wanted, _Notify(self._news), before, visibility_timeout_ms))

    def take_nowait(self, most: int) -> list[Unsettled]:
        """What is here already; raises what the consumer ended for."""
        self._bridge.check_forked()
        with self._news:
            taken = self.feed.hand_out(most)
        if not taken and self.feed.error is not None:
            raise self.feed.error
        if taken and self.feed.acks_first:
            return self._bridge.run(self.feed.ack_first(taken))
        return taken

    def take(self, most: int, timeout: float | None) -> list[Unsettled]:
        """At least one; none when the time is over (None: it never is), or it is paused or closed."""
        if not self.feed.acks_first:
            return self._take(most, timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            taken = self._take(most, None if until is None else max(0.0, until - time.monotonic()))
            acked = self._bridge.run(self.feed.ack_first(taken)) if taken else []
            if acked or not taken:
                return acked

    def _take(self, most: int, timeout: float | None) -> list[Unsettled]:
        self._bridge.check_forked()
        feed = self.feed
        with self._news:
            taken = feed.hand_out(most)
            if taken:
                return taken
        self._bridge.check_thread()
        until = None if timeout is None else time.monotonic() + timeout
        with self._news:
            while True:
                taken = feed.hand_out(most)
                if taken:
                    return taken
                if feed.error is not None:
                    raise feed.error
                if feed.closed or self._paused:
                    return []
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return []
                self._news.wait(left)

    def pause(self, paused: bool) -> None:
        """Nobody waits while it is paused."""
        with self._news:
            self._paused = paused
            self._news.notify_all()

    def __del__(self) -> None:
        feed: Feed | None = getattr(self, "feed", None)
        if feed is not None and not feed.over:
            self._bridge.abandon(feed)


class _Notify:
    """Wakes the threads that wait, from the loop; it does not keep those who wait alive."""

    def __init__(self, news: threading.Condition) -> None:
        self._news = news

    def __call__(self) -> None:
        with self._news:
            self._news.notify_all()


async def _open(
    core: Core,
    wanted: ConsumerRequest,
    notify: Callable[[], None],
    before: Command | None,
    visibility_timeout_ms: int | None,
) -> Feed:
    feed = core.feed(wanted, notify, before=before, visibility_timeout_ms=visibility_timeout_ms)
    await feed.open()
    return feed
