"""Power cuts under AMQP clients: what was confirmed is there, what is done stays done, transactions are whole.

The same frame as `test_crash_queues.py`, through the protocol's sessions. To repeat a failure: `run_seed(SEED)`.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.simulation.amqp_machine import AmqpClients, AmqpMachine
from tests.simulation.catalog import DiskCatalog
from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.loop import VirtualTime
from tests.simulation.promises import Broken, expect
from tests.simulation.world import Simulation
from waystation.broker.broker import Broker
from waystation.config import BrokerSettings
from waystation.errors import WaystationError
from waystation.protocols.amqp.channel import Channel
from waystation.topics.partitions.durability import Durability

ROOT = "/data"
SEEDS = 12
SOAK_SEEDS = 2_000
GROUPS = 4
LIFE_LONGEST_S = 600.0
ENOUGH = 2
"""A deliberate bug is caught if it shows in more seeds than this."""


def run_seed(seed: int) -> AmqpClients:
    """Some lives of one broker and its clients; raises Broken if a promise is not kept."""
    rng = random.Random(seed)
    clients = AmqpClients(rng)
    disk = SimDisk(seed)
    time = VirtualTime()
    for life in range(rng.randint(2, 4)):
        disk.fail_at(disk.operations + 1 + int(rng.choice((150, 600, 2_000)) * rng.random()))
        try:
            run_life(seed, life, disk, time, clients)
        except PowerCut:
            pass
        disk = disk.process_crash() if rng.random() < 0.3 else disk.power_cut(rng)
    run_life(seed, 99, disk, time, clients)
    return clients


def run_life(seed: int, life: int, disk: SimDisk, time: VirtualTime, clients: AmqpClients) -> None:
    simulation = Simulation(seed * 100 + life, disk, time=time)

    async def main() -> None:
        disk.make_folder(ROOT)
        settings = BrokerSettings(
            {
                "waystation.queue.shards": "2",
                "offsets.topic.num.partitions": "1",
                "transaction.state.log.num.partitions": "1",
            }
        )
        broker = Broker(simulation.world, ROOT, settings, DiskCatalog(disk, ROOT))
        await broker.start()
        machine = AmqpMachine(broker, clients, life)
        await machine.start()
        await machine.work(clients.rng.choice((0.1, 0.5)))
        await broker.stop()
        clients.stopped()
        expect(not disk.open_files, f"still open after a clean stop: {[*disk.open_files.values()]}")

    simulation.run(asyncio.wait_for(main(), LIFE_LONGEST_S))


def _run_named(seed: int) -> None:
    try:
        run_seed(seed)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


@pytest.mark.parametrize("group", range(GROUPS))
def test_confirms_acks_and_transactions_hold_over_power_cuts(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        _run_named(seed)


@pytest.mark.soak
@pytest.mark.parametrize("group", range(GROUPS))
def test_confirms_acks_and_transactions_hold_over_thousands_of_power_cuts(group: int) -> None:
    for seed in range(SEEDS + group, SOAK_SEEDS, GROUPS):
        _run_named(seed)


def _caught(seeds: int) -> int:
    """In how many of these seeds a bug shows, as far as it matters: it stops when they are enough."""
    caught = 0
    for seed in range(seeds):
        try:
            run_seed(seed)
        except* (Broken, WaystationError):
            caught += 1
        if caught > ENOUGH:
            break
    return caught


def test_confirms_that_are_sent_before_the_flush_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_early(self: Durability, receipts: object, told: object) -> None:
        told(None)  # type: ignore[operator]  # the deliberate bug

    monkeypatch.setattr(Durability, "when_durable", too_early)
    assert _caught(60) > ENOUGH


def test_acknowledgements_that_are_not_told_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Channel) -> None:
        for holder, runs in self.settled.items():
            holder.freed(sum(count for _, count in runs))  # the deliberate bug: the heart is not told
        self.settled.clear()

    monkeypatch.setattr(Channel, "settle_acked", forgetful)
    assert _caught(20) > ENOUGH
