"""Puts: neighbours in one read of the socket become one call of the broker, which writes those to queues of one shard
together.

Each is answered separately. Those to one queue are tried as one put first, and one by one if it cannot take all of
them, so a bad one spoils no other. One that waits for room keeps the later ones for its queue behind it. When one of a
series is refused, so are those of the series that come behind it (`refused_series.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waystation.broker.access.types import PutResult
from waystation.errors import Full, WaystationError, without_frames
from waystation.message import size_of_all
from waystation.protocol import AnyCommand, Put, PutAnswer
from waystation.protocols.native.commands.durability import Durability, kept

if TYPE_CHECKING:
    from waystation.broker.access.types import PutOutcome, Receipt
    from waystation.protocols.native.session import NativeSession


def puts_together(commands: Sequence[AnyCommand], at: int) -> int:
    """The index behind the puts from `at` on that go to queues, and in no transaction. A series is in one queue: where
    it goes on in another one, what is refused there depends on what becomes of those before."""
    first = commands[at]
    behind = at + 1
    if type(first) is not Put or first.tx:
        return behind
    series = {first.series: first.queue} if first.series else {}
    while behind < len(commands):
        command = commands[behind]
        if type(command) is not Put or command.tx:
            break
        if command.series and series.setdefault(command.series, command.queue) != command.queue:
            break
        behind += 1
    return behind


def put(session: NativeSession, commands: Sequence[Put]) -> None:
    """Puts that came together. Those for one queue keep their order."""
    if commands[0].tx:
        _put_in_transaction(session, commands[0])
        return
    by_queue: dict[str, list[Put]] = {}
    for command in commands:
        by_queue.setdefault(command.queue, []).append(command)
    together: list[list[Put]] = []
    alone: list[list[Put]] = []
    for queue, own in by_queue.items():
        (alone if ("queue", queue) in session.turns or _is_refused(session, own) else together).append(own)
    if len(together) == 1 and len(together[0]) == 1:
        _put_one(session, together[0][0])
    elif together:
        _put_several(session, together)
    for own in alone:
        for command in own:
            _put_one(session, command)


def _is_refused(session: NativeSession, commands: Sequence[Put]) -> bool:
    """Whether it is known of some of these that they will be: the others have to be told apart from them."""
    refused = session.refused_series
    return any(not command.messages or (refused and command.series in refused) for command in commands)


def _put_several(session: NativeSession, together: Sequence[list[Put]]) -> None:
    """Puts by queue: each queue's are one put."""
    outcomes = session.access.put_several(
        [(own[0].queue, [message for command in own for message in command.messages]) for own in together]
    )
    durable: dict[Receipt, list[Durability]] = {}
    for own, outcome in zip(together, outcomes, strict=True):
        if isinstance(outcome, PutResult):
            durable.setdefault(outcome.receipt, []).extend(answers_of(own, outcome))
        elif len(own) == 1 and not isinstance(outcome, Full):
            _refuse(session, own[0], outcome)
        else:
            for command in own:
                _put_one(session, command)
    for receipt, answers in durable.items():
        kept(session, receipt, answers)


def _put_one(session: NativeSession, command: Put) -> None:
    if ("queue", command.queue) in session.turns:
        _put_in_turn(session, command)
        return
    outcome = _try(session, command)
    if isinstance(outcome, PutResult):
        answer = PutAnswer(outcome.first, outcome.count, outcome.duplicates)
        kept(session, outcome.receipt, [(command.id, answer)])
    elif isinstance(outcome, Full) and command.wait_ms > 0:
        _put_in_turn(session, command)
    else:
        _refuse(session, command, outcome)


def _try(session: NativeSession, command: Put) -> PutOutcome:
    """What waits for room if there is none is no dead letter before it has waited in vain."""
    try:
        session.refused_series.check(command.series)
        if command.wait_ms <= 0:
            return session.access.put(command.queue, command.messages)
    except WaystationError as error:
        return without_frames(error)
    (outcome,) = session.access.put_several([(command.queue, command.messages)])
    return outcome


def _refuse(session: NativeSession, command: Put, error: WaystationError) -> None:
    session.refused_series.note(command.series, error)
    session.fail(command.id, error)


def _put_in_turn(session: NativeSession, command: Put) -> None:
    """Waits for room, and keeps the later ones for this queue behind it."""

    async def work() -> PutAnswer:
        session.refused_series.check(command.series)
        try:
            return await session.access.put_durable(command.queue, command.messages, wait_ms=command.wait_ms)
        except WaystationError as error:
            session.refused_series.note(command.series, error)
            raise

    session.in_turn(("queue", command.queue), command.id, work, size_of_all(command.messages))


def _put_in_transaction(session: NativeSession, command: Put) -> None:
    transaction = session.transaction(command.tx)

    async def work() -> PutAnswer:
        result = await transaction.put(command.queue, command.messages)
        session.access.count(result.count, result.bytes)
        return PutAnswer(result.first, result.count, result.duplicates)

    session.in_turn(("tx", command.tx), command.id, work, size_of_all(command.messages))


def answers_of(commands: Sequence[Put], result: PutResult) -> list[Durability]:
    """Each put's own answer, out of the one for all of them."""
    answers: list[Durability] = []
    tag = result.first
    if not result.duplicates:
        for command in commands:
            count = len(command.messages)
            answers.append((command.id, PutAnswer(tag, count)))
            tag += count
        return answers
    duplicates = sorted(result.duplicates)
    begin, seen = 0, 0
    for command in commands:
        end = begin + len(command.messages)
        own: list[int] = []
        while seen < len(duplicates) and duplicates[seen] < end:
            own.append(duplicates[seen] - begin)
            seen += 1
        stored = end - begin - len(own)
        answers.append((command.id, PutAnswer(tag, stored, own)))
        tag += stored
        begin = end
    return answers
