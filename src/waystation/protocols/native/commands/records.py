"""The requests of those who read topics by offsets: record batches, and membership in a consumer group.

There is no rule of messaging here, only the broker's calls. Called by the session, through `requests.HANDLERS`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from waystation.broker.access.types import GroupMember
from waystation.errors import Conflict, Invalid
from waystation.protocol import (
    AwaitRecords,
    CommitOffsets,
    GroupAssignment,
    JoinGroup,
    PartitionBatches,
    Position,
    ReadBatches,
)
from waystation.protocols.native.commands.consumers import NativeConsumer

if TYPE_CHECKING:
    from waystation.protocols.native.session import NativeSession

MAX_POSITIONS = 1_000
"""In one request: up to ten milliseconds of work, if there is something to read at each."""

MAX_AWAITED = 10_000
"""Positions that one connection waits at, in all: each is known to its partition until then."""


def read_batches(session: NativeSession, command: ReadBatches) -> list[PartitionBatches]:
    _check_positions(command.positions)
    return session.access.reading.read_batches(
        command.positions, session.answer_bytes, committed=not command.uncommitted
    )


async def await_records(session: NativeSession, command: AwaitRecords) -> bool:
    positions = command.positions
    _check_positions(positions)
    if command.wait_ms < 0:
        raise Invalid(f"wait_ms: {command.wait_ms} is below zero")
    if session.awaited + len(positions) > MAX_AWAITED:
        raise Invalid(f"positions: this connection waits at {session.awaited} already, and {MAX_AWAITED} are the most")
    session.awaited += len(positions)
    try:
        return await session.access.reading.await_records(positions, command.wait_ms, committed=not command.uncommitted)
    finally:
        session.awaited -= len(positions)


def _check_positions(positions: list[Position]) -> None:
    if not 1 <= len(positions) <= MAX_POSITIONS:
        raise Invalid(f"positions: {len(positions)} is not between 1 and {MAX_POSITIONS}")


# -- a member of a group -----------------------------------------------------------------------------------------------


def join_group(session: NativeSession, command: JoinGroup) -> Awaitable[None]:
    """The number is taken at once, as for a subscription."""
    consumer = session.new_consumer(command.consumer)
    consumer.subject = ", ".join(command.topics) + f" as group {command.group}"
    return _join(session, command, consumer)


async def _join(session: NativeSession, command: JoinGroup, consumer: NativeConsumer) -> None:
    try:
        member = await session.access.subscriptions.join(
            command.group,
            command.topics,
            session.client or f"{session.name}/{command.consumer}",
            lambda error: session.feed_ended(consumer, error),
        )
    except BaseException:
        if session.consumers.get(command.consumer) is consumer:
            del session.consumers[command.consumer]
        raise
    if consumer.ceased or session.closed:
        member.close()
        raise Conflict(f"consumer {command.consumer} was ceased before it was open")
    consumer.feed = member


def group_assignment(session: NativeSession, command: GroupAssignment) -> Awaitable[list[Position]]:
    if command.wait_ms < 0:
        raise Invalid(f"wait_ms: {command.wait_ms} is below zero")
    return _member(session, command.consumer).assignment(command.owned, command.wait_ms)


def commit_as_member(session: NativeSession, command: CommitOffsets) -> Awaitable[None]:
    member = _member(session, command.consumer)
    if member.group != command.group:
        raise Invalid(f"group: consumer {command.consumer} is a member of {member.group!r}, not of {command.group!r}")
    if command.tx:
        raise Invalid("consumer: offsets in a transaction are committed without it")
    return member.commit(command.offsets)


def _member(session: NativeSession, number: int) -> GroupMember:
    feed = session.consumer(number).feed
    if not isinstance(feed, GroupMember):
        raise Invalid(f"consumer: {number} is no member of a group that reads by itself; join with join_group")
    return feed
