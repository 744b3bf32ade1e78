"""The ledger's promises, one by one. That they hold together, in any order of events, says test_ledger_model.py."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from waystation.errors import Invalid
from waystation.queues.errors import UnknownConsumer
from waystation.queues.ledger.ledger import CHUNK, Grant, Ledger, LedgerState, Run, State
from waystation.queues.ledger.moves import MOVES, moves_table

START = 1_700_000_000_000
TIMEOUT_MS = 30_000


def acquire(ledger: Ledger, consumer: str, count: int, now_ms: int = START) -> list[tuple[int, int, int]]:
    """(first, count, deliveries)."""
    return [grant[:3] for grant in ledger.acquire(consumer, count, now_ms, TIMEOUT_MS)]


def queue_of(count: int, **settings: bool | int) -> Ledger:
    """A queue with entries from 0 on, and a consumer."""
    ledger = Ledger(**settings)  # type: ignore[arg-type]
    if count:
        ledger.admit_run(0, count)
    ledger.attach("c")
    return ledger


# -- in which order ----------------------------------------------------------------------------------------------------


def test_higher_priorities_go_first_and_each_is_first_in_first_out() -> None:
    ledger = queue_of(0)
    for entry, priority in enumerate([0, 9, 0, 5, 9]):
        ledger.admit(entry, priority=priority)
    assert ledger.next_ready() == 1
    assert acquire(ledger, "c", 10) == [(1, 1, 1), (4, 1, 1), (3, 1, 1), (0, 1, 1), (2, 1, 1)]


def test_what_comes_back_goes_before_what_came_later_and_says_so() -> None:
    ledger = queue_of(5)
    assert acquire(ledger, "c", 3) == [(0, 3, 1)]
    ledger.release("c", [(0, 2)])
    assert acquire(ledger, "c", 9) == [(0, 2, 2), (3, 2, 1)]


def test_a_thousand_in_a_row_are_one_grant_also_over_the_end_of_a_chunk() -> None:
    ledger = queue_of(3 * CHUNK)
    assert ledger.acquire("c", 100, START, TIMEOUT_MS) == [Grant(0, 100, 1, START + TIMEOUT_MS)]
    assert acquire(ledger, "c", 2 * CHUNK) == [(100, 2 * CHUNK, 1)]
    assert ledger.ack("c", [(100, 2 * CHUNK)]).done == [(100, 2 * CHUNK)]
    assert (ledger.ready, ledger.unacked) == (CHUNK - 100, 100)


def test_only_the_first_consumer_is_served_where_one_alone_may_be_active() -> None:
    ledger = Ledger(single_active=True)
    ledger.attach("first")
    ledger.attach("second")
    ledger.admit(1)
    assert ledger.active == "first"
    assert acquire(ledger, "second", 1) == []
    assert acquire(ledger, "first", 1) == [(1, 1, 1)]
    assert ledger.detach("first").returned == [(1, 1)]
    assert acquire(ledger, "second", 1) == [(1, 1, 2)]


def test_a_consumer_has_no_more_in_flight_than_its_prefetch() -> None:
    ledger = queue_of(100)
    ledger.attach("c", prefetch=10)
    assert acquire(ledger, "c", 50) == [(0, 10, 1)]
    assert acquire(ledger, "c", 50) == []
    ledger.ack("c", [(3, 4)])
    assert acquire(ledger, "c", 50) == [(10, 4, 1)]
    assert ledger.unacked_of("c") == 10


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_a_grant_is_settled_in_parts_as_the_work_goes() -> None:
    ledger = queue_of(10)
    acquire(ledger, "c", 10)
    assert ledger.ack("c", [(4, 1)]).done == [(4, 1)]
    assert ledger.ack("c", [(0, 2)]).done == [(0, 2)]
    assert ledger.release("c", [(8, 2)]).returned == [(8, 2)]
    outcome = ledger.ack("c", [(0, 10)])
    assert (outcome.done, outcome.unknown) == ([(2, 2), (5, 3)], [(0, 2), (4, 1), (8, 2)])
    assert (ledger.unacked, ledger.ready) == (0, 2)


def test_a_verdict_on_a_foreign_a_lapsed_or_no_delivery_has_no_effect() -> None:
    ledger = queue_of(2)
    ledger.attach("other")
    acquire(ledger, "c", 1)
    assert ledger.ack("other", [(0, 1)]).unknown == [(0, 1)]
    assert ledger.reject("c", [(1, 1), (7, 3)]).unknown == [(1, 1), (7, 3)]
    assert ledger.release("nobody", [(0, 1)]).unknown == [(0, 1)]
    assert ledger.lapse_visibility(START + TIMEOUT_MS).returned == [(0, 1)]
    assert ledger.ack("c", [(0, 1)]).unknown == [(0, 1)]
    assert ledger.ready == 2


@pytest.mark.parametrize("limit", [0, 1, 2, 256, 300])
@pytest.mark.parametrize("forgiven", [False, True])
def test_a_planned_release_is_what_happens(limit: int, forgiven: bool) -> None:
    ledger = Ledger(max_deliveries=limit)
    ledger.attach("c")
    for entry, (own, deliveries) in enumerate([(0, 0), (1, 0), (2, 1), (0, 254), (256, 255), (0, 255), (0, 299)]):
        ledger.admit(entry, max_deliveries=own, deliveries=deliveries, expires_at_ms=START + 5 if entry == 0 else None)
    acquire(ledger, "c", 7)
    ledger.lapse(START + 5)
    planned = ledger.plan_release("c", [(0, 9)], forgiven=forgiven)
    assert ledger.unacked == 7
    assert planned == ledger.release("c", [(0, 9)], forgiven=forgiven)
    assert planned.unknown == [(7, 2)]
    assert planned.expired == [(0, 1)]


def test_a_delivery_is_known_by_its_number() -> None:
    ledger = Ledger()
    ledger.attach("a")
    ledger.admit_run(0, 2 * CHUNK)
    stale: list[Run] = []
    assert ledger.of_delivery([(0, 2 * CHUNK)], 1, stale) == [(0, 2 * CHUNK)]  # nothing has come back yet
    assert not ledger.of_delivery([(3, 2)], 2, stale)
    assert stale == [(3, 2)]
    for _ in range(300):  # more than a byte can count
        ledger.acquire("a", 2, 0, 1_000)
        ledger.release("a", [(0, 2)])
    ledger.acquire("a", 5, 0, 1_000)
    for deliveries, ours, others in ((1, [(2, 8)], [(0, 2)]), (301, [(0, 2)], [(2, 8)]), (300, [], [(0, 10)])):
        stale = []
        assert ledger.of_delivery([(0, 10)], deliveries, stale) == ours
        assert stale == others
    stale = []
    assert ledger.of_delivery([(0, 10)], 0, stale) == [(0, 10)]
    assert ledger.of_delivery([(1, 10**15)], 301, stale) == [(1, 1)]
    assert stale == [(2, 2 * CHUNK - 2), (2 * CHUNK, 10**15 + 1 - 2 * CHUNK)]


def test_an_absurd_run_is_answered_at_once() -> None:
    ledger = queue_of(3)
    acquire(ledger, "c", 3)
    outcome = ledger.ack("c", [(0, 2**62)])
    assert (outcome.done, outcome.unknown) == ([(0, 3)], [(3, 2**62 - 3)])
    assert ledger.ack("c", [(5, 0), (6, -1)]).unknown == []
    ledger.admit_run(10**9, 1)
    assert ledger.finish([(0, 2**62)]) == [(10**9, 1)]


def test_the_same_entry_twice_in_one_verdict_counts_once() -> None:
    ledger = queue_of(10)
    acquire(ledger, "c", 10)
    outcome = ledger.ack("c", [(5, 2), (5, 2), (3, 3)])
    assert (outcome.done, outcome.unknown) == ([(3, 4)], [])


@pytest.mark.parametrize("nothing", [(7, -1), (7, 0), (20, -15), (7, -(2**62))])
def test_an_empty_run_between_others_hides_no_overlap(nothing: Run) -> None:
    """It once did: the verdict went round in circles, and took all the memory there was."""
    ledger = queue_of(10)
    acquire(ledger, "c", 10)
    outcome = ledger.ack("c", [(5, 2), nothing, (6, 1)])
    assert (outcome.done, outcome.unknown) == ([(5, 2)], [])
    assert ledger.unacked == 8


def test_who_needs_longer_gets_longer_and_only_for_what_was_named() -> None:
    ledger = queue_of(10)
    acquire(ledger, "c", 10)
    assert ledger.touch("c", [(3, 4), (12, 1)], START + 20_000, TIMEOUT_MS) == [(12, 1)]
    assert ledger.lapse_visibility(START + TIMEOUT_MS).returned == [(0, 3), (7, 3)]
    assert ledger.next_visibility_ms() == START + 20_000 + TIMEOUT_MS
    assert ledger.lapse_visibility(START + 20_000 + TIMEOUT_MS).returned == [(3, 4)]


def test_to_acquire_one_must_be_attached() -> None:
    with pytest.raises(UnknownConsumer, match="'stranger' is not attached"):
        queue_of(1).acquire("stranger", 1, START, TIMEOUT_MS)


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_delayed_entry_is_never_early() -> None:
    ledger = queue_of(0)
    ledger.admit(0, deliver_at_ms=START + 5_000)
    assert (ledger.ready_at(0), ledger.next_ms()) == (START + 5_000, START + 5_000)
    assert ledger.lapse(START + 4_999).ready == []
    assert acquire(ledger, "c", 1, START + 4_999) == []
    assert ledger.lapse(START + 5_000).ready == [(0, 1)]
    assert acquire(ledger, "c", 1, START + 5_000) == [(0, 1, 1)]


def test_an_entry_delayed_again_waits_for_its_last_time_only() -> None:
    ledger = Ledger()
    ledger.admit_run(0, 3, deliver_at_ms=START + 1_000)
    ledger.delay(0, START + 9_000)
    ledger.delay(1, START + 500)
    assert ledger.lapse(START + 1_000).ready == [(1, 2)]
    ledger.delay(1, START + 20_000)
    assert ledger.lapse(START + 10_000).ready == [(0, 1)]
    assert ledger.lapse(START + 20_000).ready == [(1, 1)]


def test_what_expires_while_it_is_held_dies_when_it_comes_back() -> None:
    ledger = queue_of(0)
    ledger.admit_run(0, 3, expires_at_ms=START + 1_000)
    acquire(ledger, "c", 2)
    assert ledger.lapse(START + 1_000).expired == [(2, 1)]
    assert ledger.ack("c", [(0, 1)]).done == [(0, 1)], "who was quick enough to get it may finish it"
    outcome = ledger.release("c", [(1, 1)])
    assert (outcome.expired, outcome.returned) == ([(1, 1)], [])
    assert len(ledger) == 0


def test_an_entry_that_comes_back_once_too_often_is_exhausted() -> None:
    ledger = queue_of(0, max_deliveries=2)
    ledger.admit_run(0, 2)
    ledger.admit(2, max_deliveries=1)
    ledger.admit(3, max_deliveries=3)
    acquire(ledger, "c", 4)
    outcome = ledger.release("c", [(0, 4)])
    assert (outcome.returned, outcome.exhausted) == ([(0, 2), (3, 1)], [(2, 1)])
    acquire(ledger, "c", 4)
    lapsed = ledger.lapse_visibility(START + TIMEOUT_MS)
    assert (lapsed.returned, lapsed.exhausted) == ([(3, 1)], [(0, 2)])
    assert ledger.deliveries_of(3) == 2


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_where_the_dead_are_kept_they_leave_only_when_they_are_moved() -> None:
    ledger = queue_of(3, max_deliveries=1, keeps_dead=True)
    ledger.admit(3, expires_at_ms=START + 1)
    ledger.admit(4, deliver_at_ms=START + 10, expires_at_ms=START + 1)
    acquire(ledger, "c", 2)
    ledger.reject("c", [(0, 1)])
    ledger.release("c", [(1, 1)])
    assert ledger.drop_oldest() == 2
    assert ledger.lapse(START + 20).expired == [(3, 2)]
    assert (ledger.leaving, len(ledger)) == (5, 5)
    assert (ledger.deliveries_of(0), ledger.deliveries_of(2)) == (1, 0)
    assert acquire(ledger, "c", 9) == []
    assert ledger.finish([(0, 5)]) == [(0, 5)]
    assert ledger.finish([(0, 5)]) == []


def test_a_transaction_takes_entries_out_and_brings_them_back_or_not() -> None:
    ledger = queue_of(4)
    acquire(ledger, "c", 4)
    assert ledger.reserve("c", [(0, 3)]).done == [(0, 3)]
    assert ledger.lapse_visibility(START + 10 * TIMEOUT_MS).returned == [(3, 1)], "time does nothing to what is leaving"
    assert ledger.finish([(0, 1)]) == [(0, 1)]
    assert ledger.restore([(0, 4)]) == [(1, 2)]
    assert acquire(ledger, "c", 9) == [(1, 3, 2)]


def test_an_expiry_that_passed_during_a_transaction_comes_when_it_is_aborted() -> None:
    ledger = Ledger()
    ledger.admit(0, expires_at_ms=START)
    assert ledger.take_out(0)
    assert not ledger.take_out(0)
    assert ledger.lapse(START).expired == []
    ledger.restore([(0, 1)])
    assert ledger.lapse(START).expired == [(0, 1)]


def test_a_purge_leaves_what_someone_has() -> None:
    ledger = queue_of(10)
    ledger.admit(10, deliver_at_ms=START + 1)
    acquire(ledger, "c", 4)
    ledger.reserve("c", [(1, 1)])
    assert ledger.purge() == [(4, 7)]
    assert (ledger.unacked, ledger.leaving, ledger.ready, ledger.delayed) == (3, 1, 0, 0)
    assert not ledger.cancel(0)


# -- looking and storing -----------------------------------------------------------------------------------------------


def test_what_is_alive_is_listed_from_anywhere() -> None:
    ledger = queue_of(2 * CHUNK)
    acquire(ledger, "c", 10)
    ledger.ack("c", [(2, 3)])
    runs = [
        (State.IN_FLIGHT, 0, 2),
        (State.IN_FLIGHT, 5, 5),
        (State.READY, 10, CHUNK - 10),
        (State.READY, CHUNK, CHUNK),
    ]
    assert list(ledger.alive_runs()) == runs
    assert list(ledger.alive_runs(after=5)) == [(State.IN_FLIGHT, 6, 4), *runs[2:]]
    assert next(ledger.alive_runs(State.READY, after=CHUNK + 5)) == (State.READY, CHUNK + 6, CHUNK - 6)


def test_who_keeps_things_by_chunk_is_told_when_a_chunk_is_gone() -> None:
    ledger = queue_of(3 * CHUNK)
    gone: list[int] = []
    ledger.on_chunk_gone = gone.append
    acquire(ledger, "c", 3 * CHUNK)
    ledger.ack("c", [(CHUNK, CHUNK)])
    assert (gone, list(ledger.lowest_chunks())) == ([1], [0, 2])
    ledger.ack("c", [(0, 3 * CHUNK)])
    assert gone == [1, 0, 2]


def test_after_a_restart_nothing_is_held_and_everything_else_is_as_it_was() -> None:
    ledger = queue_of(5, keeps_dead=True)
    ledger.admit(5, priority=9, deliver_at_ms=START + 70_000, expires_at_ms=START + 90_000, max_deliveries=7)
    acquire(ledger, "c", 3)
    ledger.reject("c", [(1, 1)])
    stored = msgspec.msgpack.encode(ledger.dump())
    again = Ledger.load(msgspec.msgpack.decode(stored, type=LedgerState), keeps_dead=True)
    assert (again.ready, again.delayed, again.unacked, again.leaving) == (4, 1, 0, 1)
    assert (again.newest, again.consumers, again.ready_at(5)) == (5, 0, START + 70_000)
    again.attach("c")
    assert acquire(again, "c", 9) == [(0, 1, 2), (2, 1, 2), (3, 2, 1)]
    assert again.lapse(START + 70_000).ready == [(5, 1)]
    assert again.lapse(START + 90_000).expired == [(5, 1)]


@pytest.mark.parametrize("priority", [-1, 256])
def test_a_priority_out_of_range_is_refused(priority: int) -> None:
    with pytest.raises(Invalid, match="priority"):
        Ledger().admit(1, priority=priority)


@pytest.mark.parametrize("run", [(4, 1), (0, 9), (6, 0)])
def test_ids_that_do_not_ascend_are_refused(run: Run) -> None:
    ledger = queue_of(5)
    with pytest.raises(Invalid, match="ids ascend"):
        ledger.admit_run(*run)


def test_the_moves_can_be_printed_and_every_state_can_end() -> None:
    assert "IN_FLIGHT release later  DELAYED" in moves_table()
    assert {state for state, verb in MOVES if verb == "finish"} == set(State) - {State.DONE}


# -- what it costs -----------------------------------------------------------------------------------------------------


def bytes_of(make: Callable[[], object]) -> int:
    """What the interpreter really allocates, and keeps."""
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del made
    return size


def many(make: Callable[[], Ledger], count: int = 500) -> float:
    return bytes_of(lambda: [make() for _ in range(count)]) / count


def used() -> Ledger:
    """A queue that had everything and has nothing."""
    ledger = queue_of(300)
    ledger.admit(300, deliver_at_ms=START, expires_at_ms=START, max_deliveries=3)
    acquire(ledger, "c", 300)
    ledger.release("c", [(0, 100)])
    ledger.finish([(0, 301)])
    ledger.detach("c")
    return ledger


def with_one() -> Ledger:
    ledger = Ledger()
    ledger.admit_run(0, 1)
    return ledger


def test_an_idle_queue_is_small_also_after_a_busy_life() -> None:
    assert many(Ledger) < 300
    assert many(used) < 320


def test_a_queue_with_one_message_is_small() -> None:
    assert many(with_one) < 700


def test_a_backlog_in_a_row_costs_little_more_than_a_byte_each() -> None:
    count = 1_000_000

    def backlog() -> Ledger:
        ledger = Ledger()
        for first in range(0, count, 1_000):
            ledger.admit_run(first, 1_000)
        return ledger

    assert bytes_of(backlog) / count < 1.3


def test_a_backlog_of_mixed_priorities_costs_no_more() -> None:
    count = 50_000

    def backlog() -> Ledger:
        ledger = Ledger()
        for entry in range(count):
            ledger.admit(entry, priority=entry % 16)
        return ledger

    assert bytes_of(backlog) / count < 1.5


@pytest.mark.parametrize(("horizon_ms", "limit"), [(60_000, 12), (3_600_000, 12), (365 * 86_400_000, 40)])
def test_delayed_entries_cost_little_over_any_horizon(horizon_ms: int, limit: int) -> None:
    count = 50_000

    def delayed() -> Ledger:
        ledger = Ledger()
        for entry in range(count):
            ledger.admit(entry, deliver_at_ms=START + entry * 7_919 % count * horizon_ms // count)
        return ledger

    assert bytes_of(delayed) / count < limit


def test_a_run_in_flight_costs_the_same_for_one_entry_as_for_hundreds() -> None:
    def in_flight(each: int) -> Ledger:
        ledger = queue_of(0)
        ledger.admit_run(0, 500 * each)
        for n in range(500):
            ledger.acquire("c", each, START + n, TIMEOUT_MS)
        return ledger

    assert bytes_of(lambda: in_flight(256)) - bytes_of(lambda: in_flight(1)) < 500 * 256 * 1.3, "the state bytes"


def test_a_queue_that_is_always_busy_does_not_grow() -> None:
    """Every message has a time to live far away, is in flight for long, is requeued once and is done soon."""
    ledger = queue_of(0)

    def turns(first: int, count: int) -> None:
        for entry in range(first, first + count):
            ledger.admit(entry, expires_at_ms=START + 86_400_000)
            ledger.acquire("c", 1, START + entry, 3_600_000)
            ledger.release("c", [(entry, 1)], START + entry + 1)
            ledger.lapse(START + entry + 1)
            ledger.acquire("c", 1, START + entry, 3_600_000)
            ledger.ack("c", [(entry, 1)])

    turns(0, 3_000)
    assert bytes_of(lambda: turns(3_000, 6_000)) < 50_000


def test_what_had_its_last_delivery_before_a_restart_is_exhausted() -> None:
    ledger = Ledger(max_deliveries=2)
    ledger.admit_run(0, 4)
    ledger.admit(4, max_deliveries=1)
    ledger.admit(5, max_deliveries=9)
    ledger.attach("anna")
    ledger.acquire("anna", 10, START, 1_000)
    ledger.release("anna", [(0, 2), (5, 1)])
    ledger.acquire("anna", 1, START, 1_000)
    again = Ledger.load(ledger.dump(), max_deliveries=2)
    assert again.exhaust() == [(0, 1), (4, 1)]
    assert again.exhaust() == []
    assert (again.ready, len(again)) == (4, 4)
    kept = Ledger.load(ledger.dump(), max_deliveries=2, keeps_dead=True)
    assert kept.exhaust() == [(0, 1), (4, 1)]
    assert (kept.ready, kept.leaving) == (4, 2)
    assert Ledger.load(ledger.dump()).exhaust() == [(4, 1)]
    assert Ledger().exhaust() == []


@pytest.mark.parametrize("keeps_dead", [False, True])
def test_what_was_delayed_and_had_its_last_delivery_before_a_restart_is_exhausted_too(keeps_dead: bool) -> None:
    """As a replay says it: the message with its time, which has come since, and how often it was handed out."""
    ledger = Ledger(max_deliveries=2, keeps_dead=keeps_dead)
    for entry in range(3):
        ledger.admit(entry, deliver_at_ms=START + 10)
    ledger.note_delivered([(0, 2)])
    ledger.note_delivered([(0, 1)])
    assert ledger.exhaust() == [(0, 1)]
    assert ledger.lapse(START + 1_000).ready == [(1, 2)]
    ledger.attach("anna")
    assert [(one.first, one.count) for one in ledger.acquire("anna", 10, START + 1_000, 1_000)] == [(1, 1), (2, 1)]
    assert ledger.leaving == keeps_dead
