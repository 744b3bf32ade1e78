"""Producer ids: each number is handed out once, ever.

Ids are reserved in blocks: the end of the block is written to the log and is durable before the first id of the block
leaves here. After a crash the rest of the block is lost, which costs nothing; an id that was handed out never comes
again, because the next block starts at the highest end that the log knows.

Called by the coordinator. One reservation is under way at a time; who comes meanwhile waits for it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from waystation.log.state import StateLog
from waystation.transactions.records import encode_reservation


class Ids(Protocol):
    """Where producer ids come from."""

    def restore(self, end: int) -> None:
        """Everything below `end` may have been handed out, a state log says."""

    async def allocate(self) -> int:
        """A producer id that nobody ever had."""


class ProducerIds:
    """Hands out producer ids from durable reservations in one state log."""

    def __init__(self, log: StateLog, block: int) -> None:
        self._log = log
        self._block = block
        self._next = 0
        self._end = 0  # ids below this are reserved, durably
        self._reserving = asyncio.Lock()

    def restore(self, end: int) -> None:
        """A reservation found in the log: everything below `end` may have been handed out."""
        self._next = self._end = max(self._end, end)

    async def allocate(self) -> int:
        """A producer id that nobody ever had. Raises StorageFailed if none can be reserved."""
        while self._next >= self._end:
            await self._reserve()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _reserve(self) -> None:
        async with self._reserving:
            if self._next < self._end:
                return  # somebody else reserved while we waited for our turn
            end = self._end + self._block
            self._log.append([encode_reservation(end)])
            await self._log.committed()
            self._end = end
