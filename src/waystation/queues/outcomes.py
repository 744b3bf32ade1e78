"""What the ledger says: entries handed out, and what became of entries. All lists of runs are tidy (`runs.py`)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from waystation.queues.runs import Run, tidy


class Grant(NamedTuple):
    """Entries in a row, handed to a consumer."""

    first: int
    count: int  # type: ignore[assignment]  # a tuple's own `count` is of no use here
    deliveries: int  # of each of them, this one included
    deadline_ms: int


class Returned(msgspec.Struct):
    """What became of entries that somebody held."""

    returned: list[Run] = []  # ready again, or parked if so asked
    expired: list[Run] = []
    exhausted: list[Run] = []  # came back once too often

    def tidy(self) -> None:
        tidy(self.returned)
        tidy(self.expired)
        tidy(self.exhausted)


class Lapsed(Returned):
    """What time has done, or the leaving of a consumer. `returned`: their holds ended."""

    ready: list[Run] = []  # parked until now


class Outcome(Returned):
    """What a consumer's verdict has done."""

    done: list[Run] = []  # what was asked for
    unknown: list[Run] = []  # the consumer does not hold these; nothing happened to them


def add_grant(grants: list[Grant], first: int, count: int, deliveries: int, deadline_ms: int) -> None:
    """Appends, and joins what follows directly on the last grant."""
    if grants:
        last = grants[-1]
        if last.first + last.count == first and last.deliveries == deliveries:
            grants[-1] = Grant(last.first, last.count + count, deliveries, deadline_ms)
            return
    grants.append(Grant(first, count, deliveries, deadline_ms))
