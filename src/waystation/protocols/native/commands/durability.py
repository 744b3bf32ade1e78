"""Answers that wait until what they answer for is durable, without a task for each.

The group commit calls back once for all that were written together. Used by the commands that come a hundred thousand
times a second: put, settle, publish.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waystation.broker.access.types import Receipt
from waystation.errors import WaystationError

if TYPE_CHECKING:
    from waystation.protocols.native.session import NativeSession, Timing

Durability = tuple[int, Any]
"""(request, what to answer when it is durable)."""


def kept(session: NativeSession, receipt: Receipt | None, answers: list[Durability]) -> None:
    """Answers when it is durable; at once if nothing had to be written."""
    keep_all(session, () if receipt is None else (receipt,), answers)


def keep_all(
    session: NativeSession, receipts: Sequence[Receipt], answers: list[Durability], timing: Timing | None = None
) -> None:
    """`timing`: of the request, where it is not the one that is being handled at this moment."""
    answers = [keeping for keeping in answers if keeping[0]]
    if not answers:
        return
    timing = timing or session.timing
    if not receipts:
        session.took(timing, len(answers))
        session.answer_all(answers)
        return
    session.began(len(answers))
    session.access.when_durable(receipts, _Answering(session, answers, timing))


class _Answering:
    """What `when_durable` calls; a class, since it is made for every write and this is smaller than a closure."""

    __slots__ = ("_answers", "_session", "_timing")

    def __init__(self, session: NativeSession, answers: list[Durability], timing: Timing) -> None:
        self._session = session
        self._answers = answers
        self._timing = timing

    def __call__(self, error: WaystationError | None) -> None:
        session = self._session
        if error is None:
            session.took(self._timing, len(self._answers))
            session.answer_all(self._answers)
        else:
            for request, _ in self._answers:
                session.fail(request, error)
        session.ended(len(self._answers))
