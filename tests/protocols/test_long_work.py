"""The line for what takes more than a turn of the loop: one step at a time, in order, and as much time for others."""

from __future__ import annotations

import asyncio

from waystation.world.long_work import GIVE_WAY_S, LATELY_S, MOST_REST_S, LongWork

TURNS = 10
"""More than a step and what it leaves for the next turn take."""


class ByHand(LongWork):
    """Its clock, and the ends of its rests, are the test's; a step may be as short as it likes, there is a rest."""

    def __init__(self, short_s: float = -1.0) -> None:
        super().__init__(lambda: self.now_s, short_s)
        self.now_s = 0.0
        self.rests: list[float] = []

    def _later(self, seconds: float) -> None:
        self.rests.append(seconds)

    async def turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def rested(self) -> None:
        self._next()
        await self.turns()


def test_one_step_at_a_time_in_the_order_of_asking_and_a_rest_as_long_behind_it() -> None:
    async def story() -> None:
        line = ByHand()
        done: list[int] = []

        def step(number: int) -> None:
            done.append(number)
            line.now_s += number / 100

        for number in range(1, 4):
            line.then(lambda number=number: step(number))  # type: ignore[misc]
        assert not done, "not in the turn of whoever asks"
        await line.turns()
        assert done == [1]
        await line.rested()
        assert done == [1, 2]
        await line.rested()
        assert done == [1, 2, 3]
        assert [round(rest, 6) for rest in line.rests] == [0.01, 0.02, 0.03]
        assert line.taken
        await line.rested()
        assert not line.taken
        assert len(line) == 0

    asyncio.run(story())


def test_whoever_asks_again_is_behind_the_others() -> None:
    async def story() -> None:
        line = ByHand()
        done: list[str] = []

        def step(name: str, left: int) -> None:
            done.append(name)
            if left:
                line.then(lambda: step(name, left - 1))

        line.then(lambda: step("long", 3))
        line.then(lambda: step("short", 0))
        line.then(lambda: step("other", 1))
        await line.turns()
        for _ in range(6):
            await line.rested()
        assert done == ["long", "short", "other", "long", "other", "long", "long"]

    asyncio.run(story())


def test_tasks_get_their_turn_one_by_one_and_what_they_do_then_is_their_step() -> None:
    async def story() -> None:
        line = ByHand()
        done: list[int] = []

        async def work(number: int) -> None:
            await line.turn()
            line.now_s += 0.05
            done.append(number)

        tasks = [asyncio.create_task(work(number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await line.turns()
        assert done == [0]
        assert line.rests == [0.05]
        await line.rested()
        assert done == [0], "the turn of one that was cancelled"
        await line.rested()
        assert done == [0, 2]

    asyncio.run(story())


def test_a_long_step_that_nobody_foresaw_makes_the_others_wait() -> None:
    async def story() -> None:
        line = ByHand()
        done: list[str] = []
        assert not line.taken
        line.took()
        assert line.taken
        line.then(lambda: done.append("behind it"))
        await line.turns()
        assert not done
        await line.rested()
        assert done == ["behind it"]

    asyncio.run(story())


def test_the_rest_keeps_back_everybody_but_the_one_who_is_alone() -> None:
    async def story() -> None:
        line = ByHand()
        reader, other = object(), object()
        assert not line.taken_from(reader)
        line.took(reader)
        assert line.taken_from(reader), "it makes one step in a turn"
        line.now_s += 0.01
        await line.turns()
        assert line.rests == [0.01]
        assert not line.taken_from(reader), "it would rest for nobody"
        assert line.taken_from(other)
        line.asked(other)
        assert line.taken_from(reader), "another one waits for small answers"
        line.now_s += LATELY_S
        assert not line.taken_from(reader)
        line.then(lambda: None, other)
        assert line.taken_from(reader), "another one is in the line"
        await line.rested()
        assert line.taken_from(reader), "another one had the last step"

    asyncio.run(story())


def test_a_step_that_something_held_up_does_not_make_the_line_rest_for_long() -> None:
    async def story() -> None:
        line = ByHand()

        def held_up() -> None:
            line.now_s += 60

        line.then(held_up)
        await line.turns()
        assert line.rests == [MOST_REST_S]

    asyncio.run(story())


def test_behind_a_short_step_the_next_one_does_not_wait_for_nobody() -> None:
    async def story() -> None:
        line = ByHand(short_s=0.01)
        done: list[int] = []

        def step(number: int) -> None:
            done.append(number)
            line.now_s += 0.01

        for number in range(3):
            line.then(lambda number=number: step(number))  # type: ignore[misc]
        for _ in range(3):
            await line.turns()
        assert done == [0, 1, 2]
        assert line.rests == []
        assert not line.taken

    asyncio.run(story())


def test_a_short_step_that_nobody_foresaw_keeps_the_line_for_its_own_turn_only() -> None:
    async def story() -> None:
        line = ByHand(short_s=0.01)
        line.took()
        assert line.taken, "another one in this turn gets in the line"
        await line.turns()
        assert not line.taken
        assert line.rests == []

    asyncio.run(story())


def test_behind_a_short_step_others_who_work_get_as_much_time() -> None:
    async def story() -> None:
        line = ByHand(short_s=0.01)
        others = asyncio.Event()

        def step() -> None:
            line.now_s += 0.01

        async def work() -> None:
            while not others.is_set():
                line.now_s += 0.004
                await asyncio.sleep(0)

        line.then(step)
        line.then(step)
        working = asyncio.create_task(work())
        await line.turns()
        others.set()
        await working
        assert len(line) == 1, "the second waits"
        assert len(line.rests) == 1

    asyncio.run(story())


def test_others_wait_if_another_than_oneself_has_asked_lately() -> None:
    line = ByHand()
    line.now_s = 100.0
    busy, one, two = object(), object(), object()
    assert not line.others_wait(busy), "nobody has ever asked"
    line.asked(busy)
    assert not line.others_wait(busy), "only oneself"
    assert line.others_wait(one)
    line.now_s += LATELY_S / 2
    line.asked(one)
    line.asked(busy)
    line.asked(busy)
    assert line.others_wait(busy), "somebody else did before"
    line.now_s += 2 * LATELY_S
    assert not line.others_wait(busy), "that was long ago"
    assert not line.others_wait(two)


def test_the_line_goes_on_by_itself() -> None:
    async def story() -> None:
        line = LongWork(asyncio.get_running_loop().time)
        async with asyncio.timeout(30):
            await asyncio.gather(*(line.turn() for _ in range(20)))

    asyncio.run(story())


def test_the_line_gives_way_once_to_who_has_just_asked() -> None:
    async def story() -> None:
        line = ByHand()
        line.now_s = 100.0
        done: list[int] = []
        bulk, small = object(), object()
        for number in range(3):
            line.then(lambda number=number: done.append(number), bulk)  # type: ignore[misc]
        line.asked(small)
        await line.turns()
        assert done == []
        assert line.rests == [GIVE_WAY_S]
        await line.rested()
        assert done == [0], "the same question does not hold it up twice"
        line.asked(small)
        line.now_s += GIVE_WAY_S
        await line.rested()
        assert done == [0, 1], "that was answered long ago"
        line.asked(small)
        await line.rested()
        assert done == [0, 1]
        line.asked(object())
        await line.rested()
        assert done == [0, 1, 2], "however many ask"

    asyncio.run(story())


def test_one_who_asks_for_much_is_not_waited_for() -> None:
    """By none of those in the line: two who read megabytes each by small requests would hold each other up."""

    async def story() -> None:
        line = ByHand()
        line.now_s = 100.0
        done: list[str] = []
        first, second = object(), object()
        line.asked(first)
        line.then(lambda: done.append("first"), first)
        line.asked(second)
        line.took(second)
        await line.turns()
        assert done == ["first"]
        assert not line.others_wait(object())

    asyncio.run(story())
