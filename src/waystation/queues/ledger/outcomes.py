"""What the ledger says: entries handed out, and what became of entries. All lists of runs are tidy (`runs.py`)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from waystation.message import Run
from waystation.queues.ledger.delivery_counts import DeliveryCounts
from waystation.queues.ledger.runs import tidy
from waystation.queues.ledger.verdicts import SAME


class Grant(NamedTuple):
    """Entries in a row, handed to a consumer."""

    first: int
    count: int  # type: ignore[assignment]  # a tuple's own `count` is of no use here
    deliveries: int  # of each of them, this one included
    deadline_ms: int


class Returned(msgspec.Struct, gc=False):
    """What became of entries that were in flight."""

    returned: list[Run] = []  # ready again, or delayed if so asked
    expired: list[Run] = []
    exhausted: list[Run] = []  # came back once too often
    forgiven: list[Run] = []  # this delivery does not count towards the limit that they have

    def tidy(self) -> None:
        tidy(self.returned)
        tidy(self.expired)
        tidy(self.exhausted)
        tidy(self.forgiven)


class Lapsed(Returned, gc=False):
    """What time has done, or the leaving of a consumer. `returned`: their visibility timeouts ended."""

    ready: list[Run] = []  # delayed until now


class Outcome(Returned, gc=False):
    """What a consumer's verdict has done."""

    done: list[Run] = []  # what was asked for
    unknown: list[Run] = []  # these are not in flight to the consumer; nothing happened to them


def add_grant(grants: list[Grant], first: int, count: int, deliveries: int, deadline_ms: int) -> None:
    """Appends, and joins what follows directly on the last grant."""
    if grants:
        last = grants[-1]
        if last.first + last.count == first and last.deliveries == deliveries:
            grants[-1] = Grant(last.first, last.count + count, deliveries, deadline_ms)
            return
    grants.append(Grant(first, count, deliveries, deadline_ms))


def add_grants(grants: list[Grant], first: int, count: int, tries: DeliveryCounts, deadline_ms: int) -> None:
    """The same for entries of which some were handed out before: one grant for each count of deliveries in a row."""
    for same in SAME.finditer(tries.values(first, count)):
        start, end = same.span()
        if same[0][0] < 255:
            add_grant(grants, first + start, end - start, same[0][0] + 1, deadline_ms)
        else:
            for entry in range(first + start, first + end):
                add_grant(grants, entry, 1, tries.get(entry) + 1, deadline_ms)
