"""Pages of names, and the names of queues in order: against plain sorting, whatever comes and goes."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from waystation.paging import STEP, matching, page_of, sort_in_steps
from waystation.queues.names import QueueNames

NAMES = st.text(alphabet="_aAbß/", min_size=1, max_size=4)


class NamesMachine(RuleBasedStateMachine):
    """Queues come and go; now and then somebody looks."""

    def __init__(self) -> None:
        super().__init__()
        self.names = QueueNames()
        self.expected: set[str] = set()

    @rule(name=NAMES)
    def comes(self, name: str) -> None:
        place: Any = object()
        self.names.add(name, place)
        self.expected.add(name)

    @rule(name=NAMES)
    def goes(self, name: str) -> None:
        self.names.discard(name)
        self.expected.discard(name)

    @rule(count=st.integers(1, 300))
    def many_go(self, count: int) -> None:
        for name in sorted(self.expected)[:count]:
            self.goes(name)

    @rule(prefix=st.text(alphabet="_ab", max_size=2), after=st.text(alphabet="_ab", max_size=2))
    def somebody_looks(self, prefix: str, after: str) -> None:
        wanted = sorted(name for name in self.expected if name.startswith(prefix) and (not after or name > after))
        assert list(self.names.ordered(prefix, after)) == wanted

    @rule(prefix=st.text(alphabet="_ab", max_size=2))
    def somebody_lists(self, prefix: str) -> None:
        wanted = sorted(name for name in self.expected if name.startswith(prefix) and not name.startswith("__"))
        assert asyncio.run(self.names.listed(prefix)) == wanted

    @invariant()
    def all_are_found(self) -> None:
        assert set(self.names) == self.expected


TestNames = NamesMachine.TestCase
TestNames.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_names_that_come_and_go_while_all_are_sorted_are_right_afterwards() -> None:
    async def work() -> None:
        names = QueueNames()
        place: Any = object()
        for number in range(3 * STEP):
            names.add(f"{number * 7919 % (3 * STEP):05d}", place)
        looking = [asyncio.ensure_future(names.listed()) for _ in range(2)]
        await asyncio.sleep(0)
        names.discard("00007")
        names.discard("00009")
        names.add("00009", place)
        names.add("new", place)
        for found in await asyncio.gather(*looking):
            assert found == sorted(names)
        names.discard("new")
        assert await names.listed() == sorted(names)
        for number in range(2 * STEP):
            names.add(f"more-{number * 7919 % (2 * STEP):05d}", place)
        looking = [asyncio.ensure_future(names.listed()) for _ in range(2)]
        await asyncio.sleep(0)
        names.discard("more-00001")
        names.add("another", place)
        for found in await asyncio.gather(*looking):
            assert found == sorted(names)

    asyncio.run(work())


@given(st.lists(NAMES, unique=True, max_size=60), st.text(alphabet="aAbSs", max_size=2), st.integers(1, 9))
def test_pages_are_complete_and_in_order(names: list[str], search: str, limit: int) -> None:
    async def work() -> list[str]:
        known = sorted(names)
        found: list[str] = []
        after: str | None = None
        while True:
            page = await page_of(known, search, after, limit)
            assert len(page.names) <= limit
            found += page.names
            assert page.total == len(await matching(known, search))
            if page.next is None:
                return found
            assert len(page.names) == limit
            after = page.next

    assert asyncio.run(work()) == [name for name in sorted(names) if search.casefold() in name.casefold()]


def test_many_names_are_sorted_in_steps() -> None:
    names = [f"{number * 7919 % 20_011}" for number in range(20_011)]
    assert asyncio.run(sort_in_steps(names)) == sorted(names)
    assert asyncio.run(sort_in_steps(["same"] * 10_000)) == ["same"] * 10_000
