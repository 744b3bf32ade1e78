"""What a follower promises, and what it does with its leader's answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.decisions_kit import identity, log, partition
from waystation.cluster.decisions.following import Append, BeginAgain, Drop, Truncate, next_fetch, received
from waystation.cluster.decisions.replica_fetch import NO_EPOCH, EpochEnd, EpochHistory, FetchAnswer, ReplicaFetch
from waystation.cluster.decisions.state import NOBODY

STATE = partition(1).state


def answer(
    offset: int, *, leader: int = 1, epoch: int = 5, start: int = 0, hw: int = 0, diverging: EpochEnd | None = None
) -> FetchAnswer:
    return FetchAnswer(leader, epoch, offset, start, hw, diverging)


def test_a_follower_promises_what_it_has_fsynced() -> None:
    assert next_fetch(identity(2), STATE, log(10, (3, 0), (4, 6)), 10, 7) == ReplicaFetch(
        2, 5, "folder 2", 1, 7, offset=10, last_epoch=4
    )
    assert next_fetch(identity(2), STATE, log(10), 9, 7) is None


def test_an_epoch_that_began_without_a_record_is_not_the_last_one() -> None:
    fetch = next_fetch(identity(2), STATE, log(10, (3, 0), (4, 10)), 10, 1)
    assert fetch is not None
    assert fetch.last_epoch == 3
    assert log(0, (4, 0)).last_epoch == NO_EPOCH


def test_who_may_not_fetch_does_not() -> None:
    assert next_fetch(identity(1), STATE, log(10), 10, 1) is None  # it leads
    assert next_fetch(identity(2), partition(NOBODY).state, log(10), 10, 1) is None
    assert next_fetch(identity(2, leaving=True), STATE, log(10), 10, 1) is None
    assert next_fetch(identity(4), STATE, log(10), 10, 1) is None  # has no replica any more
    assert next_fetch(identity(2), STATE, log(10, (6, 0)), 10, 1) is None  # the store went back


def test_records_of_the_views_epoch_are_taken() -> None:
    assert received(STATE, answer(10, start=3, hw=8), log(10), 5) == Append(3, 8)
    assert received(STATE, answer(10, hw=4), log(10), 5) == Append(0, 5)  # it does not go back


@pytest.mark.parametrize("late", [answer(10, epoch=4), answer(10, epoch=6), answer(10, leader=3), answer(9)])
def test_an_answer_of_another_epoch_or_to_another_fetch_is_dropped(late: FetchAnswer) -> None:
    assert received(STATE, late, log(10), 5) == Drop()


def test_a_follower_truncates_where_the_epochs_part_and_not_at_its_high_watermark() -> None:
    mine = log(12, (2, 0), (3, 6))
    assert received(STATE, answer(12, diverging=EpochEnd(2, 9)), mine, 4) == Truncate(6, below_high_watermark=False)
    assert received(STATE, answer(12, diverging=EpochEnd(3, 9)), mine, 4) == Truncate(9, below_high_watermark=False)
    assert received(STATE, answer(12, diverging=EpochEnd(2, 3)), mine, 4) == Truncate(3, below_high_watermark=True)


def test_a_follower_that_shares_nothing_with_its_leaders_log_begins_again() -> None:
    assert received(STATE, answer(10, start=30), log(10), 5) == BeginAgain(30, below_high_watermark=False)
    other = answer(10, start=4, diverging=EpochEnd(1, 4))
    assert received(STATE, other, log(10, (2, 0)), 0) == BeginAgain(4, below_high_watermark=False)


RUNS = st.lists(st.integers(1, 4), max_size=6)  # how many records each epoch writes


@given(RUNS, RUNS, st.integers(0, 6))
def test_a_follower_comes_to_the_leaders_history_by_truncating(shared: list[int], other: list[int], fork: int) -> None:
    """Whatever it has after the point where the histories part; and nothing before that point is removed."""
    common = [(epoch, offset) for epoch, count in enumerate(shared) for offset in range(count)]
    at = min(fork, len(common))
    followers = common[:at] + [(10 + 2 * i, n) for i, count in enumerate(other) for n in range(count)]
    leaders = common[:at] + [(11 + 2 * i, n) for i, count in enumerate(other[1:]) for n in range(count)]
    state = partition(1, epoch=99).state
    log_of_leader = history(leaders)
    for _ in range(20):
        mine = history(followers)
        parts = log_of_leader.parts_from(mine.end, mine.last_epoch)
        if parts is None:
            break
        found = received(state, answer(mine.end, epoch=99, diverging=parts), mine, 0)
        assert isinstance(found, Truncate)
        assert at <= found.offset < mine.end
        followers = followers[: found.offset]
    assert followers == leaders[: len(followers)]


def history(records: list[tuple[int, int]]) -> EpochHistory:
    epochs: list[tuple[int, int]] = []
    for offset, (epoch, _) in enumerate(records):
        if not epochs or epochs[-1][0] != epoch:
            epochs.append((epoch, offset))
    return EpochHistory(0, len(records), epochs)
