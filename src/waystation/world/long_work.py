"""Time on the event loop that connections may take from each other: who has more to do than fits into one turn of the
loop goes on in a line, which all connections of all protocols share.

Invariants: those in the line go on one at a time, in the order of asking, each with one step, which has a bound of its
own (frames, bytes, one message) where it is made. After a step the line rests for as long as the step took. So however
many connections are in the line, they have half of the time together. While nobody is, it costs nothing. Nor does the
rest keep back the one who made the step, while nobody else is in the line or waits for a small answer (`taken_from`):
whoever is alone makes one step in each turn of the loop.

A step that was short is followed by the next one at once if nobody else had anything to do in the turn between them:
whoever comes then waits for one short step at most, and those in the line lose no time to nobody. If nobody is in the
line then, it is free again: one who reads much, alone, in steps that are short, does not meet it.

It also knows whether anybody waits for small answers (`asked`): whoever has much to do looks there how long a step may
be. A step has a price of its own, so it is long while nobody is hurt by it. And the line gives way to who has just
asked: an answer takes several turns of the loop, and would meet a step in each of them. It gives way once before a
step, for a moment; then it goes on, however many ask.

Constructed once per broker, beside the budgets of memory that connections share. All calls are for the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

MOST_REST_S = 0.1
"""A step that took longer was held up by something else, such as a machine that is busy elsewhere."""

SHORT_STEP_S = 0.0015
"""About what a megabyte takes from the disk's cache to a socket."""

IDLE_TURN_S = 0.00005
"""A turn in which anybody is served takes longer."""

LATELY_S = 0.1
"""Who asked for something this short a time ago is likely to ask again soon. Whoever asks less often meets a long step
at times; a longer time would make work dear for others for one who has asked once."""


GIVE_WAY_S = 0.001
"""A small answer is made in this time, or waits for the disk. It is also the shortest time that the loop can wait."""


class LongWork:
    """The line. `short_s`: how long a step is at most that needs no rest behind it while nobody else works."""

    def __init__(self, now_s: Callable[[], float], short_s: float = SHORT_STEP_S) -> None:
        self._now_s = now_s
        self._short_s = short_s
        self._took_s = 0.0
        self._line: deque[tuple[Callable[[], None], object]] = deque()
        self._new_question = False  # since the line looked last
        self._gave_way = False  # before the step that is next
        self._began_s = 0.0
        self._asked = ((0, -LATELY_S), (0, -LATELY_S))  # who last did, and when; and the last one who is another
        self.taken = False
        """Whether somebody had a long step just now, or will have one next: another one should get in the line."""
        self._last = 0  # who that is
        self._stepped = False  # in this turn

    def __len__(self) -> int:
        return len(self._line)

    def taken_from(self, who: object) -> bool:
        """Whether this one should get in the line before a long step."""
        alone = not self._line and self._last == id(who) and not self.others_wait(who)
        return self.taken and (self._stepped or not alone)

    def then(self, step: Callable[[], None], who: object = None) -> None:
        """Calls `step`, which raises nothing, in a later turn of the loop in which nobody else has one. `who`: the
        connection that it is for, which has not asked for little then."""
        self._withdraw(who)
        self._line.append((step, who))
        if not self.taken:
            self.taken = True
            asyncio.get_running_loop().call_soon(self._next)

    def took(self, who: object = None) -> None:
        """A long step was made in this turn by somebody who did not know before."""
        self._withdraw(who)
        self._last = id(who)
        loop = asyncio.get_running_loop()
        if not self._stepped:
            self._stepped = True
            loop.call_soon(self._turn_is_over)
        if not self.taken:
            self.taken = True
            self._began_s = self._now_s()
            loop.call_soon(self._rest)

    async def turn(self, who: object = None) -> None:
        """Waits for such a turn; what is done until the next `await` is one step."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.then(lambda: None if granted.done() else granted.set_result(None), who)
        await granted

    def asked(self, who: object) -> None:
        """A connection has asked for little, and waits for the answer."""
        last, before = self._asked
        self._asked = ((id(who), self._now_s()), before if last[0] == id(who) else last)
        self._new_question = True

    def others_wait(self, who: object) -> bool:
        """Whether another connection has asked for little lately: then the steps of those who have much to do are to
        be as short as they can be, since it waits for each of them that it meets."""
        return self._now_s() - self._last_asked_s(who) < LATELY_S

    def _last_asked_s(self, who: object) -> float:
        """When another one did."""
        (last, last_s), (_, before_s) = self._asked
        return last_s if last != id(who) else before_s

    def _withdraw(self, who: object) -> None:
        """It has asked for much after all."""
        last, before = self._asked
        if who is not None and last[0] == id(who):
            self._asked = (before, (0, -LATELY_S))

    def _next(self) -> None:
        if not self._line:
            self.taken = False
            return
        if self._gives_way():
            self._later(GIVE_WAY_S)
            return
        self._began_s = self._now_s()
        asyncio.get_running_loop().call_soon(self._wait_for_it)
        step, who = self._line.popleft()
        self._last = id(who)
        self._stepped = True
        step()

    def _gives_way(self) -> bool:
        """Once before each step at most: those who ask must not keep the others from theirs."""
        new, self._new_question = self._new_question, False
        just_now = new and self._now_s() - self._last_asked_s(self._line[0][1]) < GIVE_WAY_S
        self._gave_way = just_now and not self._gave_way
        return self._gave_way

    def _wait_for_it(self) -> None:
        """What a step left for the turn behind its own (a task goes on, a connection works) is part of it."""
        asyncio.get_running_loop().call_soon(self._rest)

    def _turn_is_over(self) -> None:
        self._stepped = False

    def _rest(self) -> None:
        self._stepped = False
        now_s = self._now_s()
        self._took_s = min(now_s - self._began_s, MOST_REST_S)
        if self._took_s > self._short_s:
            self._later(self._took_s)
        elif not self._line:
            self.taken = False
        else:
            self._began_s = now_s
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """One turn behind a short step: whether others had anything to do in it."""
        others_s = self._now_s() - self._began_s
        if others_s < IDLE_TURN_S:
            self._next()
        else:
            self._later(max(0.0, self._took_s - others_s))

    def _later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._next)
