"""What is to become of entries that are not in flight any more: back in line, expired, or tried once too often."""

from __future__ import annotations

from waystation.queues.ledger.delivery_counts import NONE
from waystation.queues.ledger.delivery_counts import SAME as SAME
from waystation.queues.ledger.states import States

BACK, EXHAUSTED, EXPIRED = 0, 1, 2
_MANY = 255  # a count of 255 stands for anything larger, too


def verdicts(
    states: States, first: int, count: int, limit: int, overdue: set[int] | None, *, uncounted: int = 0
) -> bytes | None:
    """One byte for each entry of a run inside a chunk; None if all of them simply come back.

    `uncounted`: deliveries that are yet to be counted; the present one, unless it is already. `limit`: the queue's; an
    entry's own goes before it; 0 is none. An expiry goes before both.
    """
    tries, limits = states.tries, states.limits
    if limits is not None and not limits.has(first):
        limits = None
    if not (limit or limits is not None or overdue):
        return None
    if tries is None:
        tries = NONE
    counts = tries.values(first, count)
    reached = min(limit - uncounted, _MANY)
    found = bytearray(counts.translate(bytes(reached) + b"\1" * (256 - reached))) if limit else bytearray(count)
    if limit - uncounted > _MANY:
        for index, value in enumerate(counts):
            if value == _MANY:
                found[index] = tries.get(first + index) + uncounted >= limit
    if limits is not None:
        for index, own in enumerate(limits.values(first, count)):
            if own:
                found[index] = tries.get(first + index) + uncounted >= limits.get(first + index)
    if overdue:
        for entry in overdue.intersection(range(first, first + count)):
            found[entry - first] = EXPIRED
    return bytes(found) if any(found) else None
