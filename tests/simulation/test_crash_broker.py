"""Thousands of power cuts under a whole broker: records, offsets and transactions are kept as they were acknowledged.

The same check as `test_crash_log.py`, through the calls that protocols make. To repeat a failure: `run_seed(SEED)`.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from tests.simulation.broker_machine import ROOT, BrokerClients, BrokerMachine
from tests.simulation.catalog import BlindCatalog, DiskCatalog, HastyCatalog
from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.encryption import encrypting, some_keys
from tests.simulation.loop import VirtualTime
from tests.simulation.promises import Broken, expect
from tests.simulation.world import Simulation
from waystation.catalog import Update
from waystation.catalog.follower import CatalogFollower
from waystation.errors import WaystationError
from waystation.log import log as log_module
from waystation.log.commit import FlushMode, GroupCommit
from waystation.log.log import Log
from waystation.log.segments.segment import Segment
from waystation.log.state import StateLog
from waystation.transactions.coordinator import TransactionCoordinator
from waystation.transactions.entry import TransactionEntry
from waystation.transactions.fences import Fences

SEEDS = 60
FLUSH_SEEDS = 30
SOAK_SEEDS = 5_000
GROUPS = 10
LIFE_LONGEST_S = 120.0
"""In virtual time. Who waits longer than this for an answer waits for ever."""


def run_seed(seed: int, catalog: type[DiskCatalog] = DiskCatalog, flush: FlushMode = "commit") -> BrokerClients:
    """Some lives of one broker and its clients; raises Broken if a promise is not kept."""
    rng = random.Random(seed)
    clients = BrokerClients(rng, flush)
    clients.keys = some_keys(seed)
    disk = SimDisk(seed)
    time = VirtualTime()
    for life in range(rng.randint(2, 4)):
        disk.fail_at(disk.operations + 1 + int(rng.choice((60, 400, 2_000)) * rng.random()))
        try:
            run_life(seed, life, disk, time, catalog, clients)
            crash = rng.random() < 0.5
        except PowerCut:
            crash = rng.random() < 0.3
        disk = disk.process_crash() if crash else disk.power_cut(rng)
        if crash and rng.random() < 0.5:  # and the power goes when the next process has just started
            with suppress(PowerCut):
                run_life(seed, life + 10, disk, time, catalog, clients, brief=True)
            disk, crash = disk.power_cut(rng), False
        if not crash:
            clients.power_was_cut()
    run_life(seed, 98, disk, time, catalog, clients)
    run_life(seed, 99, disk.process_crash(), time, catalog, clients)
    return clients


def run_life(
    seed: int,
    life: int,
    disk: SimDisk,
    time: VirtualTime,
    catalog: type[DiskCatalog],
    clients: BrokerClients,
    *,
    brief: bool = False,
) -> None:
    simulation = Simulation(seed * 100 + life, disk, time=time)

    async def main() -> None:
        world = encrypting(clients.keys, simulation.world)
        machine = BrokerMachine(world, disk, catalog(disk, ROOT), clients)
        await machine.start()
        if brief:
            raise PowerCut
        await machine.work(clients.rng.choice((0.05, 0.6)))
        await machine.broker.stop()
        expect(not disk.open_files, f"still open after a clean stop: {[*disk.open_files.values()]}")

    simulation.run(asyncio.wait_for(main(), LIFE_LONGEST_S))


@pytest.fixture(autouse=True)
def _checkpoints_after_a_few_kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "CHECKPOINT_BYTES", 2_000)


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_broker_keeps_what_it_acknowledged(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        _run_named(seed)


@pytest.mark.soak
@pytest.mark.parametrize("group", range(GROUPS))
def test_the_broker_keeps_what_it_acknowledged_thousands_of_times(group: int) -> None:
    for seed in range(SEEDS + group, SOAK_SEEDS, GROUPS):
        _run_named(seed)


@pytest.mark.parametrize("flush", ["interval", "os"])
@pytest.mark.parametrize("group", range(GROUPS))
def test_without_a_flush_for_each_record_offsets_and_transactions_keep_what_they_acknowledged(
    group: int, flush: FlushMode
) -> None:
    """And no committed offset is beyond its log, and a complete transaction has its markers: whatever the mode."""
    for seed in range(group, FLUSH_SEEDS, GROUPS):
        _run_named(seed, flush)


@pytest.mark.soak
@pytest.mark.parametrize("flush", ["interval", "os"])
@pytest.mark.parametrize("group", range(GROUPS))
def test_without_a_flush_for_each_record_thousands_of_times(group: int, flush: FlushMode) -> None:
    for seed in range(FLUSH_SEEDS + group, SOAK_SEEDS, GROUPS):
        _run_named(seed, flush)


def _run_named(seed: int, flush: FlushMode = "commit") -> None:
    try:
        run_seed(seed, flush=flush)
    except BaseException as error:
        error.add_note(f"seed {seed}, {flush}")
        raise


def test_a_broker_that_acknowledges_before_the_flush_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_early(self: GroupCommit, log: Log, offset: int) -> None:
        self.join()  # the deliberate bug: the flush is started, but nobody waits for it

    monkeypatch.setattr(GroupCommit, "durable", too_early)
    caught = 0
    for seed in range(30):
        try:
            run_seed(seed)
        except* Broken:
            caught += 1
        if caught > 5:
            break
    assert caught > 5, f"only {caught} of 30 seeds have seen something acknowledged vanish"


def test_a_catalog_that_answers_before_it_is_durable_is_caught() -> None:
    caught = 0
    for seed in range(60):
        try:
            run_seed(seed, HastyCatalog)
        except* (Broken, WaystationError):  # the broker may miss a topic of its own before the check does
            caught += 1
        if caught > 5:
            break
    assert caught > 5, f"only {caught} of 60 seeds have seen a change undone that was answered"


def test_some_administrators_are_told_that_somebody_else_was_faster() -> None:
    """Or the two bugs below would go unseen."""
    assert sum(run_seed(seed).names.contended for seed in range(12)) > 0


def test_a_catalog_that_does_not_compare_is_caught() -> None:
    caught = 0
    for seed in range(60):
        try:
            run_seed(seed, BlindCatalog)
        except* Broken:
            caught += 1
        if caught > 2:
            break
    assert caught > 2, f"only {caught} of 60 seeds have seen a change overwritten by one who had not read it"


def test_a_follower_that_misses_a_change_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CatalogFollower._make

    async def now_and_then(self: CatalogFollower, update: Update) -> None:
        if update.revision % 7:
            await real(self, update)
        else:
            self._reached(update.revision)  # the deliberate bug: it counts as made, and nobody has made it

    monkeypatch.setattr(CatalogFollower, "_make", now_and_then)
    caught = 0
    for seed in range(30):
        try:
            run_seed(seed)
        except* (Broken, WaystationError):  # a topic that was created is not found
            caught += 1
        if caught > 5:
            break
    assert caught > 5, f"only {caught} of 30 seeds have seen that something is not as the catalog says"


def test_some_transactions_are_coordinated_by_another_broker_for_a_while() -> None:
    """Or the bugs below would go unseen."""
    assert sum(run_seed(seed).dropped for seed in range(12)) > 0


def test_a_coordinator_that_goes_on_when_it_was_dropped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionEntry, "_check_led", lambda self: None)  # the deliberate bug
    assert _broken(200) > 1, "nobody has seen an end that another coordinator had not decided"


def test_a_coordinator_that_does_not_read_decisions_when_it_leads_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lead(self: TransactionCoordinator, state_log: StateLog) -> None:
        self._replay(state_log)  # the deliberate bug: the decisions that it finds are nobody's
        await self._resume([entry for entry in self._table if entry.log is state_log], [])

    monkeypatch.setattr(TransactionCoordinator, "lead", lead)
    assert _broken(200) > 1, "nobody has seen a decision that was forgotten"


def test_a_run_that_is_given_up_in_memory_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fences, "recover", lambda self, fences, log: None)  # the deliberate bug
    assert _broken(60) > 1, "nobody has seen a task begin after its run was given up"


def test_a_hole_in_a_time_index_that_is_believed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segment, "_begins_in_1970", lambda self: True)  # the deliberate bug
    assert _broken(100) > 1, "nobody has seen retention take fresh records for old"


def _broken(seeds: int) -> int:
    """In how many seeds a promise was not kept; two are enough."""
    caught = 0
    for seed in range(seeds):
        try:
            run_seed(seed)
        except* (Broken, WaystationError):
            caught += 1
        if caught > 1:
            break
    return caught
