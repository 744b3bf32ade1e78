"""Thousands of power cuts: what a log acknowledged is kept, all else is whole or gone, and it always starts again.

Each seed runs a few lives of a machine (see `log_machine.py`). A life ends by a power cut at some disk operation, also
in the middle of recovery, or by a killed process, or by a clean stop. To repeat a failure: `run_seed(SEED)`.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.simulation import log_machine
from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.encryption import SimKeys, encrypting, some_keys
from tests.simulation.log_machine import Clients, LogMachine
from tests.simulation.loop import VirtualTime
from tests.simulation.promises import Broken, expect
from tests.simulation.world import Simulation
from waystation.config import TopicSettings
from waystation.encryption import key_file
from waystation.encryption.key_file import KeyFile
from waystation.encryption.key_ring import Aead, KeyRing
from waystation.log import log as log_module
from waystation.log.commit import GroupCommit
from waystation.log.log import Log
from waystation.log.opening.recovery import Trust, open_log
from waystation.log.segments.segment import Segment, file_name
from waystation.log.sync import RecoveryPoint
from waystation.world import Disk, Random, SystemRandom, World

SEEDS = 60
SOAK_SEEDS = 5_000
GROUPS = 10


class AcknowledgesTooEarly(GroupCommit):
    """The deliberate bug: the flush is started, but nobody waits for it."""

    async def durable(self, log: Log, offset: int) -> None:
        self.join()


def run_seed(
    seed: int, commit: Callable[[World], GroupCommit] = GroupCommit, keys: Callable[[int], SimKeys | None] = some_keys
) -> Clients:
    """Some lives of one machine and its clients; raises Broken if a promise is not kept."""
    rng = random.Random(seed)
    clients = Clients(rng)
    clients.keys = keys(seed)
    disk = SimDisk(seed)
    time = VirtualTime()
    for life in range(rng.randint(2, 5)):
        disk.fail_at(disk.operations + 1 + int(rng.choice((30, 200, 1_000)) * rng.random()))
        try:
            run_life(seed, life, disk, time, clients, commit)
            disk = disk.process_crash() if rng.random() < 0.5 else disk.power_cut(rng)
        except PowerCut:
            disk = disk.process_crash() if rng.random() < 0.3 else disk.power_cut(rng)
    disk = two_accidents(seed, disk, time, clients, commit)
    run_life(seed, 98, disk, time, clients, commit)
    run_life(seed, 99, disk.process_crash(), time, clients, commit)
    return clients


def two_accidents(
    seed: int, disk: SimDisk, time: VirtualTime, clients: Clients, commit: Callable[[World], GroupCommit]
) -> SimDisk:
    """The process is killed when it has just begun new segments; the next one has just started and noted that it has,
    when the power goes."""

    async def roll(machine: LogMachine) -> None:
        await machine.start()
        await machine.work(0.05)
        await machine.roll()
        raise PowerCut

    async def start(machine: LogMachine) -> None:
        await machine.start()
        raise PowerCut

    with suppress(PowerCut):
        run_life(seed, 96, disk, time, clients, commit, roll)
    disk = disk.process_crash()
    with suppress(PowerCut):
        run_life(seed, 97, disk, time, clients, commit, start)
    return disk.power_cut(clients.rng)


def run_life(
    seed: int,
    life: int,
    disk: SimDisk,
    time: VirtualTime,
    clients: Clients,
    commit: Callable[[World], GroupCommit],
    story: Callable[[LogMachine], Awaitable[None]] | None = None,
) -> None:
    simulation = Simulation(seed * 100 + life, disk, time=time)

    async def main() -> None:
        machine = LogMachine(encrypting(clients.keys, simulation.world), disk, clients, commit)
        if story is not None:
            await story(machine)
        await machine.start()
        await machine.work(clients.rng.choice((0.05, 0.5)))
        await machine.stop()
        expect(not disk.open_files, f"still open after a clean stop: {[*disk.open_files.values()]}")

    simulation.run(main())


@pytest.fixture(autouse=True)
def _checkpoints_after_a_few_kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "CHECKPOINT_BYTES", 2_000)


@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_acknowledged_is_lost_when_the_power_goes(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        _run_named(seed)


@pytest.mark.soak
@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_acknowledged_is_lost_when_the_power_goes_thousands_of_times(group: int) -> None:
    for seed in range(SEEDS + group, SOAK_SEEDS, GROUPS):
        _run_named(seed)


def _run_named(seed: int) -> None:
    try:
        run_seed(seed)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def test_acknowledging_before_the_flush_is_caught() -> None:
    caught = 0
    for seed in range(40):
        try:
            run_seed(seed, AcknowledgesTooEarly)
        except* Broken:
            caught += 1
    assert caught > 10, f"only {caught} of 40 seeds have seen acknowledged records vanish"


def test_a_recovery_point_that_names_a_segment_with_no_durable_name_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And that does not count when the segment is missing, so that all of the log is in doubt."""

    def hasty(world: World, folder: str, settings: TopicSettings, trust: Trust, **options: Any) -> Log:
        known = trust.point is not None and file_name(trust.point.segment, "log") in world.disk.list(folder)
        log = open_log(world, folder, settings, trust if known else replace(trust, point=None), **options)
        log.recovery_point = RecoveryPoint(log.end_offset, log.active.base_offset, log.active.size)
        return log

    monkeypatch.setattr(log_machine, "open_log", hasty)
    caught = 0
    for seed in range(60, 120):
        try:
            run_seed(seed, keys=lambda _: None)  # the figure below is of these seeds without encryption
        except* Broken:
            caught += 1
    assert caught > 1


def test_a_hole_in_a_time_index_that_is_believed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segment, "_begins_in_1970", lambda self: True)  # the deliberate bug
    caught = 0
    for seed in range(100):
        try:
            run_seed(seed)
        except* Broken:
            caught += 1
        if caught > 1:
            break
    assert caught > 1, "nobody has seen retention take fresh records for old"


class RepeatsItself(KeyRing):
    """A deliberate bug: data keys follow from the folder key alone. Each life, and each file, counts from 1 again."""

    def __init__(self, keys: Mapping[int, bytes], active: int, random: Random, cipher: Callable[[bytes], Aead]) -> None:
        super().__init__(keys, active, SameSalt(), cipher)


class SameSalt(SystemRandom):
    def token(self, n: int) -> bytes:
        return bytes(n)


class HastyKeys(SimKeys):
    """A deliberate bug: the file of keys is written, but not synced before something is encrypted with them."""

    @staticmethod
    def save(disk: Disk, root: str, content: KeyFile) -> None:
        file = disk.open(f"{root}/{key_file.FILE}", create=True)
        data = msgspec.json.encode(content)
        file.write([data], 0)
        file.truncate(len(data))
        file.close()


class ForgetfulKeys(SimKeys):
    """A deliberate bug: a rotation leaves only the newest folder key, though there is data that needs the others."""

    @staticmethod
    def save(disk: Disk, root: str, content: KeyFile) -> None:
        key_file.save(disk, root, key_file.without(content, {key.number for key in content.keys}))


def _caught(make: Callable[[int], SimKeys | None], seeds: int = 30) -> int:
    caught = 0
    for seed in range(seeds):
        try:
            run_seed(seed, keys=make)
        except (Exception, ExceptionGroup):
            caught += 1
    return caught


def test_a_nonce_that_is_used_twice_is_caught() -> None:
    assert _caught(lambda seed: SimKeys(seed, 0, RepeatsItself), 10) == 10


def test_keys_that_are_not_durable_before_they_are_used_are_caught() -> None:
    assert _caught(lambda seed: HastyKeys(seed, 0)) > 10


def test_a_rotation_that_drops_keys_is_caught() -> None:
    assert _caught(lambda seed: ForgetfulKeys(seed, 0)) > 10


def test_encryption_that_is_on_from_the_start_or_turned_on_later_keeps_what_was_acknowledged() -> None:
    for seed in range(200, 206):
        for plain_lives in (0, 1, 2):
            clients = run_seed(seed, keys=partial(SimKeys, plain_lives=plain_lives))
            assert clients.keys is not None
            assert clients.keys.nonces.used, "nothing was encrypted"


def test_one_seed_tells_one_story() -> None:
    def story(seed: int) -> object:
        clients = run_seed(seed)
        return clients.acknowledged, clients.streams["stream-0"].promised, clients.tables["table"].promised

    assert story(7) == story(7)
