"""A node that lives is known to live, whatever the store does with its calls."""

from __future__ import annotations

import asyncio

from tests.simulation.world import Simulation
from waystation.cluster.decisions.state import node_key
from waystation.cluster.membership import Membership
from waystation.cluster.memory_store import Fate, MemoryStore

LEASE_S = 3.0


def test_an_entry_whose_write_was_lost_is_written_again() -> None:
    """The lease was granted, and the write that should hang on it got lost: to keep that lease alive is not enough."""
    simulation = Simulation(1)

    async def main() -> None:
        store = MemoryStore(simulation.clock)
        face = store.face()
        simulation.disk.make_folder("/data")
        membership = Membership(simulation.world, "/data", face, 1, lease_s=LEASE_S)
        await membership.begin()
        await membership.claim({})
        await membership.join({})
        lost = 0

        def fate(call: str) -> Fate:
            nonlocal lost
            if call != "write" or lost:
                return Fate.ANSWERED
            lost += 1
            return Fate.UNANSWERED

        face.fate = fate
        face.lose_leases()
        await asyncio.sleep(4 * LEASE_S)
        assert lost == 1
        assert store.get(node_key(1)) is not None
        await membership.leave()

    simulation.run(main())
