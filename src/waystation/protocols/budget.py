"""Bytes that all connections together may make the broker hold: one budget for requests that are still arriving, one
for answers and deliveries that clients have not read.

Invariants, apart from `FREE_BYTES` of each connection, which are never counted:
- What is larger than `SMALL_BYTES` is granted from a budget's main part, what is smaller from its reserve, and from the
  main part while nothing large waits for that. So large requests never hold up small ones, nor the other way round.
- Whoever finds no room waits, in the order of asking, and is not read meanwhile.
- While somebody waits, or more is held than the total (an answer is as large as it is), nobody keeps a share for longer
  than `HOLD_S`, nor for `STALL_S` without a byte moving: then its connection is ended. So a client that stops in the
  middle of a request, or stops reading, does not block the others for long.
- What is larger than the whole main part gets its turn when that is empty.

Constructed once per broker and given to every protocol. All calls are for the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from waystation.observe.events import event_logger
from waystation.world.large_buffers import LettingGo
from waystation.world.long_work import LongWork

if TYPE_CHECKING:
    from waystation.config import BrokerSettings
    from waystation.world.clock import Clock

logger = event_logger("waystation.budget")

FREE_BYTES = 64 * 1024
"""Each way, for every connection: nearly all requests and answers are smaller, and cost no bookkeeping."""

SMALL_BYTES = 1024 * 1024
"""The usual largest batch of a producer and portion of a consumer."""

RESERVE_PARTS = 4
"""One part in so many of a budget is kept for what is small."""

HOLD_S = 10.0
"""While others wait. Long enough for 100 MiB at 10 MB/s, shorter than the time that clients wait for an answer."""

STALL_S = 2.0
"""While others wait. A connection that works moves bytes every few milliseconds."""

CHECK_S = 1.0

MUCH_BYTES = 128 * 1024
"""When a read gives more, the next one is for the next turn of the loop, which would otherwise read on at once; or for
a turn of the line of long work, if somebody else has read much in this one."""

FEW_BYTES = 4 * 1024
"""A read that gives no more is from somebody who asks for little and waits for the answer."""

FIRST_ANSWER_BYTES = 1024 * 1024
"""Of messages in one answer to a client that has read nothing large yet: what Kafka's consumers ask of a partition."""


class BudgetOwner(Protocol):
    """A connection, as a budget sees it."""

    def on_room(self) -> None:
        """What it asked for is granted."""

    def spare(self) -> bool:
        """Somebody else needs room: gives back what it does not need now. Whether that was all of its share."""

    def overdue(self, why: str) -> bool:
        """It has kept others waiting for too long, and ends. False: the client can do nothing about it; it stays."""


class _Nobody:
    """Owns the share of a connection that is over."""

    def on_room(self) -> None:
        return

    def spare(self) -> bool:
        return True

    def overdue(self, why: str) -> bool:
        return True


NOBODY = _Nobody()


class Budget:
    """One direction's."""

    def __init__(self, total: Callable[[], int], clock: Clock, what: str, long_work: LongWork) -> None:
        self._total = total
        self._long_work = long_work
        self._now_s = clock.monotonic
        self._what = what
        self._since_s: dict[BudgetShare, float] = {}  # who holds something, the oldest first
        self._lines: tuple[deque[BudgetShare], deque[BudgetShare]] = (deque(), deque())  # small ones, large ones
        self._used = [0, 0]  # by small ones, by large ones
        self._timer: asyncio.TimerHandle | None = None
        self._spared_s = -CHECK_S

    def share(self, owner: BudgetOwner, moved: Callable[[], int]) -> BudgetShare:
        """A connection's part of it; empty so far. `moved`: a number that changes when bytes move."""
        return BudgetShare(self, owner, moved)

    @property
    def used(self) -> int:
        return sum(self._used)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines))

    def left(self, *, large: bool) -> int:
        """How much can be granted now."""
        total = self._total()
        reserve = total // RESERVE_PARTS
        small_used, large_used = self._used
        main = total - reserve - large_used - max(0, small_used - reserve)
        if large:
            return main
        return reserve - small_used if self._lines[1] else total - small_used - large_used

    def fits(self, share: BudgetShare, size: int) -> bool:
        large = size > SMALL_BYTES
        more = size - share.size
        if more <= self.left(large=large):
            return True
        reserve = self._total() // RESERVE_PARTS
        alone = self._used[1] <= share.size and self._used[0] <= reserve
        return alone and size > self._total() - reserve

    def set(self, share: BudgetShare, size: int) -> None:
        """A share is this large from now on."""
        self._used[share.size > SMALL_BYTES] -= share.size
        self._used[size > SMALL_BYTES] += size
        shrunk, share.size = size < share.size, size
        if not size:
            self._since_s.pop(share, None)
        elif share not in self._since_s:
            self._since_s[share] = self._now_s()
        if shrunk:
            self._grant()
        elif self.used > self._total():
            self._watch()

    def renew(self, share: BudgetShare) -> None:
        """What it holds is for something new."""
        if self._since_s.pop(share, None) is not None:
            self._since_s[share] = self._now_s()

    def take(self, share: BudgetShare, size: int, then: Callable[[], None] | None) -> bool:
        """At once if it can be, and nobody is before it; else it waits."""
        line = self._lines[size > SMALL_BYTES]
        if not line and self.fits(share, size):
            self.set(share, size)
            return True
        share.wanted, share.then = size, then or share.owner.on_room
        line.append(share)
        self._watch()
        now_s = self._now_s()
        if now_s - self._spared_s >= CHECK_S:  # every share is looked at: not for each of many that begin to wait
            self._spared_s = now_s
            for other in list(self._since_s):
                if other is not share:
                    other.owner.spare()
        return False

    def leave(self, share: BudgetShare) -> None:
        """It waits no more."""
        if share.wanted:
            self._lines[share.wanted > SMALL_BYTES].remove(share)
            share.wanted = 0
            self._grant()

    def _grant(self) -> None:
        """To those who wait, each kind in its order. What they waited for is long, and there may be many of them: they
        go on one at a time."""
        for line in self._lines:
            while line and self.fits(line[0], line[0].wanted):
                share = line.popleft()
                size, share.wanted = share.wanted, 0
                self.set(share, size)
                self.renew(share)
                self._long_work.then(share.granted, share.owner)

    @property
    def _short(self) -> bool:
        return bool(self._lines[0] or self._lines[1]) or self.used > self._total()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self.check)

    def check(self) -> None:
        """Every second while there is too little: ends whoever has held others up for too long, the oldest first."""
        self._timer = None
        now_s = self._now_s()
        for share, since_s in list(self._since_s.items()):
            if not self._short:
                return
            if (share.stalled(now_s) or now_s - since_s >= HOLD_S) and share.size and not share.owner.spare():
                why = f"{share.size} bytes of {self._what} for {now_s - since_s:.0f} s, and others wait for room"
                if share.owner.overdue(why):
                    logger.warning("connection.ended", "a connection is ended: {reason}", reason=why)
        if self._short:
            self._watch()


class BudgetShare:
    """One connection's part of a budget."""

    __slots__ = ("_budget", "_moved", "_seen", "_seen_s", "owner", "size", "then", "trusted", "wanted")

    def __init__(self, budget: Budget, owner: BudgetOwner, moved: Callable[[], int]) -> None:
        self._budget = budget
        self._moved = moved
        self._seen = -1
        self._seen_s = 0.0
        self.owner = owner
        self.size = 0  # what it holds
        self.wanted = 0  # what it waits for, in all
        self.then: Callable[[], None] | None = None
        self.trusted = FIRST_ANSWER_BYTES  # bytes that are read for this client at once

    def want(self, size: int, then: Callable[[], None] | None = None) -> bool:
        """Asks to hold this many bytes. False: it has to wait, and `then`, or `on_room`, is called when it has them."""
        if self.wanted:
            return False
        return size <= max(FREE_BYTES, self.size) or self._budget.take(self, size, then)

    def granted(self) -> None:
        """In its turn of the line of long work; it may have been dropped meanwhile."""
        then, self.then = self.then, None
        if then is not None:
            then()

    def hold(self, size: int) -> None:
        """It holds this much, as a fact; up to FREE_BYTES is nothing."""
        size = size if size > FREE_BYTES else 0
        if size != self.size:
            self._budget.set(self, size)

    def renew(self) -> None:
        """What it holds is for something new from now on."""
        if self.size:
            self._budget.renew(self)

    def was_read(self, size: int) -> None:
        """An answer of this size has left: the next one may be twice as large. So one who never reads gets little."""
        self.trusted = max(self.trusted, 2 * size)

    def stalled(self, now_s: float) -> bool:
        """Whether no byte has moved for STALL_S, as far as those who asked could see."""
        moved = self._moved()
        if moved != self._seen:
            self._seen, self._seen_s = moved, now_s
        return now_s - self._seen_s >= STALL_S

    def drop(self) -> None:
        """It holds nothing, and waits for nothing."""
        self._budget.leave(self)
        self.then = None
        self.hold(0)

    def end(self) -> None:
        """Its connection is over, and not kept by it: the two would be garbage that only a collection finds."""
        self.drop()
        self.owner, self._moved = NOBODY, int

    @property
    def room(self) -> int:
        """How much it can hold without waiting."""
        left = self._budget.left(large=True)
        if left <= SMALL_BYTES:
            left = min(SMALL_BYTES, self._budget.left(large=False))
        return max(FREE_BYTES, self.size + left)

    @property
    def room_for_answer(self) -> int:
        """How much may be read for an answer."""
        return min(self.trusted, self.room)


class Budgets:
    """Both of a broker's; and the line for what takes time."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self.long_work = LongWork(clock.monotonic)
        self.letting_go = LettingGo(self.long_work)
        self.requests = Budget(
            lambda: settings.integer("queued.max.request.bytes"),
            clock,
            "a request that does not come to its end",
            self.long_work,
        )
        self.unsent = Budget(
            lambda: settings.integer("waystation.unsent.max.bytes"),
            clock,
            "what it was sent and does not read",
            self.long_work,
        )

    def read_much(self, who: object, then: Callable[[], None]) -> None:
        """A connection has read much, and reads no more until `then` is called: in the next turn, or in the line."""
        if self.long_work.taken_from(who):
            self.long_work.then(then, who)
        else:
            self.long_work.took(who)
            asyncio.get_running_loop().call_soon(then)
