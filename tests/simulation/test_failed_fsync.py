"""A failed fsync, a restart without a reboot, new acknowledgements, a power cut: what was acknowledged is there.

After an fsync that said EIO, Linux takes the pages for clean. They are still read, and the next fsync of the file says
that all is well, but they were never written. A start that only reads and syncs would build on them, and a power cut
later would leave a hole in the middle of what was acknowledged.
"""

from __future__ import annotations

import errno
import random

import pytest

from tests.log.kit import Home
from tests.simulation.disk import Fault, SimDisk
from tests.simulation.promises import Broken, Promises
from waystation.errors import CorruptBatch, StorageFailed
from waystation.log.batches import batch as batches
from waystation.log.opening import recovery
from waystation.world import World

SEEDS = 150
GROUPS = 5


class Story:
    """Lives of one log, and what its producers were told."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(seed)
        self.promises = Promises("log")
        self.home = Home("/data", self.disk, segment_bytes=self.rng.choice((2_000, 9_000, 100_000)))

    def produce(self, count: int) -> list[bytes]:
        placed = []
        for _ in range(count):
            size = self.rng.choice((10, 300, 4_000))
            batch = batches.build([(None, self.rng.randbytes(size), ())], self.home.clock.ms)
            self.home.append(batch)
            placed.append(bytes(batch))
            self.promises.place(placed[-1])
        return placed

    def acknowledge(self, placed: list[bytes]) -> None:
        self.home.sync()
        for batch in placed:
            self.promises.promise(batch)

    def fail(self) -> None:
        """Some batches whose fsync fails: nobody is told that they are safe, and no more are taken."""
        self.produce(self.rng.randint(1, 8))
        self.disk.inject(Fault("sync", ".log", after=self.rng.choice((0, 0, 1)), times=self.rng.choice((1, 2))))
        while self.home.log.failure is None:
            self.produce(1)
            self.home.sync()
        with pytest.raises(StorageFailed):
            self.produce(1)

    def restart(self) -> None:
        """The process ends in some way; the machine goes on."""
        if self.rng.random() < 0.3:
            self.home.stop()
        self.live_on(self.disk.process_crash())

    def cut_the_power(self) -> None:
        self.live_on(self.disk.power_cut(self.rng))

    def live_on(self, disk: SimDisk) -> None:
        self.disk = self.home.disk = disk
        self.home.world = World(self.home.clock, self.home.world.random, disk, self.home.world.offload)
        self.home.open()
        self.promises.check(self.home.log)


def run_seed(seed: int) -> None:
    story = Story(seed)
    story.acknowledge(story.produce(story.rng.randint(0, 10)))
    if story.rng.random() < 0.5:
        story.home.save_points()
    story.acknowledge(story.produce(story.rng.randint(0, 3)))
    story.fail()
    for _ in range(story.rng.randint(1, 2)):
        story.restart()
    story.acknowledge(story.produce(story.rng.randint(1, 6)))
    story.cut_the_power()
    story.acknowledge(story.produce(2))
    story.cut_the_power()


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_is_acknowledged_after_a_failed_fsync_and_a_restart_survives_a_power_cut(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        try:
            run_seed(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("points", [True, False], ids=["with points", "without points"])
@pytest.mark.parametrize("seed", range(5))
def test_without_room_to_write_again_readers_are_served_and_nothing_is_taken(seed: int, points: bool) -> None:
    story = Story(seed)
    story.acknowledge(story.produce(5))
    if points:
        story.home.save_points()
    story.fail()
    if not points:
        story.disk.remove("/data/recovery-points")
    for _ in range(2):
        disk = story.disk.process_crash()
        disk.inject(Fault("write", ".log", errno.ENOSPC, times=1))
        story.live_on(disk)
        with pytest.raises(StorageFailed, match="no room"):
            story.produce(1)
    story.restart()
    story.acknowledge(story.produce(3))
    story.cut_the_power()


def test_a_recovery_that_only_syncs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_write_again", lambda segment, start: None)
    caught = 0
    for seed in range(40):
        try:
            run_seed(seed)
        except (Broken, CorruptBatch):
            caught += 1
    assert caught > 15, f"only {caught} of 40 seeds have seen a hole"
