"""What is in flight: the consumers of a queue, what was delivered to each of them, and until when it is theirs.

An in-flight run has entries of one chunk and one priority that one consumer has until one deadline: the end of their
visibility timeout. It costs the same for one entry as for a thousand. Settling a whole run is one look in a dict;
settling a part cuts it. The run that an entry belongs to is found from the entry's own byte: the first byte of every
run in flight is marked (`moves.HEAD`).

Invariants: every IN_FLIGHT entry is in exactly one such run, and such a run has IN_FLIGHT entries only. Every one lies
within a row of the deadlines that was made with its deadline; cutting one needs no new rows.

Only the ledger calls this. It moves the entries; here runs only begin and end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from waystation.message import Run
from waystation.queues.ledger.chunk import CHUNK, Chunk
from waystation.queues.ledger.moves import HEAD, IN_FLIGHT, STATE_MASK
from waystation.queues.ledger.runs import add_run, apart
from waystation.queues.ledger.states import States
from waystation.queues.ledger.timer_wheel import TimerWheel

_IN_FLIGHT = re.compile(
    b"[" + b"".join(re.escape(bytes([b])) for b in range(256) if b & STATE_MASK == IN_FLIGHT) + b"]"
)
_HEADS = re.compile(
    b"[" + b"".join(re.escape(bytes([b])) for b in range(256) if b & (STATE_MASK | HEAD) == IN_FLIGHT | HEAD) + b"]"
)

_STALE_ROWS = 4096
_FEW_ROWS = 64


class LedgerConsumer:
    """Someone who takes entries."""

    __slots__ = ("aside", "firsts", "prefetch", "unacked")

    def __init__(self, prefetch: int, aside: bool) -> None:
        self.prefetch = prefetch  # 0: no limit
        self.aside = aside  # it is never the active one, and in no other's way
        self.unacked = 0  # entries
        self.firsts: set[int] | None = None  # of its runs in flight


InFlightRun = tuple[int, int, LedgerConsumer]
"""(how many entries, deadline in ms, whose)."""

Part = tuple[Chunk, int, int, int, int]
"""(the chunk, its first entry, where the in-flight run begins in it, from where to where the part is)."""


class InFlight:
    """One queue's."""

    __slots__ = ("_by_first", "_deadlines", "_states", "consumers")

    def __init__(self, states: States) -> None:
        self.consumers: dict[str, LedgerConsumer] = {}  # in the order of their arrival
        self._states = states
        self._by_first: dict[int, InFlightRun] = {}
        self._deadlines: TimerWheel | None = None

    def begin(self, consumer: LedgerConsumer, first: int, count: int, deadline_ms: int) -> None:
        """Entries of one chunk and one priority, whose first byte is marked, are in flight."""
        self._keep(consumer, first, count, deadline_ms)
        deadlines = self._deadlines
        if deadlines is None:
            deadlines = self._deadlines = TimerWheel()
        deadlines.add(deadline_ms, first * CHUNK + count - 1)
        if deadlines.rows > 4 * len(self._by_first) + _STALE_ROWS:
            deadlines.sweep(self._matters)

    def _keep(self, consumer: LedgerConsumer, first: int, count: int, deadline_ms: int) -> None:
        self._by_first[first] = (count, deadline_ms, consumer)
        consumer.unacked += count
        if consumer.firsts is None:
            consumer.firsts = {first}
        else:
            consumer.firsts.add(first)

    def end(self, consumer: LedgerConsumer, runs: Sequence[Run], unknown: list[Run]) -> list[Run]:
        """These entries are not in flight to the consumer any more; returns them as runs that lie in one in-flight run
        each."""
        ended: list[Run] = []
        by_first = self._by_first
        for first, count in runs if len(runs) == 1 else apart(runs):
            known = by_first.get(first)
            if known is not None and known[0] == count and known[2] is consumer:
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

    def find(self, consumer: LedgerConsumer, runs: Sequence[Run], unknown: list[Run]) -> list[Run]:
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
        """Ends a whole run; returns how many entries it had."""
        count, _, consumer = self._by_first.pop(first)
        consumer.unacked -= count
        if consumer.firsts is not None:
            consumer.firsts.discard(first)
        return count

    def end_of_anyone(self, first: int, count: int) -> list[Run]:
        ended: list[Run] = []
        self._end_parts(None, first, count, ended, [])
        return ended

    def end_all(self, consumer: LedgerConsumer) -> list[Run]:
        return [(first, self._drop(first)) for first in sorted(consumer.firsts or ())]

    def end_late(self, now_ms: int) -> list[Run]:
        """Ends the runs whose deadline has come."""
        ended: list[Run] = []
        for row in self._deadlines.due(now_ms) if self._deadlines is not None else ():
            for first, known in self._within(row):
                if known[1] <= now_ms:
                    ended.append((first, self._drop(first)))
        return ended

    def _within(self, row: int) -> list[tuple[int, InFlightRun]]:
        """The in-flight runs that begin where a row of the deadlines was made for."""
        first, last = divmod(row, CHUNK)
        known = self._by_first.get(first)
        if known is not None and known[0] == last + 1:
            return [(first, known)]
        number, start = divmod(first, CHUNK)
        chunk = self._states.chunks.get(number)
        if chunk is None:
            return []
        heads = [first + found.start() for found in _HEADS.finditer(bytes(chunk[start : start + last + 1]))]
        return [(head, self._by_first[head]) for head in heads if head in self._by_first]

    def again(self, consumer: LedgerConsumer, ended: list[Run], deadline_ms: int) -> None:
        """Entries that were just ended are in flight again, for longer."""
        for first, count in ended:
            self._states.chunks[first // CHUNK][first % CHUNK] |= HEAD
            self.begin(consumer, first, count, deadline_ms)

    def next_ms(self) -> int | None:
        return self._deadlines.next_ms() if self._deadlines is not None and self._by_first else None

    def runs(self) -> list[Run]:
        return [(first, known[0]) for first, known in self._by_first.items()]

    def _end_parts(
        self, consumer: LedgerConsumer | None, first: int, count: int, ended: list[Run], unknown: list[Run]
    ) -> None:
        """The general way: ends what is in flight to this consumer, or to anyone, in a run of any length."""
        for chunk, base, head, start, end in self._parts(consumer, first, count, unknown):
            self._cut(chunk, base, head, start, end)
            ended.append((base + start, end - start))

    def _part(self, consumer: LedgerConsumer, first: int, count: int) -> Part | None:
        """The run, if it lies in one in-flight run of this consumer, as most do: acknowledged one by one, as the work
        goes."""
        number, start = divmod(first, CHUNK)
        chunk = self._states.chunks.get(number)
        if chunk is None or count < 1 or not 0 <= start < len(chunk) or chunk[start] & STATE_MASK != IN_FLIGHT:
            return None
        base = number * CHUNK
        head = _head_of(chunk, start)
        size, _, owner = self._by_first[base + head]
        end = start + count
        return (chunk, base, head, start, end) if owner is consumer and end <= head + size else None

    def _parts(self, consumer: LedgerConsumer | None, first: int, count: int, unknown: list[Run]) -> list[Part]:
        """The parts of a run that are in flight to this consumer, or to anyone."""
        found: list[Part] = []
        if consumer is not None and not consumer.unacked:
            add_run(unknown, first, count)
            return found
        known = first  # up to here, everything is accounted for
        for number, chunk, start, stop in self._states.pieces(first, count):
            base = number * CHUNK
            while start < stop:
                match = _IN_FLIGHT.search(chunk, start, stop)
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
        """Takes the entries from start to end out of the in-flight run that begins at head."""
        size, deadline_ms, owner = self._by_first[base + head]
        self._drop(base + head)
        if head < start:
            self._keep(owner, base + head, start - head, deadline_ms)
        if end < head + size:
            self._keep(owner, base + end, head + size - end, deadline_ms)
            chunk[end] |= HEAD

    def _matters(self, when_ms: int, row: int) -> bool:
        """Whether there still is an in-flight run that a row of the deadlines was made for."""
        return any(known[1] == when_ms for _, known in self._within(row))


NOBODY = InFlight(States())
"""What is in flight of a queue without consumers: nothing changes it."""


def _head_of(chunk: Chunk, index: int) -> int:
    byte = chunk[index]
    return index if byte & HEAD else chunk.rfind(byte | HEAD, 0, index)
