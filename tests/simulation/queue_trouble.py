"""A disk that makes trouble under queues: no room, errors that pass, a sync that fails, a snapshot that rots."""

from __future__ import annotations

import asyncio
import errno
import random

from tests.simulation.disk import SimDisk
from tests.simulation.faults import Fault

PASSING = (
    ("write", "/__queues.", errno.ENOSPC),
    ("write", "/__queues.", errno.ENOSPC),
    ("create", "/__queues.", errno.ENOSPC),
    ("read", "/__queues.", errno.EIO),
    ("write", ".queues.new", errno.ENOSPC),
    ("sync", ".queues.new", errno.EIO),
    ("rename", ".queues", errno.EIO),
    ("remove", ".queues", errno.EIO),
    ("write", "/__transaction_state.", errno.ENOSPC),
    ("write", "/dead.letters.", errno.ENOSPC),
    ("write", "/later.", errno.ENOSPC),
)
LASTING = (("sync", "/__queues."), ("sync", "/__transaction_state."), ("sync_folder", "/__queues."))


class Trouble:
    """Of one life. `lasting`: a sync has failed, so only a power cut tells what is on the disk."""

    def __init__(self, disk: SimDisk, rng: random.Random) -> None:
        self._disk = disk
        self._rng = rng
        self._lasts = rng.random() < 0.25
        self._faults: list[Fault] = []

    @property
    def lasting(self) -> bool:
        return any(fault.kind.startswith("sync") and fault.times == 0 for fault in self._faults)

    async def make(self) -> None:
        """One trouble, for a moment."""
        rng = self._rng
        await asyncio.sleep(rng.choice((0.01, 0.05, 0.2)))
        if rng.random() < 0.2:
            self._disk.leave_room(rng.choice((0, 2_000, 20_000)))
            await asyncio.sleep(rng.choice((0.02, 0.2)))
            self._disk.leave_room(None)
            return
        if self._lasts and rng.random() < 0.2:
            kind, part = rng.choice(LASTING)
            self._faults.append(self._disk.inject(Fault(kind, part, errno.EIO, after=rng.randrange(3))))
            return
        kind, part, error = rng.choice(PASSING)
        fault = self._disk.inject(Fault(kind, part, error, after=rng.randrange(3), times=rng.choice((1, 2, 20))))
        await asyncio.sleep(rng.choice((0.005, 0.05)))
        fault.times = 0


def rot_newest_snapshot(disk: SimDisk, rng: random.Random) -> bool:
    """Flips a bit in the newest snapshot of a shard that has one before it; False if none has."""
    by_folder: dict[str, list[str]] = {}
    for path in sorted(disk.content()):
        if path.endswith(".queues"):
            by_folder.setdefault(path.rpartition("/")[0], []).append(path)
    candidates = [paths[-1] for paths in by_folder.values() if len(paths) > 1]
    if candidates:
        path = rng.choice(candidates)
        disk.flip_bit(path, rng.randrange(len(disk.content()[path])), rng.randrange(8))
    return bool(candidates)
