"""Power cuts under a log that keeps the newest so many messages: of those that were acknowledged, so many are there.

Each seed runs a few lives of one log, each with a number of its own, as if it had been altered in between. Producers
write bursts and wait for the last of each; retention writes the start down and removes files at the same time. A life
ends by a power cut at some disk operation, by a killed process or by a clean stop. To repeat a failure:
`run_seed(SEED)`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.loop import VirtualTime
from tests.simulation.promises import BoundedPromises, Broken, expect
from tests.simulation.world import Simulation
from waystation.config import TopicSettings
from waystation.log.batches import batch as batches
from waystation.log.cleaning import retention
from waystation.log.commit import GroupCommit
from waystation.log.log import Log
from waystation.log.opening.recovery import Trust, lead_alone, open_log
from waystation.log.points import RecoveryPoints
from waystation.world import World

ROOT = "/data"
NAME = "bounded"
SEEDS = 100
SOAK_SEEDS = 10_000
GROUPS = 5


class Machine:
    """One life of one log."""

    def __init__(self, world: World, disk: SimDisk, rng: random.Random, promises: BoundedPromises) -> None:
        self.world = world
        self.disk = disk
        self.rng = rng
        self.promises = promises
        self.commit = GroupCommit(world)
        self.points = RecoveryPoints(disk, ROOT)
        self.payloads = itertools.count(len(promises.placed))
        self.log: Log

    async def live(self, seconds: float) -> None:
        self._start()
        until = self.world.clock.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for kind in (self._produce, self._produce, self._retain, self._checkpoint):
                tasks.create_task(self._repeat(kind, until))
        await self.commit.stop()
        self.log.close(clean=True)
        self._save_points(clean=True)
        expect(not self.disk.open_files, f"still open after a clean stop: {[*self.disk.open_files.values()]}")

    def _start(self) -> None:
        self.disk.make_folder(ROOT)
        self.points.load()
        trust = Trust(self.points.of(NAME), self.points.clean, self.points.same_boot)
        settings = TopicSettings(
            segment_bytes=self.rng.choice((400, 1_200, 20_000)),
            index_interval_bytes=self.rng.choice((0, 300)),
            retention_messages=self.rng.choice((1, 5, 20)),
        )
        self.log = open_log(self.world, f"{ROOT}/{NAME}", settings, trust, on_write=self.commit.written)
        lead_alone(self.log, trust)
        self._save_points(clean=False)
        self.promises.bound(settings.retention_messages)
        self.promises.check(self.log)
        self.commit.start()

    def _save_points(self, *, clean: bool) -> None:
        self.points.save({NAME: self.log.recovery_point}, clean=clean)
        self.log.point_saved(self.log.recovery_point)

    async def _repeat(self, kind: Callable[[], Awaitable[None]], until: float) -> None:
        while self.world.clock.monotonic() < until:
            await kind()
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.01)))

    async def _produce(self) -> None:
        stored = []
        for _ in range(self.rng.choice((1, 3, 10))):
            values = [(None, b"%d:" % next(self.payloads) + bytes(self.rng.choice((0, 200))), ())]
            batch = batches.build(values * self.rng.choice((1, 1, 4)), self.world.clock.now_ms())
            try:
                self.log.append(batch, batches.check_batch(batch))
            finally:
                self.promises.place(bytes(batch))
            stored.append(bytes(batch))
        await self.commit.durable(self.log, batches.read_header(stored[-1]).last_offset + 1)
        if self.disk.powered:
            for data in stored:
                self.promises.promise(data)
            left = self.log.durable_offset - self.log.start_offset
            most = self.log.settings.retention_messages
            expect(left <= most, f"{left} durable offsets are left, more than {most}")
            expect(left == most or self.log.start_offset == self.log.saved_start, f"only {left} are left of {most}")

    async def _retain(self) -> None:
        await retention.enforce(self.log, self.world.clock.now_ms())
        if self.disk.powered:
            self.promises.start_promised = max(self.promises.start_promised, self.log.saved_start)

    async def _checkpoint(self) -> None:
        self.log.checkpoint()
        self._save_points(clean=False)
        await asyncio.sleep(self.rng.choice((0.01, 0.1)))


def run_seed(seed: int) -> BoundedPromises:
    """Some lives of one log; raises Broken if a promise is not kept."""
    rng = random.Random(seed)
    promises = BoundedPromises(NAME)
    disk = SimDisk(seed)
    time = VirtualTime()
    for life in range(rng.randint(3, 6)):
        disk.fail_at(disk.operations + 1 + int(rng.choice((30, 200, 600)) * rng.random()))
        simulation = Simulation(seed * 100 + life, disk, time=time)
        machine = Machine(simulation.world, disk, rng, promises)
        try:
            simulation.run(machine.live(rng.choice((0.05, 0.3))))
        except* PowerCut:
            pass
        disk = disk.process_crash() if rng.random() < 0.3 else disk.power_cut(rng)
    return promises


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_newest_acknowledged_messages_survive_a_power_cut(group: int) -> None:
    _run(range(group, SEEDS, GROUPS))


@pytest.mark.soak
@pytest.mark.parametrize("group", range(GROUPS))
def test_the_newest_acknowledged_messages_survive_thousands_of_power_cuts(group: int) -> None:
    _run(range(SEEDS + group, SOAK_SEEDS, GROUPS))


def _run(seeds: range) -> None:
    for seed in seeds:
        try:
            run_seed(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_counting_messages_that_are_not_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberate bug: the newest of what is written stay. The power takes those, and the others are removed."""

    def hasty(log: Log, _: int) -> None:
        trim(log, log.written_offset)

    trim = Log.trim
    monkeypatch.setattr(Log, "trim", hasty)
    assert _caught(40) > 5


def test_forgetting_the_number_at_the_start_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one: what was removed and not yet written down is there again."""
    trim = Log.trim

    def forgetful(log: Log, acknowledged: int) -> None:
        if log.appended_bytes:
            trim(log, acknowledged)

    monkeypatch.setattr(Log, "trim", forgetful)
    assert _caught(40) > 5


def _caught(seeds: int) -> int:
    caught = 0
    for seed in range(seeds):
        try:
            run_seed(seed)
        except* Broken:
            caught += 1
    return caught


def test_one_seed_tells_one_story() -> None:
    assert run_seed(7).promised == run_seed(7).promised
