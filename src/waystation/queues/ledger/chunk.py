"""A chunk: the bytes of a thousand entries in a row, and how the ready ones among them are found.

An entry's byte has room for sixteen levels of priority (`moves.py`). Level `TOP` is every priority from there on: how
far above, up to 255, is in a second byte, and only chunks with such entries have second bytes. So whoever uses few and
low priorities pays for no others.

Pure; `states.py` moves the entries and keeps the counts.
"""

from __future__ import annotations

import re
from functools import cache

from waystation.queues.ledger.moves import LEVELS, PRIORITY_SHIFT, READY, TOP

CHUNK = 1024
"""A straggler keeps its whole chunk alive, so small is lean; a thousand entries still are one or two slices."""

BYTES = tuple(bytes([byte]) for byte in range(256))
READY_BYTES = tuple(READY | level << PRIORITY_SHIFT for level in range(LEVELS))
_ALL_READY = tuple(BYTES[byte] * CHUNK for byte in READY_BYTES)
_NOT_READY = tuple(re.compile(b"[^" + re.escape(BYTES[byte]) + b"]", re.DOTALL) for byte in READY_BYTES)
_READY_OF_ANY = re.compile(b"[" + b"".join(re.escape(BYTES[byte]) for byte in READY_BYTES) + b"]", re.DOTALL)


@cache
def _ones_for(value: int) -> bytes:
    """Translates a byte to 1 if it is this one, else to 0."""
    return bytes(byte == value for byte in range(256))


class Chunk(bytearray):
    """The bytes of CHUNK entries, as far as they were admitted."""

    __slots__ = ("above", "alive")

    alive: int
    above: bytearray | None  # of entries on level TOP: how far above it; what is missing at the end is 0

    def raise_above(self, index: int, count: int, priority: int) -> None:
        """New entries, behind all others, have a priority above TOP."""
        lane = self.above
        if lane is None:
            lane = self.above = bytearray(index)
        lane.extend(bytes(index - len(lane)))
        lane.extend(BYTES[priority - TOP] * count)

    def priority_of(self, index: int) -> int:
        level, lane = self[index] >> PRIORITY_SHIFT, self.above
        return level if level < TOP or lane is None or index >= len(lane) else TOP + lane[index]

    def first_ready(self, priority: int) -> int:
        """The index of the first ready entry of a priority; -1 if there is none."""
        if priority < TOP:
            return self.find(READY_BYTES[priority])
        index, lane = self.find(READY_BYTES[TOP]), self.above
        if lane is None or index < 0:
            return index if priority == TOP else -1
        if self.priority_of(index) == priority:
            return index
        # Others lie between. Ones where both bytes are as wanted, as two long numbers: 5 us, however they are mixed.
        ready = int.from_bytes(self.translate(_ones_for(READY_BYTES[TOP])), "little")
        alike = int.from_bytes(lane.ljust(len(self), b"\0").translate(_ones_for(priority - TOP)), "little")
        both = ready & alike
        return (both & -both).bit_length() - 1 >> 3 if both else -1

    def ready_run(self, index: int, limit: int, priority: int) -> int:
        """How many from a ready entry on are ready with its priority, up to a limit."""
        count = min(limit, len(self) - index)
        if count == 1:
            return 1
        level = min(priority, TOP)
        if not self.startswith(_ALL_READY[level][:count], index):
            found = _NOT_READY[level].search(self, index, index + count)
            if found is not None:
                count = found.start() - index
        if level == TOP and self.above is not None:
            alike = self.above[index : index + count].ljust(count, b"\0")
            count -= len(alike.lstrip(BYTES[priority - TOP]))
        return count

    def any_ready(self) -> int:
        """The index of the first ready entry of any priority; -1 if there is none."""
        found = _READY_OF_ANY.search(self)
        return -1 if found is None else found.start()

    def ready_priorities(self) -> set[int]:
        """Of which priorities there is something ready."""
        found = {level for level in range(TOP) if READY_BYTES[level] in self}
        if READY_BYTES[TOP] in self:
            lane = (self.above or bytearray()).ljust(len(self), b"\0")
            tops = self.translate(_ones_for(READY_BYTES[TOP]))
            found.update(TOP + above for above, top in zip(lane, tops, strict=True) if top)
        return found
