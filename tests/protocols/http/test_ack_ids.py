"""Ack ids: what they hold, and when they hold nothing any more."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import Conflict, WaystationError
from waystation.message import Delivered, Message, Run
from waystation.protocols.http.deliveries.ack_ids import FORGET_AFTER_MS, AckIds, check_any, runs_of
from waystation.queues.feed import Settled, Verdict

TIMEOUT_MS = 1000


class FeedOf:
    """A feed with these tags in flight."""

    def __init__(self, *tags: int) -> None:
        self.held = set(tags)
        self.settled: list[tuple[Verdict, list[int]]] = []
        self.closed = False

    def credit(self, count: int) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    def settle(
        self, verdict: Verdict, runs: Sequence[Run], *, delay_ms: int | None = None, error: str | None = None
    ) -> Settled:
        tags = [tag for first, count in runs for tag in range(first, first + count)]
        self.settled.append((verdict, [tag for tag in tags if tag in self.held]))
        unknown = [(tag, 1) for tag in tags if tag not in self.held]
        self.held -= set(tags)
        return Settled(None, unknown)

    def touch(self, runs: Sequence[Run], visibility_timeout_ms: int | None = None) -> list[Run]:
        return [(first, count) for first, count in runs if first not in self.held]

    def leave(self) -> None:
        self.close()

    def end(self, error: WaystationError) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


def given_out(ack_ids: AckIds, feed: FeedOf, *tags: int, place: str = "queue:q") -> list[str]:
    source = ack_ids.add(place, feed, TIMEOUT_MS)
    return [ack_ids.give(source, Delivered(tag, 1, 0, Message(b"")), now_ms=0) for tag in tags]


def test_an_id_settles_its_message_once() -> None:
    ack_ids, feed = AckIds(1), FeedOf(4, 5, 9)
    ids = given_out(ack_ids, feed, 4, 5, 9)
    outcome = ack_ids.settle(ids, Verdict.ACK)
    assert (outcome.settled, outcome.unknown) == (3, [])
    assert feed.settled == [(Verdict.ACK, [4, 5, 9])]
    again = ack_ids.settle(ids, Verdict.ACK)
    assert (again.settled, again.unknown) == (0, ids)
    with pytest.raises(Conflict):
        check_any(again)


def test_an_id_of_an_earlier_delivery_of_the_same_message_settles_nothing() -> None:
    ack_ids, feed = AckIds(1), FeedOf(4)
    source = ack_ids.add("queue:q", feed, TIMEOUT_MS)
    old = ack_ids.give(source, Delivered(4, 1, 0, Message(b"")), 0)
    new = ack_ids.give(source, Delivered(4, 2, 0, Message(b"")), 0)
    assert ack_ids.settle([old], Verdict.ACK).unknown == [old]
    assert feed.held == {4}
    assert ack_ids.settle([new], Verdict.ACK).settled == 1


def test_a_hold_that_ended_is_unknown() -> None:
    ack_ids, feed = AckIds(1), FeedOf(4)
    kept, ended = given_out(ack_ids, feed, 4, 5)
    outcome = ack_ids.settle([kept, ended], Verdict.REJECT)
    assert (outcome.settled, outcome.unknown) == (1, [ended])


def test_an_id_of_another_queue_life_or_holder_is_unknown_and_untouched() -> None:
    ack_ids, feed = AckIds(1), FeedOf(4)
    ids = given_out(ack_ids, feed, 4)
    other = ack_ids.add("queue:q", FeedOf(), TIMEOUT_MS)
    assert ack_ids.settle(ids, Verdict.ACK, place="queue:other").unknown == ids
    assert ack_ids.settle(ids, Verdict.ACK, source=other).unknown == ids
    assert AckIds(2).settle(ids, Verdict.ACK).unknown == ids
    assert ack_ids.touch(ids, None, 0, place="queue:other").unknown == ids
    assert ack_ids.touch(ids, None, 0).settled == 1
    assert feed.held == {4}


@given(st.text(max_size=60))
def test_any_text_may_come_as_an_id(text: str) -> None:
    ack_ids = AckIds(1)
    given_out(ack_ids, FeedOf(4), 4)
    assert ack_ids.settle([text], Verdict.ACK).unknown == [text]


def test_what_must_have_ended_is_forgotten_unless_it_was_touched() -> None:
    ack_ids, feed = AckIds(1), FeedOf(4, 5)
    touched, left = given_out(ack_ids, feed, 4, 5)
    over = 2 * TIMEOUT_MS + FORGET_AFTER_MS
    assert ack_ids.sweep(over) == []
    assert ack_ids.touch([touched], 60_000, over).settled == 1
    assert ack_ids.sweep(over + 1) == []
    assert ack_ids.settle([left], Verdict.ACK).unknown == [left]
    assert ack_ids.settle([touched], Verdict.ACK).settled == 1
    assert len(ack_ids.sweep(over + 1)) == 1


def test_a_holder_that_goes_closes_its_feed_and_its_ids_hold_nothing() -> None:
    ack_ids, feed = AckIds(1), FeedOf(4)
    source = ack_ids.add("queue:q", feed, TIMEOUT_MS)
    ack_id = ack_ids.give(source, Delivered(4, 1, 0, Message(b"")), 0)
    ack_ids.drop(source)
    assert feed.closed
    assert ack_ids.settle([ack_id], Verdict.ACK).unknown == [ack_id]


@given(st.sets(st.integers(0, 50)))
def test_runs_are_the_tags(tags: set[int]) -> None:
    runs = runs_of(tags)
    assert [tag for first, count in runs for tag in range(first, first + count)] == sorted(tags)
    assert all(a[0] + a[1] < b[0] for a, b in pairwise(runs))
