"""Open consumers and what they were allowed by: when rules or users change, those that may no longer read are ended.

A consumer is asked about when it is opened, and not for each message; so what it was asked is remembered here, and
asked again when the answers may be others. Whoever may do everything is not remembered, unless a rule can take that
from it. On the loop's thread only; `Access` alone adds to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from waystation.errors import NotAllowed, WaystationError

if TYPE_CHECKING:
    from waystation.security.permissions import Operation, Permissions, Resource
    from waystation.security.principals import Principal

SWEEP_FROM = 256
"""Consumers: with fewer, those that are closed are not looked for."""


class Question(NamedTuple):
    """What has to be allowed. `under`: for every name that begins so. `beneath`: see `Permissions.allows_under`."""

    operation: Operation
    resource: Resource
    name: str
    under: bool = False
    beneath: bool = True


class Consumer(Protocol):
    """A feed, as far as this is concerned."""

    @property
    def closed(self) -> bool: ...

    def end(self, error: WaystationError) -> None: ...


class _Open(NamedTuple):
    consumer: Consumer
    principal: Principal
    questions: tuple[Question, ...]


class OpenConsumers:
    """One per broker."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions
        self._open: list[_Open] = []
        self._sweep_at = SWEEP_FROM
        permissions.subscribe_changes(self._ask_again)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, consumer: Consumer, principal: Principal, questions: tuple[Question, ...]) -> None:
        """It was allowed by these."""
        if principal.kind != "User":
            return
        if len(self._open) >= self._sweep_at:
            self._open = [one for one in self._open if not one.consumer.closed]
            self._sweep_at = max(SWEEP_FROM, 2 * len(self._open))
        self._open.append(_Open(consumer, principal, questions))

    def _ask_again(self) -> None:
        left = []
        for one in self._open:
            if one.consumer.closed:
                continue
            try:
                for question in one.questions:
                    ask(self._permissions, one.principal, question)
            except NotAllowed as error:
                one.consumer.end(error)
            else:
                left.append(one)
        self._open = left


def ask(permissions: Permissions, principal: Principal, question: Question) -> None:
    """Raises NotAllowed if the principal may not."""
    about = question.operation, question.resource, question.name
    if question.under:
        permissions.check_under(principal, *about, beneath=question.beneath)
    else:
        permissions.check(principal, *about)
