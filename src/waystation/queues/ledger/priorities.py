"""Which level a priority stands on in a queue. The ledger tells sixteen apart; senders may say 0 to 255.

A queue knows the priorities 0 to its `max_priority`, and everything above is as that one. Where it knows more than
there are levels, neighbours share one; a higher priority never stands on a lower level. Pure.
"""

from __future__ import annotations

from functools import cache

from waystation.message import HIGHEST_PRIORITY
from waystation.queues.ledger.moves import HIGHEST


@cache
def levels(max_priority: int) -> bytes:
    """The level of each priority."""
    known = (min(priority, max_priority) for priority in range(HIGHEST_PRIORITY + 1))
    if max_priority <= HIGHEST:
        return bytes(known)
    return bytes(priority * HIGHEST // max_priority for priority in known)
