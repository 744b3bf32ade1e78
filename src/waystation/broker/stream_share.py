"""One partition in the hands of a stream consumer: where it reads, and what it has not been told the end of.

Invariant: `settled` never passes a message that was delivered and not acknowledged, so a commit of it loses nothing.
Pure bookkeeping; owned by one `StreamFeed`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence

from waystation.broker.reading import PartitionReader, Place
from waystation.message import Delivered

Woken = Callable[["Share"], None]


class Share(Place):
    """See the module. Until `begin`, it is ours but nobody knows yet from where it is to be read."""

    __slots__ = (
        "_done",
        "_pending",
        "_waiters",
        "_wakes",
        "begun",
        "committed",
        "deliveries",
        "dropped",
        "leaving",
        "tags",
    )

    def __init__(self, reader: PartitionReader, woken: Woken) -> None:
        super().__init__(reader, 0)
        self._wakes = woken
        self._pending: deque[int] = deque()  # delivered offsets, in order, from the first that is not done
        self._done: set[int] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self.begun = False
        self.committed = -1
        self.deliveries: dict[int, int] = {}  # of messages that were delivered more than once
        self.tags: dict[int, int] = {}  # offset → tag, of what the consumer has and there is no verdict on
        self.leaving = False
        self.dropped = False

    def begin(self, position: int, committed: int) -> None:
        self.move(position)
        self.committed = committed
        self.begun = True

    def woken(self) -> None:
        if self.behind:
            self._wakes(self)

    def delivered(self, messages: Sequence[Delivered]) -> None:
        """For the first time."""
        self._pending.extend([one.offset for one in messages])

    def done(self, offset: int) -> None:
        pending = self._pending
        if self.deliveries:
            self.deliveries.pop(offset, None)
        if not pending or pending[0] != offset:
            self._done.add(offset)
            return
        pending.popleft()
        self._skip_done()

    def done_before(self, offset: int) -> list[int]:
        """Everything delivered before `offset` is done; returns the tags that were out for it."""
        gone: list[int] = []
        while self._pending and self._pending[0] < offset:
            passed = self._pending.popleft()
            self._done.discard(passed)
            self.deliveries.pop(passed, None)
            tag = self.tags.pop(passed, None)
            if tag is not None:
                gone.append(tag)
        self._skip_done()
        return gone

    def _skip_done(self) -> None:
        pending, done = self._pending, self._done
        while done and pending and pending[0] in done:
            done.discard(pending.popleft())
        if self._waiters:
            self.wake_waiters()

    @property
    def settled(self) -> int:
        """Everything before this offset is done with."""
        return self._pending[0] if self._pending else self.position

    def settled_with(self, offsets: Collection[int]) -> int | None:
        """What `settled` will be when these are done too; None while something before one of them is not."""
        left = len(offsets)
        for offset in self._pending:
            if offset in offsets:
                left -= 1
            elif offset not in self._done:
                return offset if left == 0 else None
        return self.position

    async def moved(self) -> None:
        """Returns when something was done, or the partition is gone."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
