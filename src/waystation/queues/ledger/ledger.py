"""The ledger: the one state machine of per-message delivery, for queues and shared subscriptions alike.

    admit ──▶ READY ──acquire──▶ IN_FLIGHT ──ack──▶ DONE
                ▲  ▲                  │ │ │
                │  └──release─────────┘ │ └─reserve──▶ LEAVING ──finish──▶ DONE
                │   visibility timeout  │                 └──restore──▶ READY
                └──its time── DELAYED ◀─┘ release(until)
    claim (READY, DELAYED) ──▶ LEAVING
    admit(deliver_at) ──▶ DELAYED
    expiry (from READY, DELAYED), exhaustion and rejection (from IN_FLIGHT) ──▶ DONE, or LEAVING where the dead are kept

It is pure: no I/O, no clock of its own. Time is handed in, decisions are handed out; whoever calls stores them and
moves messages. There are two times, which are never compared: delays and expiries are stored, and are of the wall
clock; visibility timeouts are in memory only, and are of the monotonic clock (`acquire`, `touch`, `lapse_visibility`,
`next_visibility_ms`). Entries are known by ids that ascend with every admission, and are spoken of in runs (first,
count): a thousand in a row cost as little as one.

Invariants:
- An entry is in exactly one state, and changes it only as `moves.MOVES` says. It is in flight to at most one consumer.
- Strictly higher priorities first; within one, the order of admission, also for what came back.
- Never early: a delayed entry is not acquired before its time. Expired entries are never acquired, if the caller lets
  time pass (`lapse`) before it acquires.
- `deliveries` of an entry counts how often it was handed out; when it reaches the limit and comes back, it is
  exhausted instead of ready.
- LEAVING entries wait for `finish` or `restore`; time does nothing to them.

A ready entry costs one byte, or two among priorities above 15 (`chunk.py`), a delayed one nine (`timer_wheel.py`),
one run in flight the same for one entry as for a thousand (`in_flight.py`). Only a queue, or a shared subscription,
calls this, on one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from waystation.errors import Invalid
from waystation.message import HIGHEST_PRIORITY, Run
from waystation.queues.errors import UnknownConsumer
from waystation.queues.ledger import moves
from waystation.queues.ledger.delivery_counts import NONE, DeliveryCounts
from waystation.queues.ledger.in_flight import NOBODY, InFlight, LedgerConsumer
from waystation.queues.ledger.moves import DELAYED, DONE, IN_FLIGHT, READY, Move, State
from waystation.queues.ledger.outcomes import Grant, Lapsed, Outcome, Returned, add_grant, add_grants
from waystation.queues.ledger.runs import add_run, tidy
from waystation.queues.ledger.schedule import TIMELESS, Schedule, ScheduleState
from waystation.queues.ledger.states import CHUNK, States, StatesState
from waystation.queues.ledger.timer_wheel import Stretch
from waystation.queues.ledger.verdicts import BACK, EXPIRED, SAME, verdicts

__all__ = ["CHUNK", "Grant", "Lapsed", "Ledger", "LedgerState", "Outcome", "Run", "State"]


class LedgerState(msgspec.Struct, array_like=True, frozen=True):
    """A ledger as it is stored: without consumers, and nothing is in flight."""

    states: StatesState
    schedule: ScheduleState | None = None


class Ledger:
    """One queue's. `max_deliveries` 0: no limit. `single_active`: only the consumer that came first is served.
    `keeps_dead`: what dies is LEAVING, until the caller has moved it and says `finish`. All may change at any time."""

    __slots__ = ("_hidden_from", "_in_flight", "_schedule", "_states", "keeps_dead", "max_deliveries", "single_active")

    def __init__(self, *, max_deliveries: int = 0, single_active: bool = False, keeps_dead: bool = False) -> None:
        self._hidden_from: int | None = None
        self.max_deliveries = max_deliveries
        self.single_active = single_active
        self.keeps_dead = keeps_dead
        self._states = States()
        # These are there only while they are needed: most of a million queues are idle.
        self._in_flight = NOBODY
        self._schedule = TIMELESS

    # -- what there is ----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return self._states.ready

    @property
    def delayed(self) -> int:
        return self._states.delayed

    @property
    def unacked(self) -> int:
        """Those that are IN_FLIGHT: delivered, and not settled yet."""
        return self._states.unacked

    @property
    def leaving(self) -> int:
        return self._states.leaving

    @property
    def in_flight(self) -> int:
        """Neither ready, delayed nor done: delivered to a consumer, acked in an open transaction, claimed by a reader,
        or dead and on its way. What people are shown as in flight: every living message is in one count."""
        return self._states.unacked + self._states.leaving

    @property
    def newest(self) -> int:
        """The last id admitted; -1 at first."""
        return self._states.newest

    def __len__(self) -> int:
        return len(self._states)

    def state_of(self, entry: int) -> State:
        return self._states.state_of(entry)

    def deliveries_of(self, entry: int) -> int:
        """How often it was handed out; 0 for what is gone."""
        state = self._states.state_of(entry)
        if state is DONE:
            return 0
        tries = self._states.tries
        return (tries.get(entry) if tries is not None else 0) + (state is IN_FLIGHT)

    def tries_of(self, entry: int) -> int:
        """The same without the present delivery."""
        tries = self._states.tries
        return tries.get(entry) if tries is not None else 0

    def ready_at(self, entry: int) -> int | None:
        """Until when it is delayed; None if it is not. Slow: it searches all times."""
        return self._schedule.until(entry) if self._states.state_of(entry) is DELAYED else None

    def delayed_from(self, from_ms: int, enough: int) -> Stretch:
        """The rows of what is delayed until `from_ms` or later, for so long a time that there are `enough` of them, or
        all; some may be stale, so ask `is_delayed_until`. It sorts nothing: a million cost a few milliseconds."""
        return self._schedule.stretch(from_ms, enough)

    def is_delayed_until(self, entry: int, when_ms: int) -> bool:
        """Whether that row of `delayed_from` means what it says."""
        return self._schedule.is_due_then(when_ms, entry)

    def next_ready(self) -> int | None:
        """The entry that would be acquired next."""
        return self._states.next_ready() if self._states.ready else None

    def alive_runs(self, state: State | None = None, after: int = -1) -> Iterator[tuple[State, int, int]]:
        """(state, first, count) in the order of ids, from behind `after` on; only one state's, if given. What follows
        on one another may come in several parts, so that the first ones cost nothing of the rest."""
        return self._states.runs(after + 1, self.newest - after, state)

    def lowest_chunks(self) -> Iterable[int]:
        """The numbers (entry // CHUNK) of the chunks in which something is alive, ascending."""
        return self._states.chunks.keys()

    @property
    def on_chunk_gone(self) -> Callable[[int], None] | None:
        """Called with a chunk's number when nothing in it is alive any more. The newest may come again."""
        return self._states.on_chunk_gone

    @on_chunk_gone.setter
    def on_chunk_gone(self, callback: Callable[[int], None] | None) -> None:
        self._states.on_chunk_gone = callback

    # -- consumers --------------------------------------------------------------------------------------------------

    def attach(self, consumer: str, prefetch: int = 0, *, aside: bool = False) -> None:
        """A consumer comes, or changes how many entries it may have in flight at once (0: any number). `aside`: with
        `single_active` it takes what it takes, and is never the one whose turn it is."""
        if prefetch < 0:
            raise Invalid(f"prefetch {prefetch} is below zero")
        if self._in_flight is NOBODY:
            self._in_flight = InFlight(self._states)
        known = self._in_flight.consumers.get(consumer)
        if known is None:
            self._in_flight.consumers[consumer] = LedgerConsumer(prefetch, aside)
        else:
            known.prefetch = prefetch
            known.aside = aside

    def set_aside(self, consumer: str) -> None:
        """The consumer takes no more; what is in flight to it stays its own. With `single_active` it is the next one's
        turn."""
        who = self._in_flight.consumers.get(consumer)
        if who is not None:
            who.aside = True

    def detach(self, consumer: str, *, forgiven: bool = False) -> Lapsed:
        """A consumer goes; what was in flight to it is requeued. `forgiven`: it was no failure, and counts towards no
        limit."""
        lapsed = Lapsed()
        gone = self._in_flight.consumers.pop(consumer, None)
        if gone is not None:
            for first, count in self._in_flight.end_all(gone):
                if forgiven:
                    lapsed.forgiven += self.forgive([(first, count)])
                self._come_back(first, count, lapsed)
            self._rest()
        return lapsed

    @property
    def active(self) -> str | None:
        """With `single_active`: the consumer whose turn it is."""
        return next((consumer for consumer, who in self._in_flight.consumers.items() if not who.aside), None)

    @property
    def consumers(self) -> int:
        return len(self._in_flight.consumers)

    def unacked_of(self, consumer: str) -> int:
        who = self._in_flight.consumers.get(consumer)
        return who.unacked if who is not None else 0

    def prefetch_of(self, consumer: str) -> int:
        """How many entries it may have in flight at once; 0: any number."""
        who = self._in_flight.consumers.get(consumer)
        return who.prefetch if who is not None else 0

    # -- coming -----------------------------------------------------------------------------------------------------

    def admit(
        self,
        entry: int,
        *,
        priority: int = 0,
        deliver_at_ms: int | None = None,
        expires_at_ms: int | None = None,
        deliveries: int = 0,
        max_deliveries: int = 0,
    ) -> None:
        """A new entry, ready now or delayed until its time. `deliveries`: handed out before, in an earlier life.
        `max_deliveries`: its own limit, which goes before the queue's."""
        self.admit_run(
            entry,
            1,
            priority,
            deliver_at_ms=deliver_at_ms,
            expires_at_ms=expires_at_ms,
            max_deliveries=max_deliveries,
        )
        if deliveries:
            self._tries().put(entry, deliveries)

    def admit_run(
        self,
        first: int,
        count: int,
        priority: int = 0,
        *,
        deliver_at_ms: int | None = None,
        expires_at_ms: int | None = None,
        max_deliveries: int = 0,
    ) -> None:
        """New entries that have all of this in common."""
        states = self._states
        if not 0 <= priority <= HIGHEST_PRIORITY:
            raise Invalid(f"priority {priority} is not between 0 and {HIGHEST_PRIORITY}")
        if first <= states.newest or count < 1:
            raise Invalid(f"entries {first} to {first + count - 1} come after {states.newest}; ids ascend")
        if deliver_at_ms is None:
            states.add(first, count, READY, priority)
        else:
            states.add(first, count, DELAYED, priority)
            self._planned().delay(first, count, deliver_at_ms)
        if expires_at_ms is not None:
            self._planned().expire(first, count, expires_at_ms)
        if max_deliveries:
            for entry in range(first, first + count):
                self.limit(entry, max_deliveries)

    def limit(self, entry: int, max_deliveries: int) -> None:
        """Its own limit, which goes before the queue's, where it was not known when the entry was admitted."""
        if self._states.limits is None:
            self._states.limits = DeliveryCounts()
        self._states.limits.put(entry, max_deliveries)

    # -- handing out ------------------------------------------------------------------------------------------------

    def acquire(self, consumer: str, count: int, now_ms: int, visibility_timeout_ms: int) -> list[Grant]:
        """Up to `count` entries for a consumer, as its prefetch allows. The caller has let time pass (`lapse`); this
        `now_ms` is of the monotonic clock."""
        in_flight, states, hidden_from = self._in_flight, self._states, self._hidden_from
        who = in_flight.consumers.get(consumer)
        if who is None:
            raise UnknownConsumer(f"consumer {consumer!r} is not attached to this queue")
        if self.single_active and not who.aside and consumer != self.active:
            return []
        if who.prefetch and count > who.prefetch - who.unacked:
            count = who.prefetch - who.unacked
        if count > states.ready:
            count = states.ready
        deadline_ms = now_ms + visibility_timeout_ms
        grants: list[Grant] = []
        while count > 0:
            if hidden_from is None:
                first, taken = states.take(count)
            elif (shown := states.take_shown(count, hidden_from)) is not None:
                first, taken = shown
            else:
                break
            count -= taken
            in_flight.begin(who, first, taken, deadline_ms)
            if states.tries is not None and states.tries.has(first):
                add_grants(grants, first, taken, states.tries, deadline_ms)
            elif grants:
                add_grant(grants, first, taken, 1, deadline_ms)
            else:
                grants.append(Grant(first, taken, 1, deadline_ms))
        return grants

    def ack(self, consumer: str, runs: Sequence[Run]) -> Outcome:
        """The work is done."""
        return self._settle(consumer, runs, moves.ACK)

    def reject(self, consumer: str, runs: Sequence[Run]) -> Outcome:
        """The work cannot be done: they are dead now, however often they were tried."""
        return self._settle(consumer, runs, moves.DIE[self.keeps_dead])

    def reserve(self, consumer: str, runs: Sequence[Run]) -> Outcome:
        """The work is done if an open transaction commits (`finish`), and not if it aborts (`restore`)."""
        return self._settle(consumer, runs, moves.RESERVE)

    def _settle(self, consumer: str, runs: Sequence[Run], move: Move) -> Outcome:
        outcome = Outcome()
        states, schedule = self._states, self._schedule
        for first, count in self._end_in_flight(consumer, runs, outcome.unknown):
            if not move.ends:
                self._tries().bump(first, count)
            states.move_in_flight(first, count, move)
            if move.ends:
                schedule.forget(first, count)
            add_run(outcome.done, first, count)
        return outcome

    def release(
        self, consumer: str, runs: Sequence[Run], until_ms: int | None = None, *, forgiven: bool = False
    ) -> Outcome:
        """The consumer requeues them: ready at once, or delayed until a time (a retry that backs off). `forgiven`: it
        was no failure, and counts towards no limit."""
        outcome = Outcome()
        for first, count in self._end_in_flight(consumer, runs, outcome.unknown):
            if forgiven:
                outcome.forgiven += self.forgive([(first, count)])
            self._come_back(first, count, outcome, until_ms)
        return outcome

    def in_flight_of(self, consumer: str, runs: Sequence[Run], unknown: list[Run]) -> list[Run]:
        """Which of these are in flight to the consumer, each run within one in-flight run; the others are added to
        `unknown`."""
        who = self._in_flight.consumers.get(consumer)
        if who is None:
            return self._nobodys(runs, unknown)
        return self._in_flight.find(who, runs, unknown)

    def of_delivery(self, runs: Sequence[Run], deliveries: int, stale: list[Run]) -> Sequence[Run]:
        """Those of these entries whose present, or next, delivery has that number; the others are added to `stale`. A
        delivery is known by it: whoever had an entry before it came back says another one. 0: whichever it is."""
        tries = self._states.tries
        if not deliveries or (tries is None and deliveries == 1):
            return runs
        current: list[Run] = []
        for first, count in runs:
            known = max(0, min(count, self.newest + 1 - first))  # somebody may name what was never there
            for start, length, before in (tries or NONE).each(first, known):
                add_run(current if before + 1 == deliveries else stale, start, length)
            if known < count:
                stale.append((first + known, count - known))
        return current

    def plan_release(self, consumer: str, runs: Sequence[Run], *, forgiven: bool = False) -> Outcome:
        """What `release` will do with these, so that it can be written before it happens."""
        planned = Outcome()
        uncounted = 0 if forgiven else 1  # one delivery more, against a limit that is one more
        for first, count in self.in_flight_of(consumer, runs, planned.unknown):
            if forgiven:
                planned.forgiven += self._limited([(first, count)])
            found = verdicts(
                self._states, first, count, self.max_deliveries, self._schedule.overdue, uncounted=uncounted
            )
            for same in SAME.finditer(found if found is not None else bytes(count)):
                into = (planned.returned, planned.exhausted, planned.expired)[same[0][0]]
                add_run(into, first + same.start(), same.end() - same.start())
        return planned

    def forgive(self, runs: Sequence[Run]) -> list[Run]:
        """These may be handed out once more than their limits say. Returns those that have a limit."""
        forgiven = self._limited(runs)
        if forgiven:
            limits = self._states.limits
            if limits is None:
                limits = self._states.limits = DeliveryCounts()
            for first, count in forgiven:
                for entry in range(first, first + count):
                    limits.put(entry, (limits.get(entry) or self.max_deliveries) + 1)
        return forgiven

    def _limited(self, runs: Sequence[Run]) -> list[Run]:
        """Those that live and have a limit."""
        limits = self._states.limits
        if not self.max_deliveries and limits is None:
            return []
        limited: list[Run] = []
        for first, count in runs:
            for entry in range(first, first + count):
                limit = self.max_deliveries or (limits is not None and limits.get(entry))
                if limit and self._states.state_of(entry):
                    add_run(limited, entry, 1)
        return limited

    def postpone(self, consumer: str, runs: Sequence[Run], until_ms: int) -> list[Run]:
        """They were acquired before their time, which was not known then: delayed until it comes, and the acquisition
        does not count. Returns what was in flight."""
        outcome = Outcome()
        for first, count in self._end_in_flight(consumer, runs, outcome.unknown):
            self._give_back(first, count, outcome, until_ms)
        self._schedule.expire_late()
        return outcome.returned

    def touch(self, consumer: str, runs: Sequence[Run], now_ms: int, visibility_timeout_ms: int) -> list[Run]:
        """The consumer needs more time; returns what is not in flight to it."""
        unknown: list[Run] = []
        ended = self._end_in_flight(consumer, runs, unknown)
        if ended:
            self._in_flight.again(self._in_flight.consumers[consumer], ended, now_ms + visibility_timeout_ms)
        return unknown

    # -- taking out -------------------------------------------------------------------------------------------------

    def cancel(self, entry: int) -> bool:
        """Takes out an entry that is not in flight; False if it is, or is leaving or gone."""
        return bool(self._finish(entry, 1, moves.CANCEL))

    def purge(self) -> list[Run]:
        """Ends everything that waits, ready or delayed; returns it."""
        return self._finish(0, self.newest + 1, moves.CANCEL)

    def drop_oldest(self) -> int | None:
        """The oldest ready entry, of whatever priority, is dead; None if there is none."""
        if not self._states.ready:
            return None
        oldest = self._states.oldest_ready()
        self._finish(oldest, 1, moves.DROP[self.keeps_dead])
        return oldest

    def take_out(self, entry: int) -> bool:
        """READY, DELAYED or IN_FLIGHT to anyone becomes LEAVING; False if it is that already, or gone."""
        state = self._states.state_of(entry)
        if state is IN_FLIGHT:
            self._tries().bump(entry, 1)
            self._in_flight.end_of_anyone(entry, 1)
        elif state is DELAYED:
            self._schedule.drop_delay(entry, 1)
        return self._states.move_one(entry, moves.TAKE_OUT)

    def hide_from(self, entry: int | None) -> None:
        """Entries from this one on are not acquired or claimed, though they are ready: in a cluster, until other
        brokers have them. None: all are shown."""
        self._hidden_from = entry

    def claim(self, count: int) -> list[Run]:
        """Up to `count` entries, those that would be acquired next, become LEAVING: `finish` or `restore` follows.

        They are in flight to no consumer and no delivery is counted: who claims them can do so again, and means the
        same. The caller has let time pass.
        """
        states = self._states
        claimed: list[Run] = []
        count = min(count, states.ready)
        while count > 0:
            if self._hidden_from is None:
                first, taken = states.take(count)
            elif (shown := states.take_shown(count, self._hidden_from)) is not None:
                first, taken = shown
            else:
                break
            states.move_in_flight(first, taken, moves.RESERVE)
            add_run(claimed, first, taken)
            count -= taken
        tidy(claimed)
        return claimed

    def claim_these(self, runs: Sequence[Run]) -> list[Run]:
        """The same for entries that wait, by their numbers, READY or DELAYED; returns those that did."""
        claimed: list[Run] = []
        for first, count in runs:
            claimed += self._finish(first, count, moves.CLAIM)
        tidy(claimed)
        return claimed

    def finish(self, runs: Sequence[Run]) -> list[Run]:
        """Ends entries whatever they are, in flight or not; returns those that were alive."""
        finished: list[Run] = []
        for first, count in runs:
            if self._states.unacked:
                self._in_flight.end_of_anyone(first, count)
            finished += self._finish(first, count, moves.FINISH)
        tidy(finished)
        return finished

    def restore(self, runs: Sequence[Run]) -> list[Run]:
        """LEAVING becomes READY again: the transaction was aborted. Returns what was LEAVING."""
        restored: list[Run] = []
        for first, count in runs:
            restored += self._states.move(first, count, moves.RESTORE)
        tidy(restored)
        if restored:
            self._schedule.expire_late()
        return restored

    def _finish(self, first: int, count: int, move: Move) -> list[Run]:
        """Entries that are not in flight are done, or dead."""
        schedule = self._schedule
        if not move.ends:
            schedule.drop_delay(first, count)
        finished = self._states.move(first, count, move)
        if move.ends:
            for start, length in finished:
                schedule.forget(start, length)
        if not self._states.chunks:
            self._rest()
        return finished

    # -- time -------------------------------------------------------------------------------------------------------

    def lapse(self, now_ms: int) -> Lapsed:
        """Lets time of the wall clock pass: expiries first, so that nothing expired becomes ready."""
        lapsed = Lapsed()
        schedule = self._schedule
        for first, count in schedule.expired(now_ms):
            lapsed.expired += self._finish(first, count, moves.EXPIRE[self.keeps_dead])
        for first, count in schedule.due(now_ms):
            lapsed.ready += self._states.move(first, count, moves.DUE)
        tidy(lapsed.ready)
        lapsed.tidy()
        return lapsed

    def lapse_visibility(self, now_ms: int) -> Lapsed:
        """Lets time of the monotonic clock pass: visibility timeouts end. The caller has let that of the wall clock
        pass before."""
        lapsed = Lapsed()
        for first, count in self._in_flight.end_late(now_ms):
            self._come_back(first, count, lapsed)
        lapsed.tidy()
        return lapsed

    def next_ms(self) -> int | None:
        """When, by the wall clock, `lapse` may have something to do; None: never."""
        return self._schedule.next_ms()

    def next_visibility_ms(self) -> int | None:
        """When, by the monotonic clock, `lapse_visibility` may have something to do; None: never."""
        return self._in_flight.next_ms()

    # -- what a replay says -----------------------------------------------------------------------------------------

    def note_delivered(self, runs: Sequence[Run]) -> None:
        """They were handed out once more than is known here, whatever their state."""
        for first, count in runs:
            for number, _, start, stop in self._states.pieces(first, count):
                self._tries().bump(number * CHUNK + start, stop - start)

    def exhaust(self) -> list[Run]:
        """What was in somebody's hands for the last time when everything ended is ready now; it is dead instead. What
        had been delayed is delayed again, as before it was handed out: nothing was written when its time came."""
        exhausted: list[Run] = []
        if self._states.tries is not None:
            for state, first, count in [*self.alive_runs(READY), *self.alive_runs(DELAYED)]:
                found = verdicts(self._states, first, count, self.max_deliveries, None) or b""
                for same in SAME.finditer(found):
                    if same[0][0] != BACK:
                        start, length = first + same.start(), same.end() - same.start()
                        if state is DELAYED:
                            self._schedule.drop_delay(start, length)
                            self._states.move(start, length, moves.DUE)
                        exhausted += self._finish(start, length, moves.DROP[self.keeps_dead])
        tidy(exhausted)
        return exhausted

    def delay(self, entry: int, until_ms: int) -> None:
        """READY or IN_FLIGHT becomes DELAYED; what is DELAYED already waits for this time instead."""
        state = self._states.state_of(entry)
        if state is IN_FLIGHT:
            self._tries().bump(entry, 1)
            self._in_flight.end_of_anyone(entry, 1)
            self._states.move_in_flight(entry, 1, moves.LATER)
        elif state is DELAYED:
            self._schedule.drop_delay(entry, 1)
        elif not self._states.move_one(entry, moves.DELAY):
            return
        schedule = self._planned()
        schedule.delay(entry, 1, until_ms)
        if schedule.overdue and entry in schedule.overdue:
            schedule.expire_late()

    # -- parts of the above -----------------------------------------------------------------------------------------

    def _tries(self) -> DeliveryCounts:
        if self._states.tries is None:
            self._states.tries = DeliveryCounts()
        return self._states.tries

    def _planned(self) -> Schedule:
        if self._schedule is TIMELESS:
            self._schedule = Schedule(self._states)
        return self._schedule

    def _end_in_flight(self, consumer: str, runs: Sequence[Run], unknown: list[Run]) -> list[Run]:
        who = self._in_flight.consumers.get(consumer)
        return self._nobodys(runs, unknown) if who is None else self._in_flight.end(who, runs, unknown)

    def _nobodys(self, runs: Sequence[Run], unknown: list[Run]) -> list[Run]:
        unknown += [run for run in runs if run[1] > 0]
        tidy(unknown)
        return []

    def _come_back(self, first: int, count: int, into: Returned, until_ms: int | None = None) -> None:
        """Entries of one in-flight run, just ended, are nobody's again."""
        self._tries().bump(first, count)
        found = verdicts(self._states, first, count, self.max_deliveries, self._schedule.overdue)
        if found is None:
            self._give_back(first, count, into, until_ms)
            return
        for same in SAME.finditer(found):
            verdict, start, length = same[0][0], first + same.start(), same.end() - same.start()
            if verdict == BACK:
                self._give_back(start, length, into, until_ms)
                continue
            self._states.move_in_flight(start, length, moves.DIE[self.keeps_dead])
            if not self.keeps_dead:
                self._schedule.forget(start, length)
            add_run(into.expired if verdict == EXPIRED else into.exhausted, start, length)

    def _give_back(self, first: int, count: int, into: Returned, until_ms: int | None) -> None:
        self._states.move_in_flight(first, count, moves.RELEASE if until_ms is None else moves.LATER)
        if until_ms is not None:
            self._planned().delay(first, count, until_ms)
        add_run(into.returned, first, count)

    def _rest(self) -> None:
        """Nothing is alive. If nobody is here either, what deliveries and times needed goes: an idle queue is small."""
        if not self._states.chunks and not self.consumers:
            self._in_flight, self._schedule = NOBODY, TIMELESS
            self._states.rest()

    # -- storing ----------------------------------------------------------------------------------------------------

    def dump(self) -> LedgerState:
        schedule = None if self._schedule is TIMELESS else self._schedule.dump()
        return LedgerState(self._states.dump(self._in_flight.runs()), schedule)

    @classmethod
    def load(
        cls, state: LedgerState, *, max_deliveries: int = 0, single_active: bool = False, keeps_dead: bool = False
    ) -> Ledger:
        ledger = cls(max_deliveries=max_deliveries, single_active=single_active, keeps_dead=keeps_dead)
        ledger._states = States.load(state.states)
        if state.schedule is not None:
            ledger._schedule = Schedule.load(state.schedule, ledger._states)
        return ledger
