"""A node that lives is known to live, whatever the store does with its calls."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tests.simulation.world import Simulation
from waystation.catalog.catalog import CatalogEntry
from waystation.cluster.decisions.state import PartitionState, encode, node_key, partition_key
from waystation.cluster.membership import ClusterMembership
from waystation.cluster.memory_store import Fate, MemoryFace, MemoryStore
from waystation.errors import NodeIdTaken, NotAllowed

LEASE_S = 3.0


class Evicting:
    """A store in which the node's entry is deleted just after it was looked at, and before that answer arrives."""

    def __init__(self, face: MemoryFace) -> None:
        self.face = face
        self.membership: ClusterMembership | None = None
        self.evicts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.face, name)

    def get(self, key: str) -> CatalogEntry | None:
        found = self.face.get(key)
        if self.evicts and key == node_key(1) and self.membership is not None:
            self.evicts -= 1
            self.face.store.write({key: None})
            self.membership.look()  # as the watch has it
        return found


async def lives(membership: ClusterMembership) -> None:
    await membership.begin()
    await membership.claim({})
    await membership.join({})


def test_a_node_that_is_evicted_while_it_looks_is_there_again() -> None:
    simulation = Simulation(1)

    async def main() -> None:
        store = MemoryStore(simulation.clock)
        evicting = Evicting(store.face())
        simulation.disk.make_folder("/data")
        membership = evicting.membership = ClusterMembership(simulation.world, "/data", evicting, 1, lease_s=LEASE_S)  # type: ignore[arg-type]
        await lives(membership)
        evicting.evicts = 1
        membership.look()
        await asyncio.sleep(LEASE_S)
        assert evicting.evicts == 0
        assert store.get(node_key(1)) is not None
        await membership.leave()

    simulation.run(main())


@pytest.mark.parametrize("error", [NotAllowed("the password was changed"), RuntimeError("a mistake of ours")])
def test_a_node_that_the_store_turns_away_for_a_while_is_there_again(error: Exception) -> None:
    simulation = Simulation(1)

    async def main() -> None:
        store = MemoryStore(simulation.clock)
        face = store.face()
        simulation.disk.make_folder("/data")
        membership = ClusterMembership(simulation.world, "/data", face, 1, lease_s=LEASE_S)
        await lives(membership)

        def fate(call: str) -> Fate:
            raise error

        face.fate = fate
        await asyncio.sleep(2 * LEASE_S)
        assert store.get(node_key(1)) is None
        face.fate = lambda call: Fate.ANSWERED
        await asyncio.sleep(LEASE_S)
        assert store.get(node_key(1)) is not None
        await membership.leave()

    simulation.run(main())


def test_an_entry_whose_write_was_lost_is_written_again() -> None:
    """The lease was granted, and the write that should hang on it got lost: to keep that lease alive is not enough."""
    simulation = Simulation(1)

    async def main() -> None:
        store = MemoryStore(simulation.clock)
        face = store.face()
        simulation.disk.make_folder("/data")
        membership = ClusterMembership(simulation.world, "/data", face, 1, lease_s=LEASE_S)
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


def test_a_start_that_another_process_overtakes_while_it_claims_ends() -> None:
    """Each claim compares the disk entry, which is the other one's by now: none would ever be made."""
    simulation = Simulation(1)

    async def main() -> None:
        store = MemoryStore(simulation.clock)
        simulation.disk.make_folder("/data")
        simulation.disk.make_folder("/copy")
        first = ClusterMembership(simulation.world, "/data", store.face(), 1, lease_s=LEASE_S)
        await first.begin()
        partition = partition_key(UUID(int=1), 0)
        store.write({partition: encode(PartitionState((1, 2), 1, 4, (1, 2)))})
        await ClusterMembership(simulation.world, "/copy", store.face(), 1, lease_s=LEASE_S).begin()
        store.write({partition: encode(PartitionState((1, 2), 1, 4, (1, 2)))})
        with pytest.raises(NodeIdTaken):
            await asyncio.wait_for(first.claim({}), 30)

    simulation.run(main())
