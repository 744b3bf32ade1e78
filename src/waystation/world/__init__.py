"""The world as the core sees it: time, chance, disk, memory, and a way to do blocking work, all handed in.

Nothing under `log/`, `groups/`, `transactions/` reaches for the operating system itself; it uses the `World` that it
was constructed with. The real one is `real_world()`; the tests hand in one whose disk loses power.
"""

from __future__ import annotations

from waystation.world.clock import Clock, SystemClock
from waystation.world.disk import Disk, File, Folder, OsDisk
from waystation.world.handles import Handles, ProcessHandles, UnlimitedHandles
from waystation.world.memory import Memory, ProcessMemory, UnknownMemory
from waystation.world.memory_disk import MEMORY, MemoryDisk
from waystation.world.offload import InlineOffload, Offload, ThreadOffload
from waystation.world.random import Random, SystemRandom
from waystation.world.world import World, real_world

__all__ = [
    "MEMORY",
    "Clock",
    "Disk",
    "File",
    "Folder",
    "Handles",
    "InlineOffload",
    "Memory",
    "MemoryDisk",
    "Offload",
    "OsDisk",
    "ProcessHandles",
    "ProcessMemory",
    "Random",
    "SystemClock",
    "SystemRandom",
    "ThreadOffload",
    "UnknownMemory",
    "UnlimitedHandles",
    "World",
    "real_world",
]
