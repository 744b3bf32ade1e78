"""Fetch sessions are their owner's: their ids are short, and whoever guesses one finds nothing."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from waystation.protocols.kafka.records.fetch_codec import FetchPartition, FetchRequest
from waystation.protocols.kafka.records.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_PARTITIONS,
    MAX_SESSIONS,
    FetchSession,
    SessionError,
    Sessions,
)
from waystation.world.random import SystemRandom

ALICE, ELSEWHERE, BOB = ("User:alice", "/"), ("User:alice", "shop"), ("User:bob", "/")
ELSEWHERE_BOB = ("User:bob", "shop")


def fetch(epoch: int, session: int = 0, topics: tuple[str, ...] = ()) -> FetchRequest:
    partitions = [FetchPartition(topic, 0, 0, 1_000) for topic in topics]
    return FetchRequest(12, 0, 1, 1_000, False, session, epoch, partitions)


def begun(sessions: Sessions) -> FetchSession:
    session = sessions.enter(fetch(INITIAL_EPOCH, topics=("secret",)), ALICE)
    assert session is not None
    return session


@pytest.mark.parametrize("other", [BOB, ELSEWHERE])
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_session_is_not_there_for_others(other: tuple[str, str], epoch: int) -> None:
    sessions = Sessions(SystemRandom())
    session = begun(sessions)
    with pytest.raises(SessionError) as caught:
        sessions.enter(fetch(epoch, session.id), other)
    assert caught.value.code is ErrorCode.fetch_session_id_not_found
    assert sessions.enter(fetch(1, session.id), ALICE) is session


@pytest.mark.parametrize("epoch", [FINAL_EPOCH, INITIAL_EPOCH])
def test_others_cannot_close_a_session(epoch: int) -> None:
    sessions = Sessions(SystemRandom())
    session = begun(sessions)
    sessions.enter(fetch(epoch, session.id), BOB)
    assert sessions.enter(fetch(1, session.id), ALICE) is session
    sessions.enter(fetch(epoch, session.id), ALICE)
    with pytest.raises(SessionError):
        sessions.enter(fetch(2, session.id), ALICE)


def of_partitions(count: int, epoch: int = INITIAL_EPOCH, session: int = 0) -> FetchRequest:
    return FetchRequest(
        12, 0, 1, 1_000, False, session, epoch, [FetchPartition("t", n, 0, 1_000) for n in range(count)]
    )


def test_who_has_most_sessions_loses_the_oldest_of_its_own() -> None:
    sessions = Sessions(SystemRandom())
    first = begun(sessions)
    for _ in range(MAX_SESSIONS + 5):
        assert sessions.enter(of_partitions(0), BOB) is not None
    assert len(sessions) == MAX_SESSIONS
    assert sessions.enter(fetch(1, first.id), ALICE) is first


def test_who_has_most_partitions_makes_room_for_others_and_gets_no_more() -> None:
    sessions = Sessions(SystemRandom())
    few = MAX_PARTITIONS // 10
    greedy = [sessions.enter(of_partitions(few), owner) for owner in (BOB, ELSEWHERE_BOB) * 5]
    assert all(greedy)
    assert sessions.enter(of_partitions(1), BOB) is None
    mine = [sessions.enter(of_partitions(few), ALICE) for _ in range(6)]
    assert mine[:5].count(None) == 0
    assert mine[5] is None, "which would be more than anybody has"
    left = [one for one in greedy if one is not None and sessions.has(one.id)]
    assert left == greedy[5:]


def test_a_session_that_grows_is_bounded_too() -> None:
    sessions = Sessions(SystemRandom())
    mine = begun(sessions)
    grown = sessions.enter(of_partitions(0), BOB)
    assert grown is not None
    with pytest.raises(SessionError) as caught:
        sessions.enter(of_partitions(MAX_PARTITIONS, 1, grown.id), BOB)
    assert caught.value.code is ErrorCode.fetch_session_id_not_found
    assert sessions.enter(fetch(1, mine.id), ALICE) is mine
    assert len(sessions) == 1
