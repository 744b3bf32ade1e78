"""When entries are due and when they expire: the two timer wheels of a queue, and the exceptions to them.

Rows of the timer wheels are never searched for. An entry that leaves its place early leaves a stale row behind, which
does nothing when its time comes, as the state of the entry shows. One case needs a note: an entry that was delayed
until one time and is delayed again until another has rows of both, and `_moved` says which one counts.

Invariants: a DELAYED entry has a row with its true time, and if it has others, `_moved` has its true time. An entry
with an expiry has a row of it, or the expiry has passed and it is in `overdue`, or it is gone.

Only the ledger calls this.
"""

from __future__ import annotations

from array import array

import msgspec

from waystation.message import Run
from waystation.queues.ledger.moves import DELAYED, DONE, IN_FLIGHT, LEAVING, READY
from waystation.queues.ledger.runs import runs_of
from waystation.queues.ledger.states import States
from waystation.queues.ledger.timer_wheel import Stretch, TimerWheel, TimerWheelState

_NEVER = 1 << 62
_STALE_ROWS = 1024
_LOOKS = 64


class ScheduleState(msgspec.Struct, array_like=True, frozen=True):
    """A schedule as it is stored."""

    times: TimerWheelState | None
    expiries: TimerWheelState | None
    moved: dict[int, int]
    overdue: bytes


class Schedule:
    """One queue's."""

    __slots__ = ("_expiries", "_moved", "_states", "_times", "overdue")

    def __init__(self, states: States) -> None:
        self._states = states
        self._times: TimerWheel | None = None
        self._expiries: TimerWheel | None = None
        self._moved: dict[int, int] | None = None
        self.overdue: set[int] | None = None  # in flight or leaving while their expiry passed

    def delay(self, first: int, count: int, until_ms: int) -> None:
        """Entries that were made DELAYED will be due."""
        moved = self._moved
        if moved:
            for entry in range(first, first + count):
                if entry in moved:
                    moved[entry] = until_ms
        if self._times is None:
            self._times = TimerWheel()
        self._times.add(until_ms, first, count)
        if self._times.rows > 2 * self._states.delayed + _STALE_ROWS:
            self._times.sweep(self.is_due_then, _LOOKS + 2 * count)

    def drop_delay(self, first: int, count: int) -> None:
        """Those of a run that are DELAYED are about to leave their place, or to wait for another time."""
        if self._states.delayed:
            if self._moved is None:
                self._moved = {}
            for _, start, length in self._states.runs(first, count, DELAYED):
                self._moved.update(dict.fromkeys(range(start, start + length), _NEVER))

    def expire(self, first: int, count: int, when_ms: int) -> None:
        """Entries will expire."""
        if self._expiries is None:
            self._expiries = TimerWheel()
        self._expiries.add(when_ms, first, count)
        if self._expiries.rows > 2 * len(self._states) + _STALE_ROWS:
            self._expiries.sweep(self._is_alive, _LOOKS + 2 * count)

    def expire_late(self) -> None:
        """What came back by other ways than its consumer, after its expiry: the next lapse finds it."""
        if not self.overdue:
            return
        states = self._states
        back = [entry for entry in self.overdue if states.state_of(entry) in (READY, DELAYED)]
        self.overdue.difference_update(back)
        for first, count in runs_of(back):
            self.expire(first, count, 0)

    def forget(self, first: int, count: int) -> None:
        """These are done."""
        entries = range(first, first + count)
        moved, overdue = self._moved, self.overdue
        if moved:
            for entry in [entry for entry in moved if entry in entries] if count > len(moved) else entries:
                moved.pop(entry, None)
        if overdue:
            few = count <= len(overdue)
            overdue.difference_update(entries if few else [entry for entry in overdue if entry in entries])

    def expired(self, now_ms: int) -> list[Run]:
        """The runs whose expiry has come. Those in someone's hands, or on their way out, are noted as overdue."""
        runs = runs_of(self._expiries.due(now_ms)) if self._expiries is not None else []
        if runs and (self._states.unacked or self._states.leaving):
            if self.overdue is None:
                self.overdue = set()
            for first, count in runs:
                for state, start, length in self._states.runs(first, count):
                    if state is IN_FLIGHT or state is LEAVING:
                        self.overdue.update(range(start, start + length))
        return runs

    def due(self, now_ms: int) -> list[Run]:
        """The runs that were to wait until now; some may not be DELAYED any more."""
        if self._times is None:
            return []
        rows = self._times.due(now_ms)
        moved = self._moved
        if moved:
            rows = [entry for entry in rows if moved.get(entry, 0) <= now_ms]
        return runs_of(rows)

    def next_ms(self) -> int | None:
        states = self._states
        due = self._times.next_ms() if self._times is not None and states.delayed else None
        expiry = self._expiries.next_ms() if self._expiries is not None and states.chunks else None
        return due if expiry is None else expiry if due is None else min(due, expiry)

    def until(self, entry: int) -> int | None:
        """Until when a DELAYED entry is delayed: slow."""
        if self._moved and entry in self._moved:
            return self._moved[entry]
        rows = self._times.all_rows() if self._times is not None else ()
        return next((when_ms for when_ms, row in rows if row == entry), None)

    def stretch(self, from_ms: int, enough: int) -> Stretch:
        """The rows of what is due from a time on (see `TimerWheel.stretch`); some may be stale."""
        return Stretch(None, []) if self._times is None else self._times.stretch(from_ms, enough)

    def is_due_then(self, when_ms: int, entry: int) -> bool:
        """Whether a DELAYED entry waits for that very time."""
        true_ms = self._moved.get(entry, when_ms) if self._moved else when_ms
        return true_ms == when_ms and self._states.state_of(entry) is DELAYED

    def _is_alive(self, _: int, entry: int) -> bool:
        return self._states.state_of(entry) is not DONE

    def dump(self) -> ScheduleState:
        return ScheduleState(
            times=self._times.dump() if self._times is not None else None,
            expiries=self._expiries.dump() if self._expiries is not None else None,
            moved=dict(self._moved or {}),
            overdue=array("q", self.overdue or ()).tobytes(),
        )

    @classmethod
    def load(cls, state: ScheduleState, states: States) -> Schedule:
        schedule = cls(states)
        schedule._times = TimerWheel.load(state.times) if state.times is not None else None
        schedule._expiries = TimerWheel.load(state.expiries) if state.expiries is not None else None
        schedule._moved = dict(state.moved)
        overdue = array("q")
        overdue.frombytes(state.overdue)
        schedule.overdue = set(overdue)
        schedule.expire_late()
        return schedule


TIMELESS = Schedule(States())
"""The schedule of a queue where nothing waits for a time: nothing changes it."""
