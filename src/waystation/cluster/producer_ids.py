"""Producer ids of a cluster: each number is handed out once, by any node.

As a broker alone does, in blocks (`transactions/producer_ids.py`), but the end of the last block is an entry of the
store: it is written, compared with what was read, before the first id of a block leaves this node.
"""

from __future__ import annotations

import asyncio

from waystation.catalog import ABSENT
from waystation.cluster.store import Store
from waystation.errors import RevisionConflict
from waystation.world import World

KEY = "producer-ids"


class StoreProducerIds:
    """`transactions.producer_ids.Ids`."""

    def __init__(self, store: Store, world: World, block: int) -> None:
        self._store = store
        self._world = world
        self._block = block
        self._next = 0
        self._end = 0
        self._reserving = asyncio.Lock()

    def restore(self, end: int) -> None:
        """What a state log says of the time before: the ids of a broker that was adopted. The store has more."""

    async def allocate(self) -> int:
        """A producer id that nobody ever had. StoreUnavailable."""
        while self._next >= self._end:
            await self._reserve()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _reserve(self) -> None:
        async with self._reserving:
            while self._next >= self._end:
                try:
                    end = await self._world.offload_store(self._take_block)
                except RevisionConflict:
                    continue  # another node was faster
                self._next, self._end = end - self._block, end

    def _take_block(self) -> int:
        found = self._store.get(KEY)
        end = (0 if found is None else int(found.value)) + self._block
        self._store.write({KEY: str(end).encode()}, {KEY: ABSENT if found is None else found.revision})
        return end
