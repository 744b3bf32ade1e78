"""What a leader may promise: acknowledged is what every counted member has on disk."""

from __future__ import annotations

import pytest

from tests.cluster.decisions_kit import REVISION, fetch, leader, log, partition
from waystation.cluster.decisions.promises import FetchDecision, FetchVerdict, Joiner, LeaderState, floor
from waystation.cluster.decisions.replica_fetch import NO_EPOCH, EpochEnd

LAG = 10.0


def promised(state: LeaderState, node_id: int, offset: int, number: int, now: float = 0.0) -> None:
    assert state.fetched(fetch(node_id, offset, number), log(state.end), now).verdict is FetchVerdict.SERVED


def appended(end: int, state: LeaderState | None = None) -> LeaderState:
    """A leader that has written records of its epoch, and synced them."""
    state = state or leader()
    state.wrote(end, end)
    return state


# -- the high watermark -----------------------------------------------------------------------------------------------


def test_a_record_is_acknowledged_when_all_members_have_fetched_behind_it() -> None:
    state = appended(10)
    promised(state, 2, 10, 1)
    assert state.high_watermark == 0
    promised(state, 3, 6, 1)
    assert state.high_watermark == 6
    promised(state, 3, 10, 2)
    assert state.high_watermark == 10


def test_the_leaders_own_disk_counts_too() -> None:
    state = leader()
    state.wrote(10, 4)
    promised(state, 2, 10, 1)
    promised(state, 3, 10, 1)
    assert state.high_watermark == 4
    state.wrote(10, 10)
    assert state.high_watermark == 10


def test_a_new_epoch_forgets_promises_and_the_high_watermark_waits() -> None:
    state = leader(end=10, high_watermark=7)
    assert not state.settled
    promised(state, 2, 10, 1)
    assert state.high_watermark == 7
    promised(state, 3, 9, 1)
    assert (state.high_watermark, state.settled) == (9, False)
    promised(state, 3, 10, 2)
    assert (state.high_watermark, state.settled) == (10, True)


def test_a_member_that_is_being_removed_counts_until_that_is_known() -> None:
    state = appended(10)
    promised(state, 2, 10, 1)
    state.proposed((1, 2))
    assert state.counted == {1, 2, 3}
    assert state.high_watermark == 0
    assert state.learned(partition(1, (1, 2), revision=REVISION + 1))
    assert state.counted == {1, 2}
    assert (state.pending, state.high_watermark) == (None, 10)


def test_a_replica_that_is_being_added_counts_at_once() -> None:
    state = appended(10, leader(partition(1, (1, 2))))
    promised(state, 3, 0, 1)
    state.proposed((1, 2, 3))
    promised(state, 2, 10, 1)
    assert state.counted == {1, 2, 3}
    assert state.high_watermark == 0
    promised(state, 3, 10, 2)
    assert state.high_watermark == 10


def test_a_lost_answer_says_nothing_and_a_refusal_only_with_what_is_read_after_it() -> None:
    state = leader(partition(1, (1, 2)))
    state.proposed((1, 2, 3))
    assert state.learned(partition(1, (1, 2), revision=REVISION))  # told late: it does not tell the outcome
    assert state.counted == {1, 2, 3}
    state.refused(REVISION + 1)  # somebody has written: perhaps this very change, by an earlier attempt
    assert state.counted == {1, 2, 3}
    state.refused(REVISION)
    assert state.counted == {1, 2}


def test_there_is_one_change_of_the_set_at_a_time() -> None:
    state = leader()
    state.proposed((1, 2))
    with pytest.raises(RuntimeError, match="already"):
        state.proposed((1, 3))


def test_nothing_is_acknowledged_below_the_floor() -> None:
    state = appended(10, leader(partition(1, (1,))))
    assert state.high_watermark == 0
    assert not state.accepts(0.0, LAG)


def test_the_floor_is_all_replicas_where_there_are_fewer_than_the_minimum() -> None:
    alone = partition(1, (1,), (1,))
    assert floor(alone.state, 2) == 1
    assert appended(10, leader(alone)).high_watermark == 10
    growing = partition(1, (1,), (1, 2, 3), adding=(2, 3))
    assert floor(growing.state, 2) == 1  # what is being added does not stop what works already


def test_a_deposed_leader_is_told_so() -> None:
    assert not leader().learned(partition(2, epoch=6, revision=REVISION + 1))
    assert not leader().learned(partition(-1, revision=REVISION + 1))
    assert not leader().learned(partition(1, epoch=6, revision=REVISION + 1))  # leads again, but in another epoch


# -- which fetches count ----------------------------------------------------------------------------------------------


def test_a_fetch_of_another_epoch_is_refused_and_counts_for_nothing() -> None:
    state = appended(10)
    assert state.fetched(fetch(2, 10, epoch=4), log(10), 0.0) == FetchDecision(FetchVerdict.FENCED_EPOCH)
    assert state.fetched(fetch(2, 10, epoch=6), log(10), 0.0) == FetchDecision(FetchVerdict.UNKNOWN_EPOCH)
    assert state.followers == {}


def test_a_fetch_of_a_node_without_a_replica_is_refused() -> None:
    assert appended(10).fetched(fetch(4, 10), log(10), 0.0) == FetchDecision(FetchVerdict.NOT_A_REPLICA)


def test_a_fetch_that_diverges_is_no_promise() -> None:
    state = leader(partition(1, (1, 2), (1, 2)), end=10)
    here = log(10, (2, 0), (4, 6))
    assert state.fetched(fetch(2, 12, 1, last_epoch=3), here, 0.0) == FetchDecision(
        FetchVerdict.DIVERGING, EpochEnd(2, 6)
    )
    assert state.fetched(fetch(2, 12, 2, last_epoch=4), here, 0.0) == FetchDecision(
        FetchVerdict.DIVERGING, EpochEnd(4, 10)
    )
    assert state.high_watermark == 0
    assert state.fetched(fetch(2, 6, 3, last_epoch=2), here, 0.0).verdict is FetchVerdict.SERVED
    assert state.high_watermark == 6
    assert state.broken == frozenset()


def test_a_late_fetch_is_dropped() -> None:
    state = appended(10)
    promised(state, 2, 8, 5)
    assert state.fetched(fetch(2, 6, 4), log(10), 0.0) == FetchDecision(FetchVerdict.STALE)
    assert state.fetched(fetch(2, 10, 99, incarnation=0), log(10), 0.0) == FetchDecision(FetchVerdict.STALE)
    assert (state.followers[2].offset, state.broken) == (8, frozenset())


def test_another_disk_begins_without_promises() -> None:
    state = appended(10)
    promised(state, 2, 10, 5)
    promised(state, 3, 10, 5)
    found = state.fetched(fetch(2, 0, 1, folder="new", incarnation=2), log(10), 0.0)
    assert found.verdict is FetchVerdict.SERVED
    assert (state.followers[2].offset, state.broken) == (0, frozenset())
    assert state.fetched(fetch(2, 10, 6), log(10), 0.0) == FetchDecision(FetchVerdict.STALE)  # from the replaced disk
    assert state.followers[2].offset == 0


def test_a_restart_with_the_same_disk_keeps_its_promise() -> None:
    state = appended(10)
    promised(state, 2, 8, 5)
    assert state.fetched(fetch(2, 8, 1, incarnation=2), log(10), 0.0).verdict is FetchVerdict.SERVED
    assert state.broken == frozenset()


@pytest.mark.parametrize("back", [fetch(2, 5, 6), fetch(2, 12, 6, last_epoch=7), fetch(2, 5, 1, incarnation=2)])
def test_a_follower_that_goes_back_has_lost_records_and_is_to_be_taken_out(back: object) -> None:
    state = appended(10)
    promised(state, 2, 8, 5)
    state.fetched(back, log(10), 0.0)  # type: ignore[arg-type]
    assert state.broken == {2}
    assert 2 not in state.caught_up()
    assert state.learned(partition(1, (1, 3), revision=REVISION + 1))
    assert state.broken == frozenset()


def test_a_follower_behind_the_log_start_begins_again_and_is_not_blamed() -> None:
    state = appended(10, leader(partition(1, (1, 2))))
    promised(state, 3, 4, 1)
    later = log(10, (5, 6), start=6)
    assert state.fetched(fetch(3, 4, 2), later, 0.0) == FetchDecision(FetchVerdict.BEHIND_START)
    assert state.fetched(fetch(3, 6, 3, last_epoch=NO_EPOCH), later, 0.0) == FetchDecision(FetchVerdict.SERVED)
    assert state.broken == frozenset()


def test_a_follower_at_the_log_start_is_served_though_its_last_record_is_deleted_here() -> None:
    state = leader(end=10)
    emptied = log(10, (5, 10), start=10)
    assert state.fetched(fetch(2, 10, 1, last_epoch=3), emptied, 0.0) == FetchDecision(FetchVerdict.SERVED)


def test_what_was_promised_of_a_tail_that_is_cut_off_is_void() -> None:
    state = leader(end=10)
    promised(state, 2, 10, 1)
    promised(state, 3, 8, 1)
    assert state.high_watermark == 8
    state.wrote(9, 9)
    state.wrote(12, 12)  # other records take the place of the tail
    assert (state.high_watermark, sorted(state.followers)) == (8, [3])


# -- joining, lagging, handing over -----------------------------------------------------------------------------------


def test_a_replica_joins_when_it_has_the_high_watermark_and_the_start_of_the_epoch() -> None:
    state = leader(partition(1, (1, 2)), end=10, high_watermark=4)
    promised(state, 3, 6, 1)
    assert state.may_join() == []  # its predecessor may have acknowledged up to 10
    promised(state, 3, 10, 2)
    assert state.may_join() == [Joiner(3, "folder 3")]
    state.wrote(20, 20)
    promised(state, 2, 15, 1)
    assert (state.high_watermark, state.may_join()) == (15, [])
    promised(state, 3, 15, 3)
    assert state.may_join() == [Joiner(3, "folder 3")]
    state.proposed((1, 2, 3))
    assert state.may_join() == []


def test_who_was_removed_and_is_added_again_has_promised_nothing() -> None:
    state = appended(10, leader(partition(1, (1, 2))))
    promised(state, 3, 10, 1)
    assert state.learned(partition(1, (1, 2), (1, 2), revision=REVISION + 1))
    assert state.learned(partition(1, (1, 2), (1, 2, 3), revision=REVISION + 2))
    assert state.may_join() == []


def test_a_member_that_does_not_keep_up_falls_behind() -> None:
    state = appended(10)
    assert state.fell_behind(LAG, LAG) == frozenset()  # each has that long from the start of the epoch
    promised(state, 2, 10, 1, now=5.0)
    promised(state, 3, 4, 1, now=5.0)
    promised(state, 3, 9, 2, now=12.0)  # fetches, but never has what there was when it fetched before
    assert state.fell_behind(12.0, LAG) == {3}
    assert state.accepts(12.0, LAG)
    assert state.fell_behind(16.0, LAG) == {2, 3}
    assert not state.accepts(16.0, LAG)


def test_a_member_that_is_always_a_little_behind_keeps_up() -> None:
    state = appended(10)
    for number, now in enumerate(range(0, 100, 5)):
        promised(state, 2, state.end - 10, number, now=float(now))
        state.wrote(state.end + 10, state.end + 10)
    assert 2 not in state.fell_behind(100.0, LAG)


def test_a_member_that_is_known_to_be_dead_is_not_waited_for() -> None:
    state = appended(10)
    promised(state, 2, 10, 1)
    assert state.fell_behind(0.0, LAG, ended={3}) == {3}


def test_a_leader_that_nobody_can_reach_should_resign() -> None:
    state = appended(10)
    promised(state, 2, 10, 1, now=1.0)
    assert not state.cut_off(5.0, 5.0, {1, 2, 3})
    assert not state.cut_off(6.0, 5.0, {1, 2, 3})
    assert state.cut_off(7.0, 5.0, {1, 2, 3})
    assert not state.cut_off(7.0, 5.0, {1})  # they are dead: nobody could do better


def test_the_leadership_is_handed_to_members_that_have_what_is_acknowledged() -> None:
    state = leader(end=10, high_watermark=4)
    promised(state, 2, 10, 1)
    promised(state, 3, 8, 1)
    assert state.caught_up() == {2}
