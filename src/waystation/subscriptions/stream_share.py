"""One partition in the hands of a stream consumer: where it reads, and what it has not been told the end of.

What must hold: `settled` never passes a message that was delivered and not acknowledged, so a commit of it loses
nothing. While a message is to be tried again the partition is `stuck`: nothing new of it is read, and what is delivered
again comes in the order of offsets.

Pure bookkeeping; owned by one `StreamFeed`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush

from waystation.message import Delivered
from waystation.topics.reading import PartitionReader, ReadPosition

Woken = Callable[["StreamShare"], None]

CLOCK_SLACK_S = 0.002
"""A timer may ring a little before its time."""


class StreamShare(ReadPosition):
    """See the module. Until `begin`, it is ours but nobody knows yet from where it is to be read."""

    __slots__ = (
        "_done",
        "_due",
        "_pending",
        "_shaky",
        "_waiters",
        "_waiting",
        "_wakes",
        "begun",
        "committed",
        "deliveries",
        "dropped",
        "failures",
        "leaving",
        "redriven",
        "tags",
    )

    def __init__(self, reader: PartitionReader, woken: Woken, *, redriven: bool = False) -> None:
        super().__init__(reader, 0)
        self._wakes = woken
        self._pending: deque[int] = deque()  # delivered offsets, in order, from the first that is not done
        self._done: set[int] = set()
        self._shaky: set[int] = set()  # put back, or dead and not buried yet
        self._waiting: list[int] = []  # put back, to be delivered again: a heap
        self._due: dict[int, float] = {}  # when, by the loop's clock
        self._waiters: list[asyncio.Future[None]] = []
        self.begun = False
        self.committed = -1
        self.deliveries: dict[int, int] = {}  # of messages that were delivered more than once
        self.failures: dict[int, int] = {}  # and how many of these were its own fault
        self.tags: dict[int, int] = {}  # offset → tag, of what the consumer has and there is no verdict on
        self.leaving = False
        self.dropped = False
        self.redriven = redriven  # what is in it came from other topics

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
        if self._shaky:
            self._shaky.discard(offset)
            self.deliveries.pop(offset, None)
            self.failures.pop(offset, None)
        if not pending or pending[0] != offset:
            self._done.add(offset)
            return
        pending.popleft()
        self._skip_done()

    def done_before(self, offset: int) -> list[int]:
        """Everything delivered before `offset` is done; returns the tags that were out for it."""
        done: list[int] = []
        while self._pending and self._pending[0] < offset:
            passed = self._pending.popleft()
            self._done.discard(passed)
            self._shaky.discard(passed)
            self.deliveries.pop(passed, None)
            self.failures.pop(passed, None)
            tag = self.tags.pop(passed, None)
            if tag is not None:
                done.append(tag)
        self._skip_done()
        return done

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

    def settled_with(self, offsets: Collection[int]) -> int:
        """What `settled` will be when these are done too."""
        return next((one for one in self._pending if one not in offsets and one not in self._done), self.position)

    # -- to be tried again ------------------------------------------------------------------------------------------

    @property
    def stuck(self) -> bool:
        return bool(self._shaky)

    def is_behind_another(self, offset: int) -> bool:
        """Whether something before it is to be tried again: then its own failure may be no more than that."""
        return bool(self._shaky) and min(self._shaky) < offset

    def set_aside(self, offset: int) -> None:
        """It is not done, and not with the consumer either."""
        self._shaky.add(offset)
        self.wake_waiters()

    def put_back(self, offset: int, due: float) -> None:
        """It is to be delivered again when it is due, and those before it were."""
        self.set_aside(offset)
        heappush(self._waiting, offset)
        self._due[offset] = due

    def take_due(self, now: float) -> int | None:
        """The next one that is to be delivered again now."""
        while self._waiting and self._waiting[0] not in self._shaky:
            self._due.pop(heappop(self._waiting), None)  # it was done by other means
        if not self._waiting or self._due[self._waiting[0]] > now + CLOCK_SLACK_S:
            return None
        offset = heappop(self._waiting)
        del self._due[offset]
        return offset

    # -- waiting for others -----------------------------------------------------------------------------------------

    async def moved(self) -> None:
        """Returns when something was done, or the partition is deleted."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
