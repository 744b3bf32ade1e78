"""A consumer as the client sees it: messages that were pushed and wait to be handed out, and the credit for more.

The broker may have as many messages on the way as the window says. When half of them were handed out it gets credit for
as many more. Messages that wait here are in flight to us, so their visibility timeout is renewed until somebody takes
them. When the link is lost, what waits here is thrown away, since the broker delivers it again; when it is back, the
consumer goes on.

`hand_out` may be called on any thread, but by one at a time; everything else belongs to the client's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from waystation.client.consuming.settler import Settler, Soon, runs_of, within
from waystation.client.links.connection import Connection, Ignored
from waystation.errors import Conflict, ConnectionLost, NotFound, WaystationError
from waystation.message import Delivered
from waystation.protocol import Cease, Command, Consume, Credit, Settle, SettleAnswer, Subscribe, SubscribeAnswer
from waystation.queues.settings import DEFAULT_VISIBILITY_TIMEOUT_MS

DEFAULT_WINDOW = 200


class ConsumerRequest(NamedTuple):
    """A command that opens a consumer, and how it is used."""

    command: Consume | Subscribe
    window: int
    settles: bool
    """Whether messages wait for a verdict of whoever gets them."""
    transactional: bool
    manual: bool
    acks_first: bool = False
    """At most once: each is acked before it is handed out."""


class Unsettled(NamedTuple):
    """A message, and who settles it."""

    delivered: Delivered
    settler: Settler


class _Buffer:
    """What came over one link. The counters only grow, each on its own side, so that they need no lock."""

    __slots__ = ("credited", "handed_out", "items", "scheduled", "settler")

    def __init__(self, settler: Settler) -> None:
        self.settler = settler
        self.items: deque[Delivered] = deque()
        self.handed_out = 0
        self.credited = 0
        self.scheduled = False


class Feed:
    """One consumer. `notify` is called on the loop when there is something new: messages, or the end."""

    def __init__(
        self,
        connection: Connection,
        wanted: ConsumerRequest,
        *,
        soon: Soon,
        notify: Callable[[], None],
        before: Command | None = None,
        visibility_timeout_ms: int | None = None,
    ) -> None:
        command = wanted.command
        self._connection = connection
        self._wanted = wanted
        self._command = command
        self._before = before
        self._window = max(1, wanted.window)
        self._settles = wanted.settles
        self.acks_first = wanted.acks_first
        self._soon = soon
        self._notify = notify
        self._visibility_timeout_ms = visibility_timeout_ms or command.hold_ms or DEFAULT_VISIBILITY_TIMEOUT_MS
        self._renewal: asyncio.TimerHandle | None = None
        self.number = connection.add_consumer(self)
        command.consumer = self.number
        command.credit = self._window
        self._buffer = self._new_buffer()
        self.error: WaystationError | None = None
        """Why it ended; None while it lives, and after `close`."""
        self.closed = False
        self._closing: asyncio.Task[None] | None = None
        self.answer: SubscribeAnswer | None = None
        self._opened: asyncio.Future[SubscribeAnswer | None] = connection.loop.create_future()

    async def open(self) -> None:
        """Returns when the broker has it, also if a link is lost meanwhile; raises what it is refused for."""
        try:
            if self._connection.closed:
                raise ConnectionLost("the client is closed")
            if self._connection.up:  # else `resume` will ask
                self._ask()
            async with asyncio.timeout(self._connection.timeout_s):
                self.answer = await self._opened
        except BaseException as error:
            self.closed = True
            self._connection.drop_consumer(self.number)
            if isinstance(error, asyncio.CancelledError | TimeoutError):  # the broker may open it all the same
                self._connection.request(Cease(consumer=self.number), None, Ignored())
            if isinstance(error, TimeoutError):
                raise ConnectionLost("the connection was lost, and is not there again in time") from None
            raise
        self._schedule_renewal()

    def _ask(self, *, first: bool = False) -> None:
        if self._before is not None:
            self._connection.request(self._before, Any, _Prepared(self, first), first=first)
        else:
            self.ask_broker(first)

    def ask_broker(self, first: bool) -> None:
        """`first`: before everything that waits for the link that was just made."""
        kind = SubscribeAnswer if isinstance(self._command, Subscribe) else None
        self._connection.request(self._command, kind, _Asked(self), first=first)

    def accepted(self, answer: SubscribeAnswer | None) -> None:
        if not self._opened.done():
            self._opened.set_result(answer)

    def refused(self, error: WaystationError) -> None:
        if isinstance(error, ConnectionLost) and not self._connection.closed:
            return  # the next link tries again
        if self._opened.done():
            self.ended(error)
        else:
            self._opened.set_exception(error)

    # -- handing out -------------------------------------------------------------------------------------------------

    @property
    def settler(self) -> Settler:
        """Of what comes over the present link."""
        return self._buffer.settler

    @property
    def waiting(self) -> int:
        return len(self._buffer.items)

    @property
    def over(self) -> bool:
        """Whether nothing will come any more."""
        return self.closed or self.error is not None

    def hand_out(self, most: int = 1) -> list[Unsettled]:
        """Up to `most` messages that wait."""
        buffer = self._buffer
        items, settler = buffer.items, buffer.settler
        taken: list[Unsettled] = []
        while items and len(taken) < most:
            taken.append(Unsettled(items.popleft(), settler))
        if taken:
            buffer.handed_out += len(taken)
            if buffer.handed_out - buffer.credited >= (self._window + 1) // 2 and not buffer.scheduled:
                buffer.scheduled = True
                self._soon(self._give_credit)
        return taken

    async def ack_first(self, taken: list[Unsettled]) -> list[Unsettled]:
        """Acks what is about to be handed out, and returns what was: nobody gets it again, whatever happens now. What
        is not in flight any more is somebody else's; what the connection was lost with is lost or redelivered."""
        by_deliveries: dict[int, list[Unsettled]] = {}
        for unsettled in taken:
            by_deliveries.setdefault(unsettled.delivered.deliveries, []).append(unsettled)
        acked: list[Unsettled] = []
        for deliveries, some in by_deliveries.items():
            runs = runs_of([unsettled.delivered.tag for unsettled in some])
            command = Settle(consumer=self.number, runs=runs, deliveries=deliveries, durable=False)
            try:
                answer = await self._connection.ask(command, SettleAnswer) if some[0].settler.alive else None
            except (ConnectionLost, NotFound):  # NotFound: the consumer has ended, and what it had went back
                answer = None
            if answer is not None:
                acked += [unsettled for unsettled in some if not within(unsettled.delivered.tag, answer.unknown)]
        return acked

    def _give_credit(self) -> None:
        buffer = self._buffer
        buffer.scheduled = False
        due = buffer.handed_out - buffer.credited
        if due > 0 and not self.over:
            buffer.credited += due
            self._connection.tell(Credit(consumer=self.number, count=due))

    # -- what the connection says ------------------------------------------------------------------------------------

    def delivered(self, messages: list[Delivered]) -> None:
        self._buffer.items.extend(messages)
        self._notify()

    def ended(self, error: WaystationError) -> None:
        if self.over:
            return
        if self._connection.closed:
            self.closed = True
        else:
            self.error = self._buffer.settler.ended = error
        if not self._opened.done():
            self._opened.set_exception(error)
        self._stop_renewal()
        self._notify()

    def cut(self) -> None:
        self._buffer = self._new_buffer()

    def resume(self) -> None:
        command = self._command
        if isinstance(command, Subscribe):
            command.history = 0  # it was shown once
        self._buffer = self._new_buffer()
        self._ask(first=True)

    def _new_buffer(self) -> _Buffer:
        command = self._command
        settler = Settler(
            self._connection,
            self.number,
            soon=self._soon,
            queue=command.queue if isinstance(command, Consume) else "",
            group=command.group or "" if isinstance(command, Subscribe) and command.mode == "stream" else "",
            settles=self._settles,
            transactional=self._wanted.transactional,
        )
        return _Buffer(settler)

    # -- visibility timeout of what waits ----------------------------------------------------------------------------

    def _schedule_renewal(self) -> None:
        if (self._settles or self.acks_first) and not self.over:
            self._renewal = self._connection.loop.call_later(self._visibility_timeout_ms / 3000, self._renew)

    def _renew(self) -> None:
        buffer = self._buffer
        tags = [delivered.tag for delivered in buffer.items.copy()]
        if tags and buffer.settler.alive and self._connection.up:
            buffer.settler.touch(runs_of(tags), self._command.hold_ms, Ignored())
        self._schedule_renewal()

    def _stop_renewal(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()

    def forked(self, error: WaystationError) -> None:
        """In a forked child: what waits here is the parent's."""
        self.error = error
        self._buffer.settler.forked(error)
        self._buffer = self._new_buffer()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Verdicts on the way are waited for; what is still in flight goes back to the broker, to be redelivered. It
        goes on if whoever waits for it is cancelled."""
        if not self.closed:
            self._begin_closing()
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def abandon(self) -> None:
        """Nobody will ask for messages any more: closes it, without waiting."""
        if not self.over:
            self._begin_closing()

    def _begin_closing(self) -> None:
        self.closed = True
        self._stop_renewal()
        self._closing = self._connection.loop.create_task(self._close())  # a task that nobody refers to may vanish

    async def _close(self) -> None:
        if self.error is None and self._connection.up:
            await self.settled()
            self._connection.drop_consumer(self.number)
            try:
                await self._connection.ask(Cease(consumer=self.number), None)  # type: ignore[arg-type]
            except WaystationError:
                pass  # it ended by itself, or its connection did
        self._connection.drop_consumer(self.number)
        self._notify()

    async def settled(self) -> None:
        """Waits until the verdicts given so far are durable."""
        waiter: asyncio.Future[None] = self._connection.loop.create_future()
        self._buffer.settler.when_idle(waiter)
        await waiter


class _Asked(Ignored):
    """Waits for the broker's word on the consumer."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def set_result(self, answer: SubscribeAnswer | None) -> None:
        self._feed.accepted(answer)

    def set_exception(self, error: WaystationError) -> None:
        self._feed.refused(error)


class _Prepared(Ignored):
    """Waits for what has to be there before the consumer; it may be there already, with settings of its own."""

    def __init__(self, feed: Feed, first: bool) -> None:
        self._feed = feed
        self._first = first

    def set_result(self, answer: Any) -> None:
        self._feed.ask_broker(self._first)

    def set_exception(self, error: WaystationError) -> None:
        if isinstance(error, Conflict):
            self._feed.ask_broker(self._first)
        else:
            self._feed.refused(error)
