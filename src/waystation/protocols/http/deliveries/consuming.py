"""A consumer on a WebSocket or an event stream: a feed of the heart on one side, a client on the other.

Credit is given to the feed only while the client reads what it is sent: what waits for a slow client is never more
than `WINDOW` messages and the socket's buffer, and of a queue's messages not more than about `WINDOW_BYTES`: then what
is left of the credit is void until the client has read. When the client goes, the feed is closed, and what was in
flight to it is redelivered to others.

Long messages are made into JSON and sent a part at a time, each in a turn of the line of long work
(`world/long_work.py`), as far as the client reads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.broker.access.types import Feed, QueueFeed, Verdict
from waystation.errors import Invalid, WaystationError
from waystation.message import Delivered
from waystation.message_json import to_json_object
from waystation.protocols.budget import FREE_BYTES
from waystation.protocols.http.deliveries.ack_ids import AckIdSource, Outcome, check_any
from waystation.protocols.http.transport.bodies import Reject, Release, Settle, Touch
from waystation.protocols.http.transport.calls import SHORT_STEP_BYTES, STEP_BYTES, convert
from waystation.protocols.http.transport.json_pieces import json_pieces
from waystation.protocols.http.transport.wire import Outlet
from waystation.world.clock import monotonic_ms

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

WINDOW = 64
"""Messages that may be on their way to a client whose socket is full."""
WINDOW_BYTES = 1024 * 1024
"""Of a queue's messages so much is opened for a client at once, or one message that is larger."""
MAX_CREDIT = 2**31 - 1
LONGEST_WAIT_S = 60.0
"""Between two looks at whether it still has to wait for a quota: one that was removed is noticed by then."""
FEW_S = 0.001
"""Less is not worth waiting for."""


class Credit(msgspec.Struct, omit_defaults=True):
    """The client can take so many more."""

    count: int


class HttpConsumer:
    """Made by a route, which opens its feed; begun when the client's end is open."""

    def __init__(
        self, dispatcher: RequestDispatcher, queue: str = "", *, acks: bool, credit: int | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self._queue = queue
        self._acks = acks
        self._allowed = MAX_CREDIT if credit is None else credit
        self._manual = credit is not None
        self._granted = 0
        self._feed: Feed | None = None
        self._source: AckIdSource | None = None
        self._outlet: Outlet | None = None
        self._due = False
        self._long = True  # what it gets next may take long
        self._left: deque[Delivered] = deque()  # long ones, and those behind them, that are not sent yet
        self._pieces: Iterator[bytes] | None = None  # of the first of them, if it is begun
        self._in_line = False
        self._ended: WaystationError | None = None

    def attach(self, feed: Feed, place: str, visibility_timeout_ms: int) -> None:
        """The feed that `deliver` and `ceased` were opened with."""
        self._feed = feed
        if isinstance(feed, QueueFeed):
            feed.portion_bytes = WINDOW_BYTES
        self._source = self._dispatcher.ack_ids.add(place, feed, visibility_timeout_ms)

    # -- what the feed calls -----------------------------------------------------------------------------------------

    def deliver(self, messages: list[Delivered]) -> None:
        self._granted -= len(messages)
        self._dispatcher.delivered(messages, acked=bool(self._queue) and not self._acks)
        if self._outlet is not None:
            size = sum(len(delivered.message.payload) for delivered in messages)
            self._long = size > FREE_BYTES
            if self._long or self._left:
                self._left += messages
                if self._feed is not None:
                    self._feed.pause()
                self._go_on_soon()
            else:
                self._outlet.deliver([self._shown(delivered) for delivered in messages])
            self._void(size)
            self._grant_soon()

    def _go_on_soon(self) -> None:
        if self._left and not self._in_line:
            self._in_line = True
            self._dispatcher.long_work.then(self._go_on)

    def _go_on(self) -> None:
        """Sends the next part of a long message, if the client can take it; else when it can."""
        self._in_line = False
        if self._outlet is None or not self._left or not self._outlet.writable:
            return
        first = self._pieces is None
        pieces = self._pieces = self._pieces or json_pieces(self._shown(self._left[0]))
        part: list[bytes] = []
        size, last = 0, False
        most = SHORT_STEP_BYTES if self._dispatcher.long_work.others_wait(self) else STEP_BYTES
        while size < most and not last:
            piece = next(pieces, None)
            last = piece is None
            part.append(piece or b"")
            size += len(part[-1])
        if last:
            self._left.popleft()
            self._pieces = None
        self._outlet.deliver_part(b"".join(part), first=first, last=last)
        self._go_on_soon()
        if not self._left:
            if self._ended is not None:
                self._outlet.finish(self._ended)
            if self._outlet.writable:
                self.drained()

    def _void(self, size: int) -> None:
        """After a portion of bytes, credit that was not used waits until the client can take more."""
        if size < WINDOW_BYTES or not self._granted or not isinstance(self._feed, QueueFeed):
            return
        self._feed.credit(-self._granted)
        if self._manual:
            self._allowed += self._granted
        self._granted = 0

    def ceased(self, error: WaystationError) -> None:
        # Others whose consumers end with the same error may be elsewhere.
        self._ended = error = self._dispatcher.explained(copy(error))
        if self._outlet is not None and not self._left:
            self._outlet.finish(error)

    def _shown(self, delivered: Delivered) -> dict[str, Any]:
        spoken = self._dispatcher.spoken
        if spoken is None:
            found = to_json_object(delivered, self._queue)
        else:
            found = to_json_object(spoken.delivered(delivered), spoken.queue(self._queue))
        if self._acks and self._source is not None:
            now_ms = monotonic_ms(self._dispatcher.broker.world.clock)
            found["ack_id"] = self._dispatcher.ack_ids.give(self._source, delivered, now_ms)
        return found

    # -- what the client's side calls --------------------------------------------------------------------------------

    def begin(self, outlet: Outlet) -> None:
        self._outlet = outlet
        if self._ended is not None:
            outlet.finish(self._ended)
        else:
            self._grant_soon()

    def filled(self) -> None:
        if self._feed is not None:
            self._feed.pause()

    def drained(self) -> None:
        if self._left:
            self._go_on_soon()
            return
        if self._feed is not None:
            self._feed.resume()
        self._grant_soon()

    def end(self) -> None:
        if self._source is not None:
            self._dispatcher.ack_ids.drop(self._source)
            self._source = self._feed = None
        self._left.clear()
        self._pieces = None

    async def receive(self, value: dict[str, Any]) -> dict[str, Any] | None:
        action = value.pop("action", None)
        if action == "credit":
            self._add_credit(convert(value, Credit).count)
            return None
        if not self._acks:
            raise Invalid(f"action: {action!r} has no meaning here: this consumer has nothing in flight")
        if action == "touch":
            touch = convert(value, Touch)
            now_ms = monotonic_ms(self._dispatcher.broker.world.clock)
            outcome = self._dispatcher.ack_ids.touch(touch.ack_ids, touch.hold_ms, now_ms, source=self._source)
        else:
            outcome = self._settle(action, value)
        await self._dispatcher.access.durable(*outcome.receipts)
        check_any(outcome)
        return {"settled": outcome.settled, "unknown": outcome.unknown}

    def _settle(self, action: Any, value: dict[str, Any]) -> Outcome:
        settle = self._dispatcher.ack_ids.settle
        if action == "ack":
            return settle(convert(value, Settle).ack_ids, Verdict.ACK, source=self._source)
        if action == "reject":
            reject = convert(value, Reject)
            verdict = Verdict.KILL if reject.dead else Verdict.REJECT
            given = {"delay_ms": reject.delay_ms, "error": reject.error}
            return settle(reject.ack_ids, verdict, source=self._source, **given)  # type: ignore[arg-type]
        if action == "release":
            release = convert(value, Release)
            return settle(release.ack_ids, Verdict.RELEASE, source=self._source, delay_ms=release.delay_ms)
        raise Invalid(f"action: {str(action)[:40]!r} is not one of ack, reject, release, touch, credit")

    # -- credit ------------------------------------------------------------------------------------------------------

    def _add_credit(self, count: int) -> None:
        if count < 1:
            raise Invalid(f"count: {count} is not above zero")
        if not self._manual:
            raise Invalid("action: credit is given by itself here; open with ?credit=0 to give it yourself")
        self._allowed = min(self._allowed + count, MAX_CREDIT)
        self._grant_soon()

    def _grant_soon(self) -> None:
        """In a turn of its own: a feed delivers while it is given credit, and must not be called again meanwhile.

        At first, and after what was long, that is one which nobody else has: JSON of long messages takes time.
        """
        if not self._due and not self._left:
            self._due = True
            if self._long:
                self._dispatcher.long_work.then(self._grant)
            else:
                asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._due = False
        if self._feed is None or self._outlet is None or self._left or not self._outlet.writable:
            return
        wait_s = self._dispatcher.access.consume_wait_s()
        if wait_s > FEW_S:
            self._dispatcher.meter.throttled += 1
            self._due = True
            asyncio.get_running_loop().call_later(min(wait_s, LONGEST_WAIT_S), self._grant)
            return
        count = min(WINDOW - self._granted, self._allowed)
        if count > 0:
            self._granted += count
            if self._manual:
                self._allowed -= count
            self._feed.credit(count)
