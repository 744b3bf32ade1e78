"""Ledgers that were stored when the ledger told only sixteen priorities apart, brought to what they mean now.

A queue with a `max_priority` above 15 then mapped neighbouring priorities to one level, and stored nothing but the
level. Its entries get the lowest priority of their level: the order that they had among themselves stays, and they
stand where most of their like would among new ones. Pure; called where a snapshot is loaded.
"""

from __future__ import annotations

import msgspec

from waystation.queues.ledger.moves import PRIORITY_SHIFT, STATE_MASK, TOP
from waystation.queues.ledger.states import StatesState


def with_priorities(states: StatesState, max_priority: int) -> StatesState:
    """What an old ledger's states are now."""
    if max_priority <= TOP:
        return states
    after, above = bytearray(256), bytearray(256)
    for byte in range(256):
        priority = -(-(byte >> PRIORITY_SHIFT) * max_priority // TOP)
        after[byte] = min(priority, TOP) << PRIORITY_SHIFT | byte & STATE_MASK
        above[byte] = max(priority - TOP, 0)
    return msgspec.structs.replace(
        states,
        chunks=[chunk.translate(after) for chunk in states.chunks],
        above=[chunk.translate(above) for chunk in states.chunks],
    )
