"""The budget of bytes that connections share: who gets room, in which order, and who is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.protocols.test_long_work import TURNS, ByHand
from waystation.protocols.budget import CHECK_S, FREE_BYTES, HOLD_S, SMALL_BYTES, STALL_S, Budget, BudgetShare
from waystation.world.long_work import LongWork

MIB = 1024 * 1024
TOTAL = 100 * MIB
MAIN = 75 * MIB


class LoopClock:
    """The loop's own time, which the tests let pass by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return int(self.now_s * 1000)


class Client:
    def __init__(self, budget: Budget) -> None:
        self.moved = 0
        self.granted = 0
        self.ended = False
        self.share: BudgetShare = budget.share(self, lambda: self.moved)

    def on_room(self) -> None:
        self.granted += 1

    def spare(self) -> bool:
        return False

    def overdue(self, why: str) -> bool:
        self.ended = True
        self.share.drop()
        return True


def run(story: Callable[[Budget, LoopClock], Awaitable[None]]) -> None:
    clock = LoopClock()
    line = LongWork(clock.monotonic)
    asyncio.run(_awaited(story(Budget(lambda: TOTAL, clock, "a test", line), clock)))


async def _awaited(story: Awaitable[None]) -> None:
    await story


async def turns() -> None:
    """As many as it takes those who were given room to hear of it."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_what_is_small_enough_is_never_counted() -> None:
    async def story(budget: Budget, clock: LoopClock) -> None:
        clients = [Client(budget) for _ in range(10_000)]
        assert all(client.share.want(FREE_BYTES) for client in clients)
        assert budget.used == 0

    run(story)


def test_large_ones_leave_the_reserve_to_small_ones() -> None:
    async def story(budget: Budget, clock: LoopClock) -> None:
        large, more = Client(budget), Client(budget)
        assert large.share.want(MAIN)
        assert not more.share.want(2 * MIB)
        small = [Client(budget) for _ in range(25)]
        assert all(client.share.want(SMALL_BYTES) for client in small)
        assert not Client(budget).share.want(SMALL_BYTES)
        assert budget.used == TOTAL

    run(story)


def test_small_ones_do_not_keep_a_large_one_out() -> None:
    async def story(budget: Budget, clock: LoopClock) -> None:
        small = [Client(budget) for _ in range(100)]
        assert all(client.share.want(SMALL_BYTES) for client in small)
        large = Client(budget)
        assert not large.share.want(10 * MIB)
        for client in small[:10]:
            client.share.drop()
            assert not Client(budget).share.want(SMALL_BYTES)  # more than the reserve is in use by small ones
        await turns()
        assert large.granted == 1

    run(story)


def test_room_is_given_in_the_order_of_asking_and_one_who_leaves_is_passed_over() -> None:
    async def story(budget: Budget, clock: LoopClock) -> None:
        first, *waiting = [Client(budget) for _ in range(4)]
        assert first.share.want(MAIN)
        assert not any(client.share.want(MAIN) for client in waiting)
        waiting[0].share.drop()
        first.share.drop()
        await turns()
        assert [client.granted for client in waiting] == [0, 1, 0]
        waiting[1].share.drop()
        await turns()
        assert [client.granted for client in waiting] == [0, 1, 1]

    run(story)


def test_those_who_were_given_room_at_once_go_on_one_at_a_time() -> None:
    async def story() -> None:
        line = ByHand()
        budget = Budget(lambda: TOTAL, LoopClock(), "a test", line)
        first, *waiting = [Client(budget) for _ in range(4)]
        assert first.share.want(MAIN)
        assert not any(client.share.want(20 * MIB) for client in waiting)
        first.share.drop()
        assert budget.used == 60 * MIB, "all of them have their room"
        await line.turns()
        for gone_on in range(1, len(waiting) + 1):
            assert [client.granted for client in waiting] == [1] * gone_on + [0] * (len(waiting) - gone_on)
            await line.rested()

    asyncio.run(story())


def test_what_is_larger_than_all_there_is_gets_its_turn_alone() -> None:
    async def story(budget: Budget, clock: LoopClock) -> None:
        before, huge = Client(budget), Client(budget)
        assert before.share.want(2 * MIB)
        assert not huge.share.want(2 * TOTAL)
        before.share.drop()
        await turns()
        assert huge.granted == 1

    run(story)


def test_one_who_moves_nothing_is_ended_when_somebody_waits_and_not_before() -> None:
    async def story(budget: Budget, clock: LoopClock) -> None:
        stuck, busy, waits = Client(budget), Client(budget), Client(budget)
        assert stuck.share.want(40 * MIB)
        assert busy.share.want(30 * MIB)
        clock.now_s = 1000.0
        await turns()
        assert not stuck.ended
        stuck.share.renew()
        busy.share.renew()
        assert not waits.share.want(20 * MIB)
        for _ in range(int(STALL_S / CHECK_S) + 1):
            busy.moved += 1
            budget.check()
            clock.now_s += CHECK_S
        assert (stuck.ended, busy.ended) == (True, False)
        await turns()
        assert waits.granted == 1

    run(story)


def test_one_who_drips_is_ended_after_a_while() -> None:
    async def story(budget: Budget, clock: LoopClock) -> None:
        drips, waits = Client(budget), Client(budget)
        assert drips.share.want(MAIN)
        assert not waits.share.want(MAIN)
        for _ in range(int(HOLD_S / CHECK_S) + 1):
            assert not drips.ended
            drips.moved += 1
            budget.check()
            clock.now_s += CHECK_S
        assert drips.ended

    run(story)
