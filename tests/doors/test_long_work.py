"""The line for what takes more than a turn of the loop: one step in each turn, in order, and others in between."""

from __future__ import annotations

import asyncio

from waystation.doors.long_work import LongWork


def test_one_step_in_each_turn_of_the_loop_in_the_order_of_asking() -> None:
    async def story() -> None:
        line = LongWork()
        done: list[int] = []
        for number in range(5):
            line.then(lambda number=number: done.append(number))  # type: ignore[misc]
        for turns in range(6):
            assert done == list(range(turns))
            await asyncio.sleep(0)
        assert len(line) == 0

    asyncio.run(story())


def test_whoever_asks_again_is_behind_the_others() -> None:
    async def story() -> None:
        line = LongWork()
        done: list[str] = []

        def step(name: str, left: int) -> None:
            done.append(name)
            if left:
                line.then(lambda: step(name, left - 1))

        line.then(lambda: step("long", 3))
        line.then(lambda: step("short", 0))
        line.then(lambda: step("other", 1))
        for _ in range(8):
            await asyncio.sleep(0)
        assert done == ["long", "short", "other", "long", "other", "long", "long"]

    asyncio.run(story())


def test_tasks_get_their_turn_one_by_one_and_a_cancelled_one_is_passed_over() -> None:
    async def story() -> None:
        line = LongWork()
        done: list[tuple[int, int]] = []
        turns = 0

        async def work(number: int) -> None:
            await line.turn()
            done.append((number, turns))

        tasks = [asyncio.create_task(work(number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        for _ in range(20):
            turns += 1
            await asyncio.sleep(0)
        assert [number for number, _ in done] == [0, 2, 3]
        assert len({turn for _, turn in done}) == 3, "no two of them in the same turn"

    asyncio.run(story())
