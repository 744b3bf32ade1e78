"""The ledger: the one state machine of per-message delivery, for queues and shared subscriptions alike.

    admit ──▶ READY ──acquire──▶ HELD ──ack, reject──▶ DONE
                ▲  ▲               │ │
                │  └──release──────┘ └──release(delay)──▶ PARKED ──its time──▶ READY
                └──hold runs out───┘
    admit(deliver_at) ──▶ PARKED          expiry, from READY and PARKED ──▶ DONE

It is pure: no I/O, no clock of its own. Time is handed in, decisions are handed out; whoever calls stores them and
moves messages. Entries are known by ids that ascend with every admission.

Invariants:
- An entry is in exactly one state. It is held by at most one consumer.
- Strictly higher priorities first; within one, the order of admission, also for what came back.
- Never early: a parked entry is not acquired before its time. Expired entries are never acquired.
- `deliveries` of an entry counts how often it was handed out; when it reaches the limit and comes back, it is
  exhausted instead of ready.

A ready entry costs one byte and its share of a run (see `states.py`, `ready_line.py`); a parked one seventeen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from waystation.errors import Invalid
from waystation.queues.errors import UnknownConsumer, UnknownHold
from waystation.queues.ready_line import ReadyLine
from waystation.queues.states import State, States
from waystation.queues.timetable import Timetable

PRIORITIES = 10
HIGHEST = PRIORITIES - 1


@dataclass(frozen=True, slots=True)
class Delivery:
    """An entry handed to a consumer."""

    entry_id: int
    deliveries: int  # this one included
    deadline_ms: int

    @property
    def redelivered(self) -> bool:
        return self.deliveries > 1


@dataclass(slots=True)
class Lapsed:
    """What time has done."""

    ready: list[int] = field(default_factory=list)  # parked until now
    returned: list[int] = field(default_factory=list)  # their holds ran out
    expired: list[int] = field(default_factory=list)
    exhausted: list[int] = field(default_factory=list)  # came back once too often


@dataclass(slots=True)
class _Hold:
    consumer: str
    deadline_ms: int


@dataclass(slots=True)
class _Consumer:
    prefetch: int  # 0: no limit
    holds: set[int] = field(default_factory=set)


MOVES: dict[tuple[State, str], State] = {
    (State.READY, "acquire"): State.HELD,
    (State.READY, "expire"): State.DONE,
    (State.READY, "cancel"): State.DONE,
    (State.PARKED, "due"): State.READY,
    (State.PARKED, "expire"): State.DONE,
    (State.PARKED, "cancel"): State.DONE,
    (State.HELD, "ack"): State.DONE,
    (State.HELD, "reject"): State.DONE,
    (State.HELD, "release"): State.READY,  # also when its hold runs out
    (State.HELD, "release later"): State.PARKED,
    (State.HELD, "expire"): State.DONE,  # given back after its expiry
    (State.HELD, "exhaust"): State.DONE,  # given back once too often
}
"""Every legal move; `moves_table()` prints it."""


def moves_table() -> str:
    return "\n".join(f"{state.name:7} {verb:14} {after.name}" for (state, verb), after in MOVES.items())


class Ledger:
    """One queue's. `max_deliveries` 0: no limit. `single_active`: only the consumer that came first is served."""

    def __init__(self, *, max_deliveries: int = 0, single_active: bool = False) -> None:
        self.max_deliveries = max_deliveries
        self.single_active = single_active
        self._states = States()
        self._lines = [ReadyLine() for _ in range(PRIORITIES)]
        self._parked = Timetable()
        self._expiries = Timetable()
        self._deadlines = Timetable()
        self._holds: dict[int, _Hold] = {}
        self._consumers: dict[str, _Consumer] = {}  # in the order of their arrival
        self._deliveries: dict[int, int] = {}  # only of entries that were handed out before
        self._overdue: set[int] = set()  # held while their expiry passed
        self._newest = -1

    # -- what there is ----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return self._states.counts[State.READY]

    @property
    def parked(self) -> int:
        return self._states.counts[State.PARKED]

    @property
    def held(self) -> int:
        return self._states.counts[State.HELD]

    def __len__(self) -> int:
        return self.ready + self.parked + self.held

    def state_of(self, entry_id: int) -> State:
        return self._states.get(entry_id)

    def deliveries_of(self, entry_id: int) -> int:
        return self._deliveries.get(entry_id, 0)

    # -- consumers --------------------------------------------------------------------------------------------------

    def attach(self, consumer: str, prefetch: int = 0) -> None:
        """A consumer comes, or changes how many entries it may hold at once (0: any number)."""
        if prefetch < 0:
            raise Invalid(f"prefetch {prefetch} is below zero")
        known = self._consumers.get(consumer)
        if known is None:
            self._consumers[consumer] = _Consumer(prefetch)
        else:
            known.prefetch = prefetch

    def detach(self, consumer: str) -> Lapsed:
        """A consumer goes; what it held comes back."""
        lapsed = Lapsed()
        gone = self._consumers.pop(consumer, None)
        for entry_id in sorted(gone.holds) if gone is not None else ():
            del self._holds[entry_id]
            self._come_back(entry_id, lapsed)
        return lapsed

    @property
    def active(self) -> str | None:
        """With `single_active`: the consumer whose turn it is."""
        return next(iter(self._consumers), None)

    # -- verbs ------------------------------------------------------------------------------------------------------

    def admit(
        self,
        entry_id: int,
        *,
        priority: int = 0,
        deliver_at_ms: int | None = None,
        expires_at_ms: int | None = None,
        deliveries: int = 0,
    ) -> None:
        """A new entry, ready now or parked until its time. `deliveries`: handed out before, in an earlier life."""
        if not 0 <= priority <= HIGHEST:
            raise Invalid(f"priority {priority} is not between 0 and {HIGHEST}")
        if entry_id <= self._newest:
            raise Invalid(f"entry {entry_id} comes after {self._newest}; ids ascend")
        self._newest = entry_id
        if deliveries:
            self._deliveries[entry_id] = deliveries
        if deliver_at_ms is None:
            self._states.add(entry_id, State.READY, priority)
            self._lines[priority].push(entry_id)
        else:
            self._states.add(entry_id, State.PARKED, priority)
            self._parked.add(deliver_at_ms, entry_id)
        if expires_at_ms is not None:
            self._expiries.add(expires_at_ms, entry_id)

    def acquire(self, consumer: str, count: int, now_ms: int, hold_ms: int) -> list[Delivery]:
        """Up to `count` entries for a consumer, as its prefetch allows. The caller has let time pass (`lapse`)."""
        who = self._attached(consumer)
        if self.single_active and consumer != self.active:
            return []
        if who.prefetch:
            count = min(count, who.prefetch - len(who.holds))
        deadline_ms = now_ms + hold_ms
        taken: list[Delivery] = []
        while len(taken) < count:
            entry_id = self._next_ready()
            if entry_id is None:
                break
            self._move(entry_id, "acquire")
            deliveries = self._deliveries[entry_id] = self._deliveries.get(entry_id, 0) + 1
            self._holds[entry_id] = _Hold(consumer, deadline_ms)
            self._deadlines.add(deadline_ms, entry_id)
            who.holds.add(entry_id)
            taken.append(Delivery(entry_id, deliveries, deadline_ms))
        return taken

    def ack(self, consumer: str, entry_id: int) -> None:
        """The work is done."""
        self._let_go(consumer, entry_id)
        self._finish(entry_id, "ack")

    def reject(self, consumer: str, entry_id: int) -> None:
        """The work cannot be done; what becomes of the message (a dead letter, or nothing) is the caller's business."""
        self._let_go(consumer, entry_id)
        self._finish(entry_id, "reject")

    def release(self, consumer: str, entry_id: int, *, until_ms: int | None = None) -> Lapsed:
        """The consumer gives it back: ready at once, or parked until a time (a retry that backs off)."""
        self._let_go(consumer, entry_id)
        lapsed = Lapsed()
        self._come_back(entry_id, lapsed, until_ms)
        return lapsed

    def touch(self, consumer: str, entry_id: int, now_ms: int, hold_ms: int) -> int:
        """The consumer needs more time; returns the new deadline."""
        hold = self._held_by(consumer, entry_id)
        hold.deadline_ms = now_ms + hold_ms
        self._deadlines.add(hold.deadline_ms, entry_id)
        return hold.deadline_ms

    def cancel(self, entry_id: int) -> bool:
        """Takes out an entry that nobody holds; False if it is held or gone."""
        if self._states.get(entry_id) not in (State.READY, State.PARKED):
            return False
        self._finish(entry_id, "cancel")
        return True

    def lapse(self, now_ms: int) -> Lapsed:
        """Lets time pass: expiries first, so that nothing expired becomes ready."""
        lapsed = Lapsed()
        for entry_id in self._expiries.due(now_ms):
            state = self._states.get(entry_id)
            if state is State.HELD:
                self._overdue.add(entry_id)
            elif state is not State.DONE:
                self._finish(entry_id, "expire")
                lapsed.expired.append(entry_id)
        for entry_id in self._deadlines.due(now_ms):
            hold = self._holds.get(entry_id)
            if hold is not None and hold.deadline_ms <= now_ms:
                self._let_go(hold.consumer, entry_id)
                self._come_back(entry_id, lapsed)
        for entry_id in self._parked.due(now_ms):
            if self._states.get(entry_id) is State.PARKED:
                self._make_ready(entry_id, "due")
                lapsed.ready.append(entry_id)
        return lapsed

    def next_ms(self) -> int | None:
        """When `lapse` may have something to do; None: never."""
        times = [table.next_ms() for table in (self._expiries, self._deadlines, self._parked)]
        return min((when for when in times if when is not None), default=None)

    # -- parts of the above -----------------------------------------------------------------------------------------

    def _attached(self, consumer: str) -> _Consumer:
        who = self._consumers.get(consumer)
        if who is None:
            raise UnknownConsumer(f"consumer {consumer!r} is not attached to this queue")
        return who

    def _held_by(self, consumer: str, entry_id: int) -> _Hold:
        hold = self._holds.get(entry_id)
        if hold is None or hold.consumer != consumer:
            raise UnknownHold(
                f"consumer {consumer!r} does not hold message {entry_id}: it was settled, or its hold ran out"
            )
        return hold

    def _let_go(self, consumer: str, entry_id: int) -> None:
        self._held_by(consumer, entry_id)
        del self._holds[entry_id]
        self._consumers[consumer].holds.discard(entry_id)

    def _next_ready(self) -> int | None:
        if not self._states.counts[State.READY]:
            return None
        for line in reversed(self._lines):
            while (entry_id := line.pop()) is not None:
                if self._states.get(entry_id) is State.READY:
                    return entry_id
        return None

    def _move(self, entry_id: int, verb: str) -> None:
        """Every change of state goes through the table."""
        self._states.move(entry_id, MOVES[self._states.get(entry_id), verb])

    def _make_ready(self, entry_id: int, verb: str) -> None:
        self._move(entry_id, verb)
        self._lines[self._states.priority(entry_id)].push(entry_id)

    def _come_back(self, entry_id: int, lapsed: Lapsed, until_ms: int | None = None) -> None:
        """An entry that was held is nobody's again."""
        if entry_id in self._overdue:
            self._finish(entry_id, "expire")
            lapsed.expired.append(entry_id)
        elif self.max_deliveries and self._deliveries[entry_id] >= self.max_deliveries:
            self._finish(entry_id, "exhaust")
            lapsed.exhausted.append(entry_id)
        elif until_ms is not None:
            self._move(entry_id, "release later")
            self._parked.add(until_ms, entry_id)
        else:
            self._make_ready(entry_id, "release")
            lapsed.returned.append(entry_id)

    def _finish(self, entry_id: int, verb: str) -> None:
        self._move(entry_id, verb)
        self._deliveries.pop(entry_id, None)
        self._overdue.discard(entry_id)


def settle_many(ledger: Ledger, consumer: str, entry_ids: Iterable[int]) -> list[int]:
    """Acks what the consumer holds of a batch; returns what it does not hold, which had no effect."""
    unknown: list[int] = []
    for entry_id in entry_ids:
        try:
            ledger.ack(consumer, entry_id)
        except UnknownHold:
            unknown.append(entry_id)
    return unknown
