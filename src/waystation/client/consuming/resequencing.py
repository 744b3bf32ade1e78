"""Messages that were numbered by their sender, back in the order of their numbers. Pure but for the clock it is given.

What must hold: numbers are released in rising order, each once; what waits for a missing number is bounded in messages,
bytes and seconds; and what is not released is handed back with the reason, so that nothing disappears unseen.
One loop uses it at a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, Literal, NamedTuple, TypeVar

from waystation.client.consuming.received import Received
from waystation.client.options.values import Seconds, milliseconds, whole_number
from waystation.client.sending.producing import size_of
from waystation.errors import Invalid
from waystation.observe.events import event_logger

M = TypeVar("M", bound=Received)
Reason = Literal["duplicate", "late", "unnumbered"]

SEQUENCE_HEADER = "x-sequence"
MOST_GAPS = 1_000
"""Gaps that are remembered, the latest: what is older than all of them counts as late."""

log = event_logger("waystation.client")


class Resequenced(NamedTuple, Generic[M]):
    """What a message that arrived has made of it: those that are next in order, and those that never will be."""

    released: list[M]
    discarded: list[tuple[M, Reason]]


class _Waiting(NamedTuple, Generic[M]):
    message: M
    size: int
    since: float


def sequence_of(message: Received) -> int:
    """The number in the header `x-sequence`; raises Invalid if there is none."""
    said = message.headers.get(SEQUENCE_HEADER)
    if isinstance(said, int) and not isinstance(said, bool):
        return said
    if isinstance(said, str) and len(said) < 20 and said.removeprefix("-").isdecimal():
        return int(said)  # it came through a topic, where headers are text
    raise Invalid(f"{message.id}: the header {SEQUENCE_HEADER} has no number: {said!r:.60}")


class Resequencer(Generic[M]):
    """Puts messages back in the order of their sequence numbers, which are whole and without gaps.

    `Subscription.in_order` uses one; `add` and `due` are for loops of your own. `sequence` reads the number, by default
    from the header `x-sequence`. `first` is the number to begin with, and what is below it is a duplicate; without it,
    the lowest that arrives within `timeout` is the first. A missing number is waited for until the oldest message
    behind it has waited for `timeout` seconds, or until more than `max_messages` messages or `max_bytes` bytes wait:
    then the gap is skipped, and `on_gap` told its first and last number. A message whose number was skipped is late.
    A message that is redelivered after it was released is released again, at once.
    """

    def __init__(
        self,
        *,
        first: int | None = None,
        timeout: Seconds = 5.0,
        max_messages: int = 1_000,
        max_bytes: int = 16 * 1024 * 1024,
        sequence: Callable[[M], int] = sequence_of,
        on_gap: Callable[[int, int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("max_messages", max_messages), ("max_bytes", max_bytes)):
            if whole_number(name, value) < 1:
                raise Invalid(f"{name}: {value} is below 1")
        self.next: int | None = None if first is None else whole_number("first", first)
        """The number that is waited for; None before the first is known."""
        self.gaps = 0
        """How many numbers were skipped."""
        self._timeout_s = (milliseconds("timeout", timeout) or 0) / 1000
        self._most = max_messages
        self._most_bytes = max_bytes
        self._sequence = sequence
        self._on_gap = on_gap
        self._clock = clock
        self._waiting: dict[int, _Waiting[M]] = {}  # by number, in the order of arrival
        self._numbers: list[int] = []  # the same, as a heap
        self._bytes = 0
        self._skipped: deque[tuple[int, int]] = deque()
        self._late_below: int | None = None

    def __len__(self) -> int:
        """How many messages wait for a missing one."""
        return len(self._waiting)

    @property
    def wait(self) -> float | None:
        """In how many seconds `due` releases something, if nothing arrives before; None while nothing waits."""
        for waiting in self._waiting.values():
            return max(0.0, waiting.since + self._timeout_s - self._clock())
        return None

    @property
    def room(self) -> int:
        """How many messages fit before a gap is skipped, at least one."""
        return max(1, self._most - len(self._waiting))

    def add(self, message: M) -> Resequenced[M]:
        """Adds a message that arrived."""
        try:
            number = self._sequence(message)
        except (Invalid, ValueError, TypeError, LookupError):
            return Resequenced([], [(message, "unnumbered")])
        if self.next is not None and number < self.next:
            if self._was_skipped(number):
                return Resequenced([], [(message, "late")])
            return Resequenced([message], []) if message.redelivered else Resequenced([], [(message, "duplicate")])
        known = self._waiting.get(number)
        if known is not None and _place(known.message) != _place(message):
            return Resequenced([], [(message, "duplicate")])
        self._keep(number, message, known)
        released = self._in_a_row()
        while len(self._waiting) > self._most or self._bytes > self._most_bytes:
            self._skip()
            released += self._in_a_row()
        return Resequenced(released, [])

    def due(self) -> list[M]:
        """Messages that need not wait any longer, because a missing number did not arrive in time."""
        released: list[M] = []
        while self.wait == 0.0:
            self._skip()
            released += self._in_a_row()
        return released

    def flush(self) -> list[M]:
        """All waiting messages, in order; missing numbers are skipped."""
        released: list[M] = []
        while self._waiting:
            self._skip()
            released += self._in_a_row()
        return released

    # -- one step ------------------------------------------------------------------------------------------------------

    def _keep(self, number: int, message: M, known: _Waiting[M] | None) -> None:
        """A redelivery takes the place of the delivery before, which cannot be acknowledged any more."""
        size = size_of(message.delivered.message)
        if known is None:
            heappush(self._numbers, number)
            self._waiting[number] = _Waiting(message, size, self._clock())
        else:
            self._bytes -= known.size
            self._waiting[number] = _Waiting(message, size, known.since)
        self._bytes += size

    def _in_a_row(self) -> list[M]:
        """Those that are next, up to a missing one."""
        released: list[M] = []
        while self.next is not None and self._numbers and self._numbers[0] == self.next:
            waiting = self._waiting.pop(heappop(self._numbers))
            self._bytes -= waiting.size
            released.append(waiting.message)
            self.next += 1
        return released

    def _skip(self) -> None:
        """Goes on with the lowest number that is there."""
        lowest = self._numbers[0]
        if self.next is None:
            self._late_below = lowest
        elif self.next < lowest:
            self.gaps += lowest - self.next
            log.warning(
                "messages.missing",
                "messages {first} to {last} are missing, and are not waited for any longer",
                first=self.next,
                last=lowest - 1,
            )
            self._skipped.append((self.next, lowest - 1))
            if len(self._skipped) > MOST_GAPS:
                self._late_below = self._skipped.popleft()[1] + 1
            if self._on_gap is not None:
                self._on_gap(self.next, lowest - 1)
        self.next = lowest

    def _was_skipped(self, number: int) -> bool:
        if self._late_below is not None and number < self._late_below:
            return True
        return any(first <= number <= last for first, last in self._skipped)


def _place(message: Received) -> tuple[object, ...]:
    """What stays the same when a message is redelivered."""
    delivered = message.delivered
    number = delivered.offset if delivered.offset >= 0 else delivered.tag
    return message.queue, delivered.source, delivered.partition, number
