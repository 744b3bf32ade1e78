"""Verdicts: neighbours in one read of the socket that say the same of one consumer's messages become one call.

Each is answered separately, with what of its own messages was not in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waystation.broker.access.types import QueueFeed, Verdict, count_of
from waystation.errors import Invalid, WaystationError
from waystation.message import Run
from waystation.protocol import AnyCommand, Settle, SettleAnswer
from waystation.protocols.native.commands.durability import Durability, kept

if TYPE_CHECKING:
    from waystation.protocols.native.session import NativeSession

MAX_TAGS = 100_000
"""Tags in one verdict: as many as one `get` can give. Somebody may name what is not in flight, and it is looked for."""


def settles_together(commands: Sequence[AnyCommand], at: int) -> int:
    """The index behind the settles from `at` on that say the same of one consumer's messages."""
    first = commands[at]
    behind = at + 1
    if type(first) is not Settle or first.tx:
        return behind
    while behind < len(commands):
        command = commands[behind]
        if (
            type(command) is not Settle
            or command.consumer != first.consumer
            or command.verdict != first.verdict
            or command.delay_ms != first.delay_ms
            or command.error != first.error
            or command.deliveries != first.deliveries
            or command.durable != first.durable
            or command.tx
        ):
            break
        behind += 1
    return behind


def settle(session: NativeSession, commands: Sequence[Settle]) -> None:
    """The same verdict on messages of one consumer."""
    first = commands[0]
    if first.tx:
        _settle_in_transaction(session, first)
        return
    try:
        feed = session.consumer(first.consumer).feed
        check_deliveries(first.deliveries)
        for command in commands:
            check_runs(command.runs)
        runs = joined(commands)
        if runs is None:
            raise Invalid("runs: the same message is named twice")
        if first.delay_ms is not None and first.delay_ms < 0:
            raise Invalid(f"delay_ms: {first.delay_ms} is below zero")
        verdict = Verdict(first.verdict)
        if isinstance(feed, QueueFeed):
            feed.check_open()
            settled = feed.settle(
                verdict, runs, delay_ms=first.delay_ms, error=first.error, deliveries=first.deliveries
            )
        else:  # its tags are those of deliveries already
            settled = feed.settle(verdict, runs, delay_ms=first.delay_ms, error=first.error)  # type: ignore[union-attr]
    except WaystationError as error:
        if len(commands) == 1:
            session.fail(first.id, error)
            return
        for command in commands:
            settle(session, (command,))
        return
    session.meter.settled(first.verdict, count_of(runs) - count_of(settled.unknown))
    kept(session, settled.receipt if first.durable else None, share_out(commands, settled.unknown))


def _settle_in_transaction(session: NativeSession, command: Settle) -> None:
    if command.verdict != "ack":
        raise Invalid(f"verdict: {command.verdict!r} cannot be part of a transaction; only 'ack' can")
    check_runs(command.runs)
    check_deliveries(command.deliveries)
    transaction = session.transaction(command.tx)
    feed = session.consumer(command.consumer).feed

    async def work() -> SettleAnswer:
        # The broker refuses what is not a queue's, and does nothing if one of them is not in flight.
        await transaction.settle(feed, command.runs, command.deliveries)  # type: ignore[arg-type]
        session.meter.acked += count_of(command.runs)
        return SettleAnswer()

    session.in_turn(("tx", command.tx), command.id, work)


def check_runs(runs: Sequence[Run]) -> None:
    total = 0
    for first, count in runs:
        total += count
        if first < 0 or count <= 0 or total > MAX_TAGS:
            raise Invalid(
                f"runs: ({first}, {count}) is no run: a tag and how many from there, {MAX_TAGS} in all at most"
            )


def check_deliveries(deliveries: int) -> None:
    if deliveries < 0:
        raise Invalid(f"deliveries: {deliveries} is below zero; it is the count that the message was delivered with")


def joined(commands: Sequence[Settle]) -> list[Run] | None:
    """All their runs in order, neighbours made one; None if two of them have a tag in common."""
    if len(commands) == 1 and len(commands[0].runs) <= 1:
        return commands[0].runs
    found: list[Run] = []
    end = -1
    for first, count in sorted([run for command in commands for run in command.runs]):
        if first < end:
            return None
        if first == end:
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((first, count))
        end = first + count
    return found


def share_out(commands: Sequence[Settle], unknown: Sequence[Run]) -> list[Durability]:
    """Each settle's own answer, where no tag was named by two of them."""
    if not unknown:
        return [(command.id, SettleAnswer()) for command in commands]
    answers: list[Durability] = []
    for command in commands:
        own = [
            (low, high - low)
            for first, count in command.runs
            for lost, lost_count in unknown
            if (low := max(first, lost)) < (high := min(first + count, lost + lost_count))
        ]
        answers.append((command.id, SettleAnswer(sorted(own))))
    return answers
