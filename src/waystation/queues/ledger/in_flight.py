"""Who holds what until when: the consumers of a queue, and what was handed to them.

A hold is a run of entries of one chunk and one priority that one consumer has until one deadline. It costs the same for
one entry as for a thousand. Settling a whole hold is one look in a dict; settling a part cuts it. The hold that an
entry belongs to is found from the entry's own byte: the first byte of every hold is marked (`moves.HEAD`).

Invariants: every HELD entry is in exactly one hold, and a hold has HELD entries only. Every hold lies within a row of
the deadlines that was made with its deadline; cutting a hold needs no new rows.

Only the ledger calls this. It moves the entries; here holds only begin and end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from waystation.message import Run
from waystation.queues.ledger.chunk import CHUNK, Chunk
from waystation.queues.ledger.moves import HEAD, HELD, STATE_MASK
from waystation.queues.ledger.runs import add_run, apart
from waystation.queues.ledger.states import States
from waystation.queues.ledger.timer_wheel import TimerWheel

_HELD = re.compile(b"[" + b"".join(re.escape(bytes([b])) for b in range(256) if b & STATE_MASK == HELD) + b"]")
_HEADS = re.compile(
    b"[" + b"".join(re.escape(bytes([b])) for b in range(256) if b & (STATE_MASK | HEAD) == HELD | HEAD) + b"]"
)

_STALE_ROWS = 4096
_FEW_ROWS = 64


class Holder:
    """Someone who takes entries."""

    __slots__ = ("aside", "firsts", "held", "prefetch")

    def __init__(self, prefetch: int, aside: bool) -> None:
        self.prefetch = prefetch  # 0: no limit
        self.aside = aside  # it is never the active one, and in no other's way
        self.held = 0  # entries
        self.firsts: set[int] | None = None  # of its holds


Hold = tuple[int, int, Holder]
"""(how many entries, deadline in ms, whose)."""

Part = tuple[Chunk, int, int, int, int]
"""(the chunk, its first entry, where the hold begins in it, from where to where the part is)."""


class Holds:
    """One queue's."""

    __slots__ = ("_by_first", "_deadlines", "_states", "consumers")

    def __init__(self, states: States) -> None:
        self.consumers: dict[str, Holder] = {}  # in the order of their arrival
        self._states = states
        self._by_first: dict[int, Hold] = {}
        self._deadlines: TimerWheel | None = None

    def begin(self, consumer: Holder, first: int, count: int, deadline_ms: int) -> None:
        """A hold of entries of one chunk and one priority, whose first byte is marked."""
        self._keep(consumer, first, count, deadline_ms)
        deadlines = self._deadlines
        if deadlines is None:
            deadlines = self._deadlines = TimerWheel()
        deadlines.add(deadline_ms, first * CHUNK + count - 1)
        if deadlines.rows > 4 * len(self._by_first) + _STALE_ROWS:
            deadlines.sweep(self._matters)

    def _keep(self, consumer: Holder, first: int, count: int, deadline_ms: int) -> None:
        self._by_first[first] = (count, deadline_ms, consumer)
        consumer.held += count
        if consumer.firsts is None:
            consumer.firsts = {first}
        else:
            consumer.firsts.add(first)

    def end(self, consumer: Holder, runs: Sequence[Run], unknown: list[Run]) -> list[Run]:
        """Ends the consumer's holds on these entries; returns them as runs that lie in one hold each."""
        ended: list[Run] = []
        by_first = self._by_first
        for first, count in runs if len(runs) == 1 else apart(runs):
            hold = by_first.get(first)
            if hold is not None and hold[0] == count and hold[2] is consumer:
                self._drop(first)
                ended.append((first, count))
            elif (part := self._part(consumer, first, count)) is not None:
                self._cut(*part)
                ended.append((first, count))
            elif count > 0:
                self._end_parts(consumer, first, count, ended, unknown)
        if not by_first and self._deadlines is not None and self._deadlines.rows > _FEW_ROWS:
            self._deadlines = None  # all rows are stale
        return ended

    def held(self, consumer: Holder, runs: Sequence[Run], unknown: list[Run]) -> list[Run]:
        """What `end` would end, in the same runs; nothing changes."""
        found: list[Run] = []
        for first, count in runs if len(runs) == 1 else apart(runs):
            if self._part(consumer, first, count) is not None:
                found.append((first, count))
            elif count > 0:
                for _, base, _, start, end in self._parts(consumer, first, count, unknown):
                    found.append((base + start, end - start))
        return found

    def _drop(self, first: int) -> int:
        """Ends a whole hold; returns how many entries it had."""
        count, _, consumer = self._by_first.pop(first)
        consumer.held -= count
        if consumer.firsts is not None:
            consumer.firsts.discard(first)
        return count

    def end_of_anyone(self, first: int, count: int) -> list[Run]:
        ended: list[Run] = []
        self._end_parts(None, first, count, ended, [])
        return ended

    def end_all(self, consumer: Holder) -> list[Run]:
        return [(first, self._drop(first)) for first in sorted(consumer.firsts or ())]

    def end_late(self, now_ms: int) -> list[Run]:
        """Ends the holds whose deadline has come."""
        ended: list[Run] = []
        for row in self._deadlines.due(now_ms) if self._deadlines is not None else ():
            for first, hold in self._within(row):
                if hold[1] <= now_ms:
                    ended.append((first, self._drop(first)))
        return ended

    def _within(self, row: int) -> list[tuple[int, Hold]]:
        """The holds that begin where a row of the deadlines was made for."""
        first, last = divmod(row, CHUNK)
        hold = self._by_first.get(first)
        if hold is not None and hold[0] == last + 1:
            return [(first, hold)]
        number, start = divmod(first, CHUNK)
        chunk = self._states.chunks.get(number)
        if chunk is None:
            return []
        heads = [first + found.start() for found in _HEADS.finditer(bytes(chunk[start : start + last + 1]))]
        return [(head, self._by_first[head]) for head in heads if head in self._by_first]

    def again(self, consumer: Holder, ended: list[Run], deadline_ms: int) -> None:
        """Entries whose holds were just ended are held again, for longer."""
        for first, count in ended:
            self._states.chunks[first // CHUNK][first % CHUNK] |= HEAD
            self.begin(consumer, first, count, deadline_ms)

    def next_ms(self) -> int | None:
        return self._deadlines.next_ms() if self._deadlines is not None and self._by_first else None

    def runs(self) -> list[Run]:
        return [(first, hold[0]) for first, hold in self._by_first.items()]

    def _end_parts(self, consumer: Holder | None, first: int, count: int, ended: list[Run], unknown: list[Run]) -> None:
        """The general way: ends the holds of this consumer, or of anyone, in a run of any length."""
        for chunk, base, head, start, end in self._parts(consumer, first, count, unknown):
            self._cut(chunk, base, head, start, end)
            ended.append((base + start, end - start))

    def _part(self, consumer: Holder, first: int, count: int) -> Part | None:
        """The run, if it lies in one hold of this consumer, as most do: acknowledged one by one, as the work goes."""
        number, start = divmod(first, CHUNK)
        chunk = self._states.chunks.get(number)
        if chunk is None or count < 1 or not 0 <= start < len(chunk) or chunk[start] & STATE_MASK != HELD:
            return None
        base = number * CHUNK
        head = _head_of(chunk, start)
        size, _, owner = self._by_first[base + head]
        end = start + count
        return (chunk, base, head, start, end) if owner is consumer and end <= head + size else None

    def _parts(self, consumer: Holder | None, first: int, count: int, unknown: list[Run]) -> list[Part]:
        """The parts of a run that this consumer holds, or anyone."""
        found: list[Part] = []
        if consumer is not None and not consumer.held:
            add_run(unknown, first, count)
            return found
        known = first  # up to here, everything is accounted for
        for number, chunk, start, stop in self._states.pieces(first, count):
            base = number * CHUNK
            while start < stop:
                match = _HELD.search(chunk, start, stop)
                if match is None:
                    break
                start = match.start()
                head = _head_of(chunk, start)
                size, _, owner = self._by_first[base + head]
                end = min(stop, head + size)
                if end <= start:  # to go on would be to go round in circles
                    raise LookupError(f"entry {base + start} is in flight, but at no consumer")
                if consumer is None or owner is consumer:
                    if base + start > known:
                        add_run(unknown, known, base + start - known)
                    found.append((chunk, base, head, start, end))
                    known = base + end
                start = end
        if known < first + count:
            add_run(unknown, known, first + count - known)
        return found

    def _cut(self, chunk: Chunk, base: int, head: int, start: int, end: int) -> None:
        """Takes the entries from start to end out of the hold that begins at head."""
        size, deadline_ms, owner = self._by_first[base + head]
        self._drop(base + head)
        if head < start:
            self._keep(owner, base + head, start - head, deadline_ms)
        if end < head + size:
            self._keep(owner, base + end, head + size - end, deadline_ms)
            chunk[end] |= HEAD

    def _matters(self, when_ms: int, row: int) -> bool:
        """Whether there still is a hold that a row of the deadlines was made for."""
        return any(hold[1] == when_ms for _, hold in self._within(row))


NOBODY = Holds(States())
"""The holds of a queue without consumers: nothing changes it."""


def _head_of(chunk: Chunk, index: int) -> int:
    byte = chunk[index]
    return index if byte & HEAD else chunk.rfind(byte | HEAD, 0, index)
