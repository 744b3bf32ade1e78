"""Thousands of power cuts at a follower: what it reported is kept, what it truncated is gone, and it starts again.

Each seed runs a few lives of a machine that follows leaders (see `follower_machine.py`). A life ends by a power cut at
some disk operation, also in the middle of a truncation or of recovery, or by a killed process, or by a clean stop. To
repeat a failure: `run_seed(SEED)`. Each seed also has a kill in the last steps of a truncation, and a power cut right
after the next start.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from tests.simulation import follower_machine
from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.encryption import encrypting, some_keys
from tests.simulation.follower_machine import STREAM, Cluster, FollowerMachine
from tests.simulation.loop import VirtualTime
from tests.simulation.promises import Broken, expect
from tests.simulation.world import Simulation
from waystation.config import TopicSettings
from waystation.errors import WaystationError
from waystation.log import log as log_module
from waystation.log.aborted import AbortedTransactions
from waystation.log.cleaning import retention, truncation
from waystation.log.log import Appended, Log
from waystation.log.opening.recovery import Trust, open_log
from waystation.log.points import TRUNCATED_FILE, trusted_point
from waystation.log.producers import Producers
from waystation.log.segments.segment import Segment
from waystation.log.sync import RecoveryPoint
from waystation.world import World

SEEDS = 40
SOAK_SEEDS = 5_000
GROUPS = 8


def run_seed(seed: int) -> Cluster:
    """Some lives of one machine and the leaders around it; raises Broken if a promise is not kept."""
    rng = random.Random(seed)
    cluster = Cluster(rng)
    cluster.keys = some_keys(seed)
    disk = SimDisk(seed)
    time = VirtualTime()
    for life in range(rng.randint(2, 5)):
        power_goes = rng.random() < 0.6  # around a truncation, else anywhere
        disk.fail_at(disk.operations + 1 + int((5_000 if power_goes else rng.choice((30, 200, 1_000))) * rng.random()))
        try:
            run_life(seed, life, disk, time, cluster, power_goes=power_goes)
            disk = disk.process_crash() if rng.random() < 0.5 else disk.power_cut(rng)
        except PowerCut:
            disk = disk.process_crash() if rng.random() < 0.3 else disk.power_cut(rng)
    disk = two_accidents(seed, disk, time, cluster)
    run_life(seed, 98, disk, time, cluster)
    run_life(seed, 99, disk.process_crash(), time, cluster)
    return cluster


def two_accidents(seed: int, disk: SimDisk, time: VirtualTime, cluster: Cluster) -> SimDisk:
    """The process is killed while it truncates; the next one has just started and shown what there is, when the power
    goes."""

    async def truncate(machine: FollowerMachine) -> None:
        await machine.start()
        await machine.die_truncating()
        raise PowerCut

    async def start(machine: FollowerMachine) -> None:
        await machine.start()
        raise PowerCut

    with suppress(PowerCut):
        run_life(seed, 96, disk, time, cluster, story=truncate)
    disk = disk.process_crash()
    with suppress(PowerCut):
        run_life(seed, 97, disk, time, cluster, story=start)
    return disk.power_cut(cluster.rng, only_synced=cluster.rng.random() < 0.5)


def run_life(
    seed: int,
    life: int,
    disk: SimDisk,
    time: VirtualTime,
    cluster: Cluster,
    *,
    power_goes: bool = False,
    story: Callable[[FollowerMachine], Awaitable[None]] | None = None,
) -> None:
    simulation = Simulation(seed * 100 + life, disk, time=time)

    async def main() -> None:
        machine = FollowerMachine(encrypting(cluster.keys, simulation.world), disk, cluster, power_goes=power_goes)
        if story is not None:
            await story(machine)
        await machine.start()
        await machine.work(cluster.rng.choice((0.05, 0.5)))
        await machine.stop()
        expect(not disk.open_files, f"still open after a clean stop: {[*disk.open_files.values()]}")

    simulation.run(main())


@pytest.fixture(autouse=True)
def _checkpoints_after_a_few_kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "CHECKPOINT_BYTES", 2_000)


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_follower_keeps_what_it_reported_and_nothing_that_it_truncated(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        _run_named(seed)


@pytest.mark.soak
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_follower_keeps_what_it_reported_thousands_of_times(group: int) -> None:
    for seed in range(SEEDS + group, SOAK_SEEDS, GROUPS):
        _run_named(seed)


def _run_named(seed: int) -> None:
    try:
        run_seed(seed)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def test_one_seed_tells_one_story() -> None:
    def story(seed: int) -> object:
        cluster = run_seed(seed)
        return [(copy.content, copy.durable, copy.truncated) for copy in cluster.copies.values()]

    assert story(7) == story(7)


def test_the_work_truncates_what_is_on_the_disk() -> None:
    assert sum(run_seed(seed).copies[STREAM].truncated for seed in range(10)) > 20


# -- deliberate bugs ---------------------------------------------------------------------------------------------------


def caught(seeds: int) -> int:
    """How many of the seeds see a promise broken."""
    broken = 0
    for seed in range(seeds):
        try:
            run_seed(seed)
        except* (Broken, WaystationError):  # a hole may show as damage before the audit gets there
            broken += 1
        if broken > 1:
            break
    return broken


def test_truncating_without_syncing_the_folder_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FollowerMachine, "loses_power_after", 0.7)
    monkeypatch.setattr(truncation, "_sync_folder", lambda disk, path: None)
    assert caught(60) > 1


def test_truncating_without_syncing_the_file_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FollowerMachine, "loses_power_after", 0.7)
    monkeypatch.setattr(truncation, "_sync", lambda file: None)
    assert caught(60) > 1


def test_truncating_without_taking_back_the_recovery_point_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "save_truncated", lambda disk, folder, point: None)
    assert caught(60) > 1


def test_deleting_what_is_above_the_high_watermark_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(log: Log, now_ms: int, *, before: int | None = None) -> int:
        return expired_until(log, now_ms)

    expired_until = retention.expired_until
    monkeypatch.setattr(retention, "expired_until", hasty)
    assert caught(60) > 1


def test_a_start_that_takes_an_unfinished_truncation_for_finished_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(world: World, folder: str, settings: TopicSettings, trust: Trust, **options: Any) -> Log:
        point, _ = trusted_point(world.disk, folder, trust.point, TRUNCATED_FILE in world.disk.list(folder))
        return open_log(world, folder, settings, replace(trust, point=point), **options)

    monkeypatch.setattr(follower_machine, "open_log", hasty)
    assert caught(60) > 1


def test_noting_the_new_end_before_the_truncation_is_finished_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Log.cut

    def hasty(self: Log, segments: list[Segment], producers: Producers, point: RecoveryPoint) -> list[Segment]:
        self.recovery_point = point
        return cut(self, segments, producers, point)

    monkeypatch.setattr(Log, "cut", hasty)
    assert caught(60) > 1


def test_a_truncation_that_forgets_the_producers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: truncation._Search) -> Producers:
        return self.log.producers

    monkeypatch.setattr(truncation._Search, "producers", forgetful)
    assert caught(20) > 1


def test_a_truncation_that_forgets_the_aborted_transactions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AbortedTransactions, "drop_from", lambda self, offset: None)
    assert caught(20) > 1


def test_appending_without_the_epoch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    append = Log.append_as_is

    def without_epoch(self: Log, data: bytes, *, gaps: bool = False) -> Appended:
        before = list(self.epochs.entries)
        try:
            return append(self, data, gaps=gaps)
        finally:
            self.epochs.entries = before

    monkeypatch.setattr(Log, "append_as_is", without_epoch)
    assert caught(20) > 1
