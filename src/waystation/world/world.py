"""Everything the core may know of the outside, in one value."""

from __future__ import annotations

import msgspec

from waystation.encryption.key_ring import KeyRing
from waystation.world.clock import Clock, SystemClock
from waystation.world.disk import Disk, OsDisk
from waystation.world.handles import Handles, ProcessHandles, UnlimitedHandles
from waystation.world.memory import Memory, ProcessMemory, UnknownMemory
from waystation.world.offload import Offload, ThreadOffload
from waystation.world.random import Random, SystemRandom


class World(msgspec.Struct, frozen=True):
    """Constructed once per broker, at the composition root."""

    clock: Clock
    random: Random
    disk: Disk
    offload: Offload
    memory: Memory = msgspec.field(default_factory=UnknownMemory)
    handles: Handles = msgspec.field(default_factory=UnlimitedHandles)
    keys: KeyRing | None = None
    """What is written to the disk is encrypted with these. None: it is not."""
    store_threads: Offload | None = None
    """Where a cluster's store is called, which may take seconds to give no answer: no sync of a log may wait behind
    that. None: as all other work."""

    @property
    def offload_store(self) -> Offload:
        return self.offload if self.store_threads is None else self.store_threads


def real_world(disk: Disk | None = None) -> World:
    """The machine we run on."""
    return World(SystemClock(), SystemRandom(), disk or OsDisk(), ThreadOffload(), ProcessMemory(), ProcessHandles())
