"""Fetch sessions are their owner's: their ids are short, and whoever guesses one finds nothing."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from waystation.protocols.kafka.records.fetch_codec import FetchPartition, FetchRequest
from waystation.protocols.kafka.records.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    SessionError,
    Sessions,
)
from waystation.world.random import SystemRandom

ALICE, ELSEWHERE, BOB = ("User:alice", "/"), ("User:alice", "shop"), ("User:bob", "/")


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
