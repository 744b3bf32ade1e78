"""The simulated world: time that jumps, chance that repeats, threads that take turns, an end when the power goes."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.loop import Deadlock, Livelock, SimLoop, VirtualTime
from tests.simulation.offload import SimOffload
from tests.simulation.world import Complaint, Simulation, simulated_world


def test_a_year_passes_in_a_blink() -> None:
    async def main() -> float:
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(365 * 86_400)
        return asyncio.get_running_loop().time() - before

    assert Simulation(1).run(main()) == pytest.approx(365 * 86_400)


def test_timers_fire_in_the_order_of_their_time() -> None:
    async def main() -> list[int]:
        fired: list[int] = []

        async def one(number: int) -> None:
            await asyncio.sleep(number)
            fired.append(number)

        await asyncio.gather(*(one(number) for number in (3, 1, 4, 2)))
        return fired

    assert Simulation(1).run(main()) == [1, 2, 3, 4]


def test_timers_that_are_cancelled_are_forgotten_and_the_others_fire_in_order() -> None:
    loop = SimLoop()
    fired: list[int] = []

    async def main() -> None:
        begun = loop.time()
        timers = [loop.call_later(10 - one / 200, fired.append, one) for one in range(1_000)]
        for one, timer in enumerate(timers):
            if one % 100:
                timer.cancel()
        await asyncio.sleep(0)
        assert len(loop._timers) < 100
        await asyncio.sleep(10)
        assert loop.time() == pytest.approx(begun + 10)

    loop.run_until_complete(main())
    loop.close()
    assert fired == list(range(900, -1, -100))


def test_waiting_for_what_never_comes_is_told_instead_of_hanging() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="main"):
        Simulation(1).run(main())


def test_spinning_is_told_instead_of_hanging() -> None:
    loop = SimLoop(turns_max=1000)

    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    task = loop.create_task(main())
    with pytest.raises(Livelock):
        loop.run_until_complete(task)
    loop._turns_left = 10
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_the_wall_clock_may_jump_and_the_monotonic_one_does_not() -> None:
    simulation = Simulation(1)

    async def main() -> tuple[object, object]:
        wall, monotonic = simulation.clock.now_ms(), simulation.clock.monotonic()
        simulation.clock.jump_ms -= 3_600_000
        await asyncio.sleep(1)
        return simulation.clock.now_ms() - wall, simulation.clock.monotonic() - monotonic

    assert simulation.run(main()) == (1_000 - 3_600_000, pytest.approx(1.0))


def test_time_goes_on_in_the_next_life() -> None:
    first = Simulation(1, time=VirtualTime(5))
    first.run(asyncio.sleep(10))
    assert Simulation(2, time=first.time).clock.monotonic() == pytest.approx(15)


def test_chance_repeats() -> None:
    def draw(seed: int) -> list[object]:
        chance = simulated_world(seed).random
        return [chance.token(8), chance.uuid(), chance.below(1000), chance.uniform()]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def _race(seed: int, *, cancel: bool = False) -> list[str]:
    """What a thread and the loop did, in order."""
    simulation = Simulation(seed)
    offload = SimOffload(random.Random(seed), simulation.disk, threads=1.0)
    happened: list[str] = []

    def work() -> int:
        file = simulation.disk.open("/f", create=True)
        for number in range(5):
            file.write([b"x"], number)
            happened.append("thread")
        return file.size()

    async def main() -> None:
        waiting = asyncio.create_task(offload(work))
        for _ in range(5):
            await asyncio.sleep(0.003)
            happened.append("loop")
            if cancel:
                waiting.cancel()
        if not cancel:
            assert await waiting == 5

    simulation.run(main())
    offload.close()
    return happened


def test_threads_and_the_loop_take_turns_in_as_many_ways_as_there_are_seeds() -> None:
    orders = {tuple(_race(seed)) for seed in range(40)}
    assert len(orders) > 12
    assert [_race(seed) for seed in range(10)] == [_race(seed) for seed in range(10)]


def test_work_goes_on_when_nobody_waits_for_it_any_more() -> None:
    assert all(_race(seed, cancel=True).count("thread") == 5 for seed in range(20))


def test_an_error_in_offloaded_work_reaches_who_waits() -> None:
    simulation = Simulation(1)

    def work() -> None:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError, match="gone"):
        simulation.run(simulation.world.offload(work))


@pytest.mark.parametrize("seed", range(20))
def test_when_the_power_goes_everything_ends_at_once(seed: int) -> None:
    simulation = Simulation(seed)
    rng = random.Random(seed)
    after: list[str] = []

    def in_thread() -> None:
        file = simulation.disk.open(f"/{rng.random()}", create=True)
        for number in range(10):
            file.write([b"x"], number)
            if not simulation.disk.powered:
                after.append("thread")

    async def write_for_ever() -> None:
        while True:
            await simulation.world.offload(in_thread)
            if not simulation.disk.powered:
                after.append("loop")

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(write_for_ever())

    simulation.disk.fail_at(rng.randrange(1, 60))
    with pytest.raises(PowerCut):
        simulation.run(main())
    assert after == []


def test_an_error_that_nobody_waits_for_is_not_lost() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 // 0)
        await asyncio.sleep(2)

    with pytest.raises(Complaint, match="ZeroDivisionError"):
        Simulation(1).run(main())


def test_a_world_can_be_had_without_a_loop() -> None:
    disk = SimDisk(3)
    world = simulated_world(3, disk)
    assert world.disk is disk
    assert world.clock.now_ms() > 0
