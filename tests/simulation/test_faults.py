"""A broker on a disk that fills up, fails or rots: refused is refused, kept is kept, and the rest goes on.

The faults of `faults.py` under the clients of `broker_machine.py`. After each, the power is cut, and every promise is
checked once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation.broker_machine import ROOT, STREAM, BrokerClients, BrokerMachine
from tests.simulation.catalog import DiskCatalog
from tests.simulation.disk import Fault, SimDisk
from tests.simulation.loop import VirtualTime
from tests.simulation.world import Simulation
from waystation.errors import CorruptBatch, StorageFailed, Unavailable
from waystation.log.batches import batch as batches
from waystation.topics.partitions.partition import log_of

SEEDS = range(12)
GROUPS = ("group-0", "group-1")
NOT_EVEN_WHAT_IS_FREED = -(1 << 40)
"""Otherwise compaction makes room for offsets for ever."""


class Story:
    """Lives of one broker, each told by a coroutine that gets the running machine."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.clients = BrokerClients(random.Random(seed))
        self.disk = SimDisk(seed)
        self.time = VirtualTime()

    def live(self, life: Callable[[BrokerMachine], Awaitable[None]], *, stop: bool = True) -> None:
        self.seed += 1_000
        simulation = Simulation(self.seed, self.disk, time=self.time)

        async def main() -> None:
            machine = BrokerMachine(simulation.world, self.disk, DiskCatalog(self.disk, ROOT), self.clients)
            await machine.start()
            await life(machine)
            if stop:
                await machine.broker.stop()

        simulation.run(asyncio.wait_for(main(), 600))

    def live_after_power_cut(self) -> None:
        self.disk = self.disk.power_cut(self.clients.rng)
        self.live(lambda machine: machine.work(0.1))


async def _insist(work: Callable[[], Awaitable[None]], attempts: int = 50) -> None:
    """Repeats what a client repeats when the broker says that its storage failed."""
    for _ in range(attempts):
        try:
            return await work()
        except (StorageFailed, Unavailable):
            await asyncio.sleep(1)
    raise AssertionError("still refused, though there is room")


async def _until_refused(work: Callable[[], Awaitable[None]], attempts: int = 2_000) -> None:
    for _ in range(attempts):
        try:
            await work()
        except (StorageFailed, Unavailable):
            return
    raise AssertionError("never refused")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_disk_refuses_records_and_takes_them_again_when_there_is_room(seed: int) -> None:
    story = Story(seed)

    async def fill_up(machine: BrokerMachine) -> None:
        await machine.work(0.1)
        story.disk.leave_room(story.clients.rng.choice((0, 3_000, 70_000)))
        await _until_refused(machine.produce)
        log = log_of(machine.partition(STREAM, 0))
        assert log.read(log.start_offset, 100_000), "readers go on"
        story.disk.leave_room(None)
        for _ in range(3):
            await _insist(machine.produce)

    story.live(fill_up)
    story.live_after_power_cut()


@pytest.mark.parametrize("seed", SEEDS)
def test_offsets_are_committed_again_when_a_full_disk_has_room(seed: int) -> None:
    story = Story(seed)

    async def fill_up(machine: BrokerMachine) -> None:
        await machine.work(0.1)
        story.disk.leave_room(NOT_EVEN_WHAT_IS_FREED)
        for group in GROUPS:
            await _until_refused(lambda group=group: machine.commit_offset(group))  # type: ignore[misc]
        story.disk.leave_room(None)
        for group in GROUPS:
            await _insist(lambda group=group: machine.commit_offset(group))  # type: ignore[misc]

    story.live(fill_up)
    story.live_after_power_cut()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_acknowledged_whose_flush_failed(seed: int) -> None:
    story = Story(seed)

    async def publish(machine: BrokerMachine, index: int) -> None:
        batch = machine.batch((STREAM, index))
        appended = machine.append((STREAM, index), batch)
        if await machine.durable((STREAM, index), appended.last_offset + 1):
            story.clients.streams[STREAM, index].promise(bytes(batch))

    async def fail(machine: BrokerMachine) -> None:
        await machine.work(0.1)
        log = log_of(machine.partition(STREAM, 0))
        story.disk.inject(Fault("sync", log.folder, after=story.clients.rng.randrange(3), times=1_000))
        await _until_refused(lambda: publish(machine, 0))
        await publish(machine, 1)  # another log feels nothing

    story.live(fail, stop=False)
    story.live_after_power_cut()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_restarted_broker_acknowledges_after_a_failed_flush_survives_a_power_cut(seed: int) -> None:
    story = Story(seed)

    async def fail(machine: BrokerMachine) -> None:
        await machine.work(0.1)
        log = log_of(machine.partition(STREAM, 0))
        story.disk.inject(Fault("sync", log.folder, times=1_000))
        for _ in range(50):
            with contextlib.suppress(StorageFailed):
                machine.append((STREAM, 0), machine.batch((STREAM, 0)))
        await asyncio.sleep(1)

    story.live(fail, stop=seed % 2 == 0)
    story.disk = story.disk.process_crash()
    story.live(lambda machine: machine.work(0.1), stop=False)
    story.live_after_power_cut()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rotten_batch_is_an_error_at_its_offset_and_nowhere_else(seed: int) -> None:
    story = Story(seed)
    rng = story.clients.rng
    story.live(lambda machine: machine.work(0.3), stop=rng.random() < 0.5)
    story.disk = story.disk.process_crash()
    promises = story.clients.streams[STREAM, 0]
    victim = rng.choice(sorted(promises.promised)[:-1])  # at the very end it would pass for an unfinished write
    rotten = promises.promised[victim]

    for path, content in story.disk.content().items():
        at = content.find(rotten)
        if f"/{STREAM}." in path and path.endswith(".log") and at >= 0:
            story.disk.flip_bit(path, at + rng.randrange(batches.HEADER_SIZE, len(rotten)), rng.randrange(8))

    async def read_everything(machine: BrokerMachine) -> None:
        log = log_of(machine.partition(STREAM, 0))
        for base, stored in sorted(promises.promised.items()):
            if base == victim:
                with pytest.raises(CorruptBatch):
                    log.read(base, 1)
            else:
                assert log.read(base, 1)[: len(stored)] == stored

    simulation = Simulation(seed, story.disk, time=story.time)

    async def main() -> None:
        machine = BrokerMachine(simulation.world, story.disk, DiskCatalog(story.disk, ROOT), story.clients)
        await machine.broker.start()
        await read_everything(machine)

    simulation.run(asyncio.wait_for(main(), 600))
