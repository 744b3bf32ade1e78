"""Puts: neighbours in one read of the socket that go to one queue become one call of the broker.

Each is answered separately, and if they cannot be taken together they are tried one by one, so a bad one spoils no
other. One that waits for room keeps the later ones for its queue behind it. When one of a series is refused, so are
those of the series that come behind it (`refused_series.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waystation.errors import Full, WaystationError
from waystation.message import size_of_all
from waystation.protocol import AnyCommand, Put, PutAnswer
from waystation.protocols.native.commands.durability import Durability, kept

if TYPE_CHECKING:
    from waystation.broker.access.types import PutResult
    from waystation.protocols.native.session import NativeSession


def puts_together(commands: Sequence[AnyCommand], at: int) -> int:
    """The index behind the puts from `at` on that go to one queue."""
    first = commands[at]
    behind = at + 1
    if type(first) is not Put or first.tx:
        return behind
    while behind < len(commands):
        command = commands[behind]
        if type(command) is not Put or command.queue != first.queue or command.tx:
            break
        behind += 1
    return behind


def put(session: NativeSession, commands: Sequence[Put]) -> None:
    """Puts for one queue, in their order."""
    queue = commands[0].queue
    if commands[0].tx:
        _put_in_transaction(session, commands[0])
    elif ("queue", queue) in session.turns:
        for command in commands:
            _put_in_turn(session, command)
    elif len(commands) == 1:
        _put_one(session, commands[0])
    elif session.refused_series and any(command.series in session.refused_series for command in commands):
        for command in commands:
            _put_one(session, command)
    else:
        messages = [message for command in commands for message in command.messages]
        try:
            result = session.access.put(queue, messages)
        except WaystationError:
            for command in commands:
                put(session, (command,))
        else:
            kept(session, result.receipt, answers_of(commands, result))


def _put_one(session: NativeSession, command: Put) -> None:
    try:
        session.refused_series.check(command.series)
        result = session.access.put(command.queue, command.messages)
    except Full as error:
        if command.wait_ms > 0:
            _put_in_turn(session, command)
        else:
            session.refused_series.note(command.series, error)
            session.fail(command.id, error)
    except WaystationError as error:
        session.refused_series.note(command.series, error)
        session.fail(command.id, error)
    else:
        answer = PutAnswer(result.first, result.count, result.duplicates)
        kept(session, result.receipt, [(command.id, answer)])


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
