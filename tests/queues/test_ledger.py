"""The ledger against a naive model that keeps every entry as an object, and the promises one by one."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from waystation.errors import Conflict, Invalid
from waystation.queues.ledger import Ledger, moves_table, settle_many
from waystation.queues.states import CHUNK, State

HOLD_MS = 1_000
CONSUMERS = ("anna", "bob", "carl")


@dataclass
class Entry:
    id: int
    priority: int
    deliver_at: int | None
    expires_at: int | None
    state: State
    deliveries: int = 0
    holder: str | None = None
    deadline: int = 0


class Naive:
    """The same promises, in the plainest way."""

    def __init__(self, max_deliveries: int) -> None:
        self.entries: dict[int, Entry] = {}
        self.max_deliveries = max_deliveries

    def in_line(self) -> list[Entry]:
        ready = [entry for entry in self.entries.values() if entry.state is State.READY]
        return sorted(ready, key=lambda entry: (-entry.priority, entry.id))

    def held_by(self, consumer: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.holder == consumer]

    def come_back(self, entry: Entry, now: int, until: int | None = None) -> None:
        entry.holder = None
        expired = entry.expires_at is not None and entry.expires_at <= now
        if expired or (self.max_deliveries and entry.deliveries >= self.max_deliveries):
            del self.entries[entry.id]
        elif until is not None:
            entry.state, entry.deliver_at = State.PARKED, until
        else:
            entry.state = State.READY

    def lapse(self, now: int) -> None:
        for entry in list(self.entries.values()):
            if entry.state is not State.HELD and entry.expires_at is not None and entry.expires_at <= now:
                del self.entries[entry.id]
            elif entry.state is State.HELD and entry.deadline <= now:
                self.come_back(entry, now)
        for entry in self.entries.values():
            if entry.state is State.PARKED and (entry.deliver_at or 0) <= now:
                entry.state = State.READY


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(max_deliveries=3)
        self.model = Naive(3)
        self.now = 1_700_000_000_000
        self.next_id = 0
        self.prefetch: dict[str, int] = {}

    @rule(
        priority=st.integers(0, 9),
        delay=st.none() | st.integers(0, 200_000),
        ttl=st.none() | st.integers(1, 200_000),
        skip=st.integers(0, 2) | st.just(CHUNK),
    )
    def admit(self, priority: int, delay: int | None, ttl: int | None, skip: int) -> None:
        entry_id = self.next_id + skip
        self.next_id = entry_id + 1
        deliver_at = None if delay is None else self.now + delay
        expires_at = None if ttl is None else self.now + ttl
        self.ledger.admit(entry_id, priority=priority, deliver_at_ms=deliver_at, expires_at_ms=expires_at)
        state = State.READY if deliver_at is None else State.PARKED
        self.model.entries[entry_id] = Entry(entry_id, priority, deliver_at, expires_at, state)

    @rule(consumer=st.sampled_from(CONSUMERS), prefetch=st.integers(0, 4))
    def attach(self, consumer: str, prefetch: int) -> None:
        self.ledger.attach(consumer, prefetch)
        self.prefetch[consumer] = prefetch

    @rule(consumer=st.sampled_from(CONSUMERS))
    def detach(self, consumer: str) -> None:
        self.ledger.lapse(self.now)
        self.model.lapse(self.now)
        self.ledger.detach(consumer)
        self.prefetch.pop(consumer, None)
        for entry in self.model.held_by(consumer):
            self.model.come_back(entry, self.now)

    @precondition(lambda self: self.prefetch)
    @rule(data=st.data(), count=st.integers(1, 5))
    def acquire(self, data: st.DataObject, count: int) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.prefetch)))
        self.ledger.lapse(self.now)
        self.model.lapse(self.now)
        room = self.prefetch[consumer] - len(self.model.held_by(consumer)) if self.prefetch[consumer] else count
        expected = self.model.in_line()[: max(0, min(count, room))]
        deliveries = self.ledger.acquire(consumer, count, self.now, HOLD_MS)
        for entry in expected:
            entry.state, entry.holder, entry.deadline = State.HELD, consumer, self.now + HOLD_MS
            entry.deliveries += 1
        assert [(d.entry_id, d.deliveries) for d in deliveries] == [(e.id, e.deliveries) for e in expected]

    def _some_held(self, data: st.DataObject) -> Entry | None:
        held = [entry for entry in self.model.entries.values() if entry.state is State.HELD]
        return data.draw(st.sampled_from(held)) if held else None

    @rule(data=st.data(), verb=st.sampled_from(["ack", "reject", "release", "later", "touch"]))
    def settle(self, data: st.DataObject, verb: str) -> None:
        entry = self._some_held(data)
        if entry is None or entry.holder is None:
            return
        consumer, ledger = entry.holder, self.ledger
        self.ledger.lapse(self.now)
        self.model.lapse(self.now)
        if entry.holder is None or entry.id not in self.model.entries:
            with pytest.raises(Conflict):
                ledger.ack(consumer, entry.id)
        elif verb == "ack":
            ledger.ack(consumer, entry.id)
            del self.model.entries[entry.id]
        elif verb == "reject":
            ledger.reject(consumer, entry.id)
            del self.model.entries[entry.id]
        elif verb == "touch":
            entry.deadline = ledger.touch(consumer, entry.id, self.now, 5 * HOLD_MS)
        else:
            until = self.now + 70_000 if verb == "later" else None
            ledger.release(consumer, entry.id, until_ms=until)
            self.model.come_back(entry, self.now, until)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if not self.model.entries:
            return
        entry = data.draw(st.sampled_from(list(self.model.entries.values())))
        assert self.ledger.cancel(entry.id) == (entry.state is not State.HELD)
        if entry.state is not State.HELD:
            del self.model.entries[entry.id]

    @rule(by=st.sampled_from([1, 500, 1_000, 30_000, 70_000, 200_000]))
    def time_passes(self, by: int) -> None:
        self.now += by
        lapsed = self.ledger.lapse(self.now)
        before = {entry.id: entry.state for entry in self.model.entries.values()}
        self.model.lapse(self.now)
        gone = before.keys() - self.model.entries.keys()
        assert gone == {*lapsed.expired, *lapsed.exhausted}

    @rule()
    def to_the_next_moment(self) -> None:
        """What `next_ms` says is soon enough: nothing happens before it."""
        next_ms = self.ledger.next_ms()
        if next_ms is not None and next_ms - 1 > self.now:
            self.now = next_ms - 1
            quiet = self.ledger.lapse(self.now)
            assert [*quiet.ready, *quiet.returned, *quiet.expired, *quiet.exhausted] == []
            self.model.lapse(self.now)

    @invariant()
    def they_agree(self) -> None:
        by_state = dict.fromkeys(State, 0)
        for entry in self.model.entries.values():
            by_state[entry.state] += 1
            assert self.ledger.state_of(entry.id) is entry.state
        counts = (self.ledger.ready, self.ledger.parked, self.ledger.held)
        assert counts == (by_state[State.READY], by_state[State.PARKED], by_state[State.HELD])


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_higher_priorities_go_first_and_each_is_first_in_first_out() -> None:
    ledger = Ledger()
    ledger.attach("c")
    for entry_id, priority in enumerate([0, 9, 0, 5, 9]):
        ledger.admit(entry_id, priority=priority)
    assert [d.entry_id for d in ledger.acquire("c", 10, 0, 1)] == [1, 4, 3, 0, 2]


def test_what_comes_back_goes_before_what_came_later() -> None:
    ledger = Ledger()
    ledger.attach("c")
    for entry_id in range(5):
        ledger.admit(entry_id)
    ledger.acquire("c", 3, 0, 1_000)
    ledger.release("c", 1)
    ledger.release("c", 0)
    assert [(d.entry_id, d.redelivered) for d in ledger.acquire("c", 9, 0, 1_000)] == [
        (0, True),
        (1, True),
        (3, False),
        (4, False),
    ]


def test_only_the_first_consumer_is_served_where_one_alone_may_be_active() -> None:
    ledger = Ledger(single_active=True)
    ledger.attach("first")
    ledger.attach("second")
    ledger.admit(1)
    assert ledger.acquire("second", 1, 0, 1_000) == []
    assert len(ledger.acquire("first", 1, 0, 1_000)) == 1
    assert ledger.detach("first").returned == [1]
    assert [d.entry_id for d in ledger.acquire("second", 1, 0, 1_000)] == [1]


def test_an_ack_of_a_foreign_or_lapsed_hold_is_a_conflict_without_effect() -> None:
    ledger = Ledger()
    ledger.attach("a")
    ledger.attach("b")
    ledger.admit(1)
    ledger.acquire("a", 1, 0, 1_000)
    with pytest.raises(Conflict, match="does not hold"):
        ledger.ack("b", 1)
    assert ledger.lapse(1_000).returned == [1]
    with pytest.raises(Conflict, match="hold ran out"):
        ledger.ack("a", 1)
    assert ledger.ready == 1
    ledger.acquire("b", 1, 1_000, 1_000)
    assert settle_many(ledger, "b", [1, 2]) == [2]


@pytest.mark.parametrize("priority", [-1, 10])
def test_a_priority_out_of_range_is_refused(priority: int) -> None:
    with pytest.raises(Invalid, match="priority"):
        Ledger().admit(1, priority=priority)


def bytes_per_entry(ledger: Ledger, admit: Callable[[int], None], count: int = 100_000) -> float:
    """What the interpreter really allocates for `count` entries."""
    gc.collect()
    tracemalloc.start()
    try:
        for entry_id in range(count):
            admit(entry_id)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(ledger) == count
    return size / count


def test_a_backlog_in_a_row_costs_little_more_than_a_byte_each() -> None:
    ledger = Ledger()
    assert bytes_per_entry(ledger, ledger.admit) < 2


def test_a_backlog_of_mixed_priorities_stays_below_twenty_bytes_each() -> None:
    ledger = Ledger()
    assert bytes_per_entry(ledger, lambda entry_id: ledger.admit(entry_id, priority=entry_id % 10)) < 20


def test_parked_entries_stay_below_forty_bytes_each_and_come_in_order() -> None:
    ledger = Ledger()
    start, count, spread_ms = 1_700_000_000_000, 100_000, 40_000_000

    def when(entry_id: int) -> int:
        return start + entry_id * 7_919 % count * spread_ms // count

    assert bytes_per_entry(ledger, lambda entry_id: ledger.admit(entry_id, deliver_at_ms=when(entry_id)), count) < 40
    ready = ledger.lapse(start + spread_ms).ready
    assert ready == sorted(range(count), key=lambda entry_id: (when(entry_id), entry_id))


def test_the_moves_can_be_printed() -> None:
    assert "HELD    release later  PARKED" in moves_table()
