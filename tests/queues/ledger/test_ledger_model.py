"""The ledger against a naive model that keeps every entry as an object: any verbs in any order, and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.queues.ledger.naive import Came, Entry, Naive, ids_of
from waystation.queues.ledger import in_flight, schedule
from waystation.queues.ledger import timer_wheel as timer_wheel
from waystation.queues.ledger.ledger import CHUNK, Lapsed, Ledger, LedgerState, Outcome, Run, State
from waystation.queues.ledger.runs import joined

TIMEOUT_MS = 1_000
CONSUMERS = ("anna", "bob", "carl")
DELAYS = st.integers(0, 3_000) | st.integers(0, 300_000)
EVERYTHING = (0, 10**15)
VERDICTS = ("ack", "reject", "reserve", "release", "later", "postpone", "touch")


def is_tidy(runs: Sequence[Run]) -> bool:
    return all(count > 0 for _, count in runs) and all(a[0] + a[1] < b[0] for a, b in pairwise(runs))


class LedgerMachine(RuleBasedStateMachine):
    longest = 9  # of the runs that consumers speak of

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.model = Naive()
        self.now = 1_700_000_000_000  # by the wall clock
        self.since = 5_000  # by the monotonic one
        self.next_id = 0
        self.chunks: set[int] = set()
        self.ledger.on_chunk_gone = self.chunks.remove
        self.grants: list[Run] = []

    @initialize(consumers=st.integers(0, 3), count=st.integers(0, 8))
    def begin(self, consumers: int, count: int) -> None:
        for consumer in CONSUMERS[:consumers]:
            self.attach(consumer=consumer, prefetch=0, aside=False)
        if count:
            self.admit_run(count=count, priority=0, delay=None, ttl=None, skip=-1)

    # -- coming -----------------------------------------------------------------------------------------------------

    def _next_id(self, skip: int) -> int:
        """Skipping -1: to just before the end of a chunk, so that runs reach over it."""
        return self.next_id + skip if skip >= 0 else max(self.next_id, (self.next_id // CHUNK + 1) * CHUNK - 2)

    def _came(self, first: int, count: int, **fields: int | None) -> None:
        self.next_id = first + count
        due_at = fields.get("due_at")
        for entry in range(first, first + count):
            self.chunks.add(entry // CHUNK)
            self.model.entries[entry] = Entry(
                entry,
                fields.get("priority") or 0,
                State.READY if due_at is None else State.DELAYED,
                due_at,
                fields.get("expires_at"),
                fields.get("deliveries") or 0,
                fields.get("limit") or 0,
            )

    @rule(
        priority=st.integers(0, 15) | st.integers(0, 255),
        delay=st.none() | DELAYS,
        ttl=st.none() | DELAYS,
        deliveries=st.sampled_from([0, 0, 0, 1, 2, 253, 300]),
        limit=st.sampled_from([0, 0, 0, 1, 2, 4, 256, 301]),
        skip=st.sampled_from([0, 0, 0, 1, -1, CHUNK]),
    )
    def admit(self, priority: int, delay: int | None, ttl: int | None, deliveries: int, limit: int, skip: int) -> None:
        entry = self._next_id(skip)
        due_at = None if delay is None else self.now + delay
        expires_at = None if ttl is None else self.now + ttl
        self.ledger.admit(
            entry,
            priority=priority,
            deliver_at_ms=due_at,
            expires_at_ms=expires_at,
            deliveries=deliveries,
            max_deliveries=limit,
        )
        self._came(
            entry, 1, priority=priority, due_at=due_at, expires_at=expires_at, deliveries=deliveries, limit=limit
        )

    @rule(
        count=st.integers(1, 8),
        priority=st.sampled_from([0, 0, 0, 5, 15, 16, 100, 255]),
        delay=st.none() | st.none() | DELAYS,
        ttl=st.none() | st.none() | DELAYS,
        skip=st.sampled_from([0, 0, 1, -1]),
        limit=st.sampled_from([0, 0, 0, 2, 300]),
    )
    def admit_run(
        self, count: int, priority: int, delay: int | None, ttl: int | None, skip: int, limit: int = 0
    ) -> None:
        first = self._next_id(skip)
        due_at = None if delay is None else self.now + delay
        expires_at = None if ttl is None else self.now + ttl
        self.ledger.admit_run(
            first, count, priority, deliver_at_ms=due_at, expires_at_ms=expires_at, max_deliveries=limit
        )
        self._came(first, count, priority=priority, due_at=due_at, expires_at=expires_at, limit=limit)

    @rule(limit=st.sampled_from([0, 0, 2, 3, 256]), single=st.sampled_from([False, False, True]), kept=st.booleans())
    def change_settings(self, limit: int, single: bool, kept: bool) -> None:
        for it in (self.ledger, self.model):
            it.max_deliveries, it.single_active, it.keeps_dead = limit, single, kept

    # -- consumers --------------------------------------------------------------------------------------------------

    @rule(
        consumer=st.sampled_from(CONSUMERS),
        prefetch=st.sampled_from([0, 0, 1, 4, 9]),
        aside=st.sampled_from([False, False, True]),
    )
    def attach(self, consumer: str, prefetch: int, aside: bool) -> None:
        self.ledger.attach(consumer, prefetch, aside=aside)
        self.model.prefetch[consumer] = prefetch
        self.model.aside.discard(consumer)
        if aside:
            self.model.aside.add(consumer)

    @rule(consumer=st.sampled_from(CONSUMERS))
    def set_aside(self, consumer: str) -> None:
        self.ledger.set_aside(consumer)
        if consumer in self.model.prefetch:
            self.model.aside.add(consumer)

    def detach(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(CONSUMERS))
        lapsed = self.ledger.detach(consumer)
        self.model.prefetch.pop(consumer, None)
        self.model.aside.discard(consumer)
        self._check_came(lapsed, self.model.come_back(self.model.in_flight_to(consumer)))
        assert lapsed.ready == []

    @precondition(lambda self: self.model.prefetch)
    @rule(
        data=st.data(),
        count=st.integers(1, 12),
        timeout_ms=st.sampled_from([1, TIMEOUT_MS, 30 * TIMEOUT_MS, 600 * TIMEOUT_MS]),
        lapse=st.booleans(),
    )
    def acquire(self, data: st.DataObject, count: int, timeout_ms: int, lapse: bool) -> None:
        if lapse:
            self._lapse()
        consumer = data.draw(st.sampled_from(sorted(self.model.prefetch)))
        grants = self.ledger.acquire(consumer, count, self.since, timeout_ms)
        expected = self.model.acquire(consumer, count, self.since + timeout_ms)
        granted = [(g.first + n, g.deliveries, g.deadline_ms) for g in grants for n in range(g.count)]
        assert granted == [(entry.id, entry.deliveries, self.since + timeout_ms) for entry in expected]
        for one, other in pairwise(grants):
            assert one.first + one.count != other.first or one.deliveries != other.deliveries, "as long as possible"
        self.grants += [(grant.first, grant.count) for grant in grants]

    # -- verdicts ---------------------------------------------------------------------------------------------------

    def _some_runs(self, data: st.DataObject, entries: list[Entry]) -> list[Run]:
        """Around some entries: whole grants, parts of them, things that never were; in any order, and overlapping."""
        places = sorted(entry.id for entry in entries) or [0]
        near = st.tuples(st.sampled_from(places), st.integers(-3, self.longest))
        runs = near if not self.grants else near | near | st.sampled_from(self.grants[-9:])
        return data.draw(st.lists(runs, min_size=1, max_size=4))

    @precondition(lambda self: self.ledger.unacked)
    @rule(data=st.data(), verb=st.sampled_from([*VERDICTS, "touch"]))
    def settle(self, data: st.DataObject, verb: str) -> None:
        entry = data.draw(st.sampled_from([entry for entry in self.model.entries.values() if entry.consumer]))
        consumer = entry.consumer if entry.consumer and data.draw(st.integers(0, 9)) else "carl"
        self._settle(data, verb, consumer, self._some_runs(data, self.model.in_flight_to(consumer)))

    def settle_everything(self, data: st.DataObject) -> None:
        verb = data.draw(st.sampled_from(VERDICTS))
        self._settle(data, verb, data.draw(st.sampled_from(CONSUMERS)), [EVERYTHING])

    def _settle(self, data: st.DataObject, verb: str, consumer: str, runs: list[Run]) -> None:
        in_flight = [entry for entry in self.model.some(runs) if entry.consumer == consumer]
        if verb == "touch":
            timeout_ms = data.draw(st.sampled_from([1, TIMEOUT_MS, 5 * TIMEOUT_MS, 600 * TIMEOUT_MS]))
            self._check_unknown(runs, in_flight, self.ledger.touch(consumer, runs, self.since, timeout_ms))
            for entry in in_flight:
                entry.deadline = self.since + timeout_ms
            return
        if verb == "postpone":
            until = self.now + data.draw(DELAYS)
            assert ids_of(self.ledger.postpone(consumer, runs, until)) == {entry.id for entry in in_flight}
            for entry in in_flight:
                entry.state, entry.consumer, entry.due_at = State.DELAYED, None, until
                entry.deliveries -= 1
                self.model.back_by_other_ways(entry)
            return
        if verb in ("release", "later"):
            back_at = self.now + data.draw(DELAYS) if verb == "later" else None
            planned = self.ledger.plan_release(consumer, runs)
            outcome = self.ledger.release(consumer, runs, back_at)
            assert planned == outcome, "what is written before is what happens"
            self._check_came(outcome, self.model.come_back(in_flight, back_at))
            assert outcome.done == []
        else:
            unknown: list[Run] = []
            found = self.ledger.in_flight_of(consumer, runs, unknown)
            outcome = getattr(self.ledger, verb)(consumer, runs)
            assert (joined(found), unknown) == (outcome.done, outcome.unknown)
            assert is_tidy(outcome.done)
            assert ids_of(outcome.done) == {entry.id for entry in in_flight}
            self._check_came(outcome, Came(set(), set(), set()))
            for entry in in_flight:
                self._settle_one(entry, verb)
        self._check_unknown(runs, in_flight, outcome.unknown)

    def _settle_one(self, entry: Entry, verb: str) -> None:
        if verb == "ack":
            self.model.end(entry)
        elif verb == "reject":
            self.model.die(entry)
        else:
            entry.state, entry.consumer = State.LEAVING, None

    # -- taking out -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.entries)
    @rule(
        data=st.data(),
        verb=st.sampled_from(
            ["cancel", "drop_oldest", "take_out", "claim", "claim_these", "finish", "note_delivered", "delay"]
        ),
    )
    def elsewhere(self, data: st.DataObject, verb: str) -> None:
        """What others do to entries, whoever has them."""
        getattr(self, verb)(data)

    @rule(
        data=st.data(), verb=st.sampled_from(["detach", "purge", "finish_everything", "settle_everything", "restart"])
    )
    def drastic(self, data: st.DataObject, verb: str) -> None:
        """What leaves little to look at: not so often."""
        if data.draw(st.integers(0, 3)) == 3:
            getattr(self, verb)(data)

    def _some_entry(self, data: st.DataObject) -> Entry:
        return data.draw(st.sampled_from(list(self.model.entries.values())))

    def cancel(self, data: st.DataObject) -> None:
        entry = self._some_entry(data)
        waits = entry.state in (State.READY, State.DELAYED)
        assert self.ledger.cancel(entry.id) == waits
        assert not self.ledger.cancel(self.next_id)
        if waits:
            self.model.end(entry)

    def purge(self, _: st.DataObject) -> None:
        waiting = [e for e in self.model.entries.values() if e.state in (State.READY, State.DELAYED)]
        purged = self.ledger.purge()
        assert is_tidy(purged)
        assert ids_of(purged) == {entry.id for entry in waiting}
        for entry in waiting:
            self.model.end(entry)

    def drop_oldest(self, _: st.DataObject) -> None:
        oldest = min(self.model.in_line(), key=lambda entry: entry.id, default=None)
        assert self.ledger.drop_oldest() == (oldest.id if oldest else None)
        if oldest:
            self.model.die(oldest)

    def take_out(self, data: st.DataObject) -> None:
        entry = self._some_entry(data)
        assert self.ledger.take_out(entry.id) == (entry.state is not State.LEAVING)
        assert not self.ledger.take_out(self.next_id)
        entry.state, entry.consumer = State.LEAVING, None

    def claim(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 5))
        self._claimed(self.ledger.claim(count), self.model.in_line()[:count])

    def claim_these(self, data: st.DataObject) -> None:
        runs = self._some_runs(data, list(self.model.entries.values()))
        waiting = [entry for entry in self.model.some(runs) if entry.state in (State.READY, State.DELAYED)]
        self._claimed(self.ledger.claim_these(runs), waiting)

    def _claimed(self, claimed: list[Run], expected: list[Entry]) -> None:
        """They are out of reach, and no delivery is counted."""
        assert is_tidy(claimed)
        assert ids_of(claimed) == {entry.id for entry in expected}
        for entry in expected:
            entry.state = State.LEAVING

    def finish(self, data: st.DataObject) -> None:
        self._finish(self._some_runs(data, list(self.model.entries.values())))

    def finish_everything(self, _: st.DataObject) -> None:
        self._finish([EVERYTHING])

    def _finish(self, runs: list[Run]) -> None:
        alive = self.model.some(runs)
        for expected in ({entry.id for entry in alive}, set()):  # the second time, there is nothing left
            finished = self.ledger.finish(runs)
            assert is_tidy(finished)
            assert ids_of(finished) == expected
        for entry in alive:
            self.model.end(entry)

    @precondition(lambda self: self.ledger.leaving)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        leaving = [entry for entry in self.model.entries.values() if entry.state is State.LEAVING]
        runs = self._some_runs(data, leaving)
        restored = self.ledger.restore(runs)
        back = [entry for entry in leaving if entry.id in ids_of(runs)]
        assert is_tidy(restored)
        assert ids_of(restored) == {entry.id for entry in back}
        for entry in back:
            entry.state = State.READY
            self.model.back_by_other_ways(entry)

    # -- what a replay says -----------------------------------------------------------------------------------------

    def note_delivered(self, data: st.DataObject) -> None:
        for run in self._some_runs(data, list(self.model.entries.values())):
            self.ledger.note_delivered([run])
            for entry in self.model.some([run]):
                entry.deliveries += 1

    def delay(self, data: st.DataObject) -> None:
        entry = self._some_entry(data)
        until = self.now + data.draw(DELAYS)
        self.ledger.delay(entry.id, until)
        self.ledger.delay(self.next_id, until)
        if entry.state is not State.LEAVING:
            entry.state, entry.consumer, entry.due_at = State.DELAYED, None, until
            self.model.back_by_other_ways(entry)

    def restart(self, data: st.DataObject) -> None:
        stored = msgspec.msgpack.encode(self.ledger.dump())
        if data.draw(st.booleans()):
            return  # only a snapshot; life goes on
        self.ledger = Ledger.load(
            msgspec.msgpack.decode(stored, type=LedgerState),
            max_deliveries=self.model.max_deliveries,
            single_active=self.model.single_active,
            keeps_dead=self.model.keeps_dead,
        )
        self.ledger.on_chunk_gone = self.chunks.remove
        self.model.restart()
        for consumer in CONSUMERS[: data.draw(st.integers(0, 2))]:
            self.attach(consumer=consumer, prefetch=0, aside=False)

    # -- time -------------------------------------------------------------------------------------------------------

    @rule(by=st.sampled_from([0, 1, 500, 1_000, 30_000, 70_000, 200_000]))
    def time_passes(self, by: int) -> None:
        self.now += by
        self.since += by
        self._lapse()

    @rule(by=st.sampled_from([-18_000_000, -70_000, -1_000, 1_000, 70_000, 18_000_000]))
    def somebody_sets_the_wall_clock(self, by: int) -> None:
        self.now += by
        self._lapse()

    @rule()
    def to_the_next_moment(self) -> None:
        """What `next_ms` says is soon enough."""
        next_ms, event = self.ledger.next_ms(), self.model.next_event()
        if event is not None:
            assert next_ms is not None
            assert next_ms <= max(event, self.now)
        if next_ms is not None:
            self.now = max(self.now, next_ms)
            self._lapse()

    @rule()
    def to_the_next_end_of_a_visibility_timeout(self) -> None:
        """The same for `next_visibility_ms`."""
        next_ms, late = self.ledger.next_visibility_ms(), self.model.next_late()
        if late is not None:
            assert next_ms is not None
            assert next_ms <= max(late, self.since)
        if next_ms is not None:
            self.since = max(self.since, next_ms)
            self._lapse()

    def _lapse(self) -> None:
        lapsed = self.ledger.lapse(self.now)
        expired, due = self.model.lapse(self.now)
        self._check_came(lapsed, Came(set(), expired, set()))
        assert is_tidy(lapsed.ready)
        assert ids_of(lapsed.ready) == due
        self._check_came(self.ledger.lapse_visibility(self.since), self.model.lapse_visibility(self.since))

    # -- do they agree? ---------------------------------------------------------------------------------------------

    def _check_came(self, lapsed: Lapsed | Outcome, came: Came) -> None:
        for runs, expected in (
            (lapsed.returned, came.returned),
            (lapsed.expired, came.expired),
            (lapsed.exhausted, came.exhausted),
        ):
            assert is_tidy(runs)
            assert ids_of(runs) == expected

    def _check_unknown(self, runs: list[Run], in_flight: list[Entry], unknown: list[Run]) -> None:
        assert is_tidy(unknown)
        known = {entry.id for entry in in_flight}
        if runs == [EVERYTHING]:
            assert sum(count for _, count in unknown) == EVERYTHING[1] - len(known)
            assert not any(first <= entry < first + count for first, count in unknown for entry in known)
        else:
            assert ids_of(unknown) == ids_of(runs) - known

    @invariant()
    def they_agree(self) -> None:
        ledger, entries = self.ledger, self.model.entries
        by_state = dict.fromkeys(State, 0)
        for entry in entries.values():
            by_state[entry.state] += 1
            assert ledger.state_of(entry.id) is entry.state
            assert ledger.deliveries_of(entry.id) == entry.deliveries
            if len(entries) < 100:  # it searches
                assert ledger.ready_at(entry.id) == (entry.due_at if entry.state is State.DELAYED else None)
        counts = (ledger.ready, ledger.delayed, ledger.unacked, ledger.leaving)
        assert counts == tuple(by_state[state] for state in State if state)
        assert len(ledger) == len(entries)
        assert ledger.newest == self.next_id - 1
        line = self.model.in_line()
        assert ledger.next_ready() == (line[0].id if line else None)
        assert ledger.consumers == len(self.model.prefetch)
        assert ledger.active == self.model.active
        for consumer in CONSUMERS:
            assert ledger.unacked_of(consumer) == len(self.model.in_flight_to(consumer))

    @invariant()
    def what_waits_is_found_with_its_time(self) -> None:
        end, parts = self.ledger.delayed_from(0, 10**9)
        assert end is None
        rows = {part.time_and_row(number) for part in parts for number in part.rows}
        found = {(when_ms, entry) for when_ms, entry in rows if self.ledger.is_delayed_until(entry, when_ms)}
        assert found == {(e.due_at, e.id) for e in self.model.entries.values() if e.state is State.DELAYED}

    @invariant()
    def what_is_alive_is_found(self) -> None:
        entries = self.model.entries
        alive = [
            (entry, state) for state, first, count in self.ledger.alive_runs() for entry in range(first, first + count)
        ]
        assert alive == sorted((entry.id, entry.state) for entry in entries.values())
        assert list(self.ledger.lowest_chunks()) == sorted({entry // CHUNK for entry in entries})
        assert self.chunks == {entry // CHUNK for entry in entries}
        if entries:
            middle = sorted(entries)[len(entries) // 2]
            behind = ids_of((first, count) for _, first, count in self.ledger.alive_runs(State.READY, after=middle))
            assert behind == {e.id for e in entries.values() if e.state is State.READY and e.id > middle}


class LongRunsMachine(LedgerMachine):
    """The same with runs that reach over several chunks."""

    longest = 3 * CHUNK

    @precondition(lambda self: len(self.model.entries) < 6 * CHUNK)
    @rule(
        count=st.integers(CHUNK - 2, 3 * CHUNK),
        delay=st.none() | st.none() | DELAYS,
        ttl=st.none() | st.none() | DELAYS,
    )
    def admit_many(self, count: int, delay: int | None, ttl: int | None) -> None:
        self.admit_run(count=count, priority=0, delay=delay, ttl=ttl, skip=0)

    @precondition(lambda self: self.model.prefetch)
    @rule(data=st.data(), count=st.integers(1, 4 * CHUNK))
    def acquire_many(self, data: st.DataObject, count: int) -> None:
        self.acquire(data=data, count=count, timeout_ms=TIMEOUT_MS, lapse=False)


class SmallLimitsMachine(LedgerMachine):
    """The same where housekeeping begins with the first stale rows, and a step of it is tiny."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        for module, limits in (
            (schedule, {"_STALE_ROWS": 0, "_LOOKS": 1}),
            (in_flight, {"_STALE_ROWS": 0, "_FEW_ROWS": 0}),
            (timer_wheel, {"_FEW": 1, "_STEP": 2}),
        ):
            for name, value in limits.items():
                self.patch.setattr(module, name, value)
        super().__init__()

    def teardown(self) -> None:
        self.patch.undo()


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestSmallLimits = SmallLimitsMachine.TestCase
TestSmallLimits.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestLongRuns = LongRunsMachine.TestCase
TestLongRuns.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
