"""What is different about asyncio when something is sent: the caller is on the client's loop already.

The verbs (`client`, `queue`, `exchange`, `message`, `transaction`, `subscription`…) are written once, in this folder,
and made for threads by `python -m tests.client.sync_client`. Wherever the two really differ they use a class that both
folders have, written by hand: `Bridge`, `Deliveries`, `Workers`, `Handlers`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from waystation.client.consuming.feeding import Feed
from waystation.client.core import Core
from waystation.client.links.forks import no_loop
from waystation.client.sending.budget import Budget
from waystation.client.sending.producing import Group, Lane, Series, in_groups, partly_stored, size_of
from waystation.errors import WaystationError
from waystation.message import Message


class Bridge:
    """From the tasks of one loop to the client on it."""

    def __init__(self, core: Core) -> None:
        self._loop = core.loop
        self._budget = core.budget
        self.over = asyncio.Event()
        """Set when the client is closed."""

    async def send(self, lane: Lane, message: Message) -> Any:
        """Sends one message and waits for its answer."""
        size = size_of(message)
        await self._budget.take(size)
        waiter: asyncio.Future[Any] = self._loop.create_future()
        lane.add(Group([message], size, waiter, single=True))
        return await waiter

    def send_nowait(self, lane: Lane, message: Message) -> asyncio.Future[Any]:
        """Sends one message; raises Full instead of waiting for room."""
        size = size_of(message)
        self._budget.take_now(size)
        waiter: asyncio.Future[Any] = self._loop.create_future()
        lane.add(Group([message], size, waiter, single=True))
        return waiter

    async def send_many(self, lane: Lane, messages: Iterable[Message]) -> list[Any]:
        """Sends many, in groups that fit in a frame each; the answers of the groups. It stops at the first that fails,
        and the error says how many messages are stored."""
        waiters: list[asyncio.Future[Any]] = []
        series: Series | None = None
        portions = in_groups(messages)
        failed: WaystationError | None = None
        while series is None or series.refused is None:
            try:
                portion = next(portions, None)
            except WaystationError as error:  # a value that is no message
                failed = error
                break
            if portion is None:
                break
            if portion.more and series is None:
                series = lane.begin_series()
            await self._budget.take(portion.size)
            waiters.append(self._loop.create_future())
            lane.add(Group(portion.messages, portion.size, waiters[-1], single=False, series=series))
        try:
            answers = await gathered(waiters)
        except WaystationError as error:
            failed = error
            answers = [one.result() for one in takewhile(_succeeded, waiters)]
        if failed is not None:
            raise partly_stored(failed, answers) from None
        return answers

    def abandon(self, feed: Feed) -> None:
        """Has a consumer closed that nobody refers to any more, on whatever thread that was found out."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(feed.abandon)

    def forked(self, error: WaystationError) -> None:
        """In a forked child: the loop is the parent's."""
        self._loop = no_loop(error)
        self._budget = Budget(sys.maxsize)
        self.over = asyncio.Event()
        self.over.set()

    async def rest(self) -> None:
        """Waits until the client is closed."""
        await self.over.wait()


def ends_worker(error: BaseException) -> bool:
    """Whether a handler was stopped from outside. A CancelledError in a task that nobody cancelled is of something that
    the handler waited for: it failed."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return not isinstance(error, Exception)


def _succeeded(waiter: asyncio.Future[Any]) -> bool:
    return not waiter.cancelled() and waiter.exception() is None


async def gathered(waiters: list[asyncio.Future[Any]]) -> list[Any]:
    """All results; the first error, after all are over."""
    if len(waiters) == 1:
        return [await waiters[0]]
    try:
        if waiters:
            await asyncio.wait(waiters)
    finally:
        failures = [waiter.exception() for waiter in waiters if not waiter.cancel() and not waiter.cancelled()]
    for failure in failures:
        if failure is not None:
            raise failure
    return [waiter.result() for waiter in waiters]
