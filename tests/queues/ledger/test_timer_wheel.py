"""The timer wheel against a sorted list: nothing early, nothing late, nothing lost, whatever the horizon."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from waystation.queues.ledger.timer_wheel import TimerWheel, TimerWheelState

SECOND, MINUTE, HOUR, YEAR = 1_000, 60_000, 3_600_000, 31_536_000_000
START = 1_700_000_000_000
ROWS = st.sampled_from([0, 7, 2**30, 2**42 - 3, 2**48 - 3, 2**54 - 9_000])


class TimetableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = TimerWheel()
        self.expected: list[tuple[int, int]] = []
        self.now = START
        self.next_row = 0

    def _add(self, when_ms: int, base: int, count: int) -> None:
        row = base + self.next_row
        self.next_row += count
        self.table.add(when_ms, row, count)
        self.expected += [(when_ms, row + n) for n in range(count)]

    @rule(
        delays=st.lists(
            st.integers(-SECOND, 2 * SECOND)
            | st.integers(0, 3 * MINUTE)
            | st.integers(0, 3 * HOUR)
            | st.integers(0, 3 * YEAR),
            min_size=1,
            max_size=60,
        ),
        base=ROWS,
    )
    def add_some(self, delays: list[int], base: int) -> None:
        for delay in delays:
            self._add(self.now + delay, base, 1)

    @rule(delay=st.integers(0, 3 * SECOND) | st.integers(0, 3 * HOUR), count=st.integers(2, 5_000), base=ROWS)
    def add_run(self, delay: int, count: int, base: int) -> None:
        if self.next_row + count < 9_000:  # the largest rows there are
            self._add(self.now + delay, base, count)

    @rule(by=st.sampled_from([0, 1, 10, 700, SECOND, 30 * SECOND, 50 * MINUTE, 2 * HOUR, YEAR]))
    def time_passes(self, by: int) -> None:
        self.now += by
        self._look()

    @rule(by=st.sampled_from([1, 700, SECOND, 50 * MINUTE, 5 * HOUR, YEAR]))
    def somebody_sets_the_clock_back(self, by: int) -> None:
        self.now -= by
        self._look()

    @rule(times=st.integers(1, 30))
    def from_moment_to_moment(self, times: int) -> None:
        for _ in range(times):
            next_ms = self.table.next_ms()
            if next_ms is not None:
                self.now = max(self.now, next_ms)
                self._look()

    def _look(self) -> None:
        due = [row for when_ms, row in self.expected if when_ms <= self.now]
        assert Counter(self.table.due(self.now)) == Counter(due)
        self.expected = [pair for pair in self.expected if pair[0] > self.now]

    @rule(odd=st.booleans())
    def sweep(self, odd: bool) -> None:
        """What is swept is stale by the owner's word; what it keeps stays."""
        self.table.sweep(lambda _, row: row % 2 == odd)
        left = Counter(self.table.all_rows())
        assert all(pair in left for pair in self.expected if pair[1] % 2 == odd)
        self.expected = [pair for pair in self.expected if pair in left]

    @rule(from_ms=st.integers(-SECOND, 3 * SECOND) | st.integers(0, 3 * HOUR), enough=st.integers(1, 3_000))
    def go_through_it_in_stretches(self, from_ms: int, enough: int) -> None:
        """Each stretch has all that is in its time, and the next goes on behind it."""
        first = at = self.now + from_ms
        found: list[tuple[int, int]] = []
        while True:
            end, parts = self.table.stretch(at, enough)
            rows = [part.time_and_row(number) for part in parts for number in part.rows]
            assert all(part.number_of(*part.time_and_row(number)) == number for part in parts for number in part.rows)
            some = sorted(row for row in rows if row[0] >= at)
            assert end is None or all(when_ms < end for when_ms, _ in some)
            found += some
            if end is None:
                break
            assert len(some) >= enough or len(rows) >= enough
            at = end
        assert found == sorted(pair for pair in self.expected if pair[0] >= first)

    @rule()
    def restart(self) -> None:
        stored = msgspec.msgpack.encode(self.table.dump())
        self.table = TimerWheel.load(msgspec.msgpack.decode(stored, type=TimerWheelState))

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.table.rows == len(self.expected)
        next_ms = self.table.next_ms()
        if self.expected:
            assert next_ms is not None
            assert next_ms <= max(self.now, min(self.expected)[0])
        else:
            assert next_ms is None


TestTimetable = TimetableMachine.TestCase
TestTimetable.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_small_table_knows_its_next_moment_exactly() -> None:
    table = TimerWheel()
    for n in range(20):
        table.add(START + YEAR - n, n)
    assert table.next_ms() == START + YEAR - 19


def test_a_crowded_minute_is_split_in_steps_before_it_comes() -> None:
    table = TimerWheel()
    start = START >> 16 << 16
    for n in range(20_000):
        table.add(start + 3 * 65_536 + n * 3, n)
    assert table.due(start) == []
    looks = 0
    now = start
    while (next_ms := table.next_ms()) is not None and next_ms < start + 3 * 65_536:
        now = max(now, next_ms)
        assert table.due(now) == []
        looks += 1
    assert now <= start + 2 * 65_536, "ready a minute ahead"
    assert 5 <= looks <= 12
    assert sorted(table.due(start + 4 * 65_536)) == list(range(20_000))


@pytest.mark.parametrize(("horizon_ms", "limit"), [(HOUR, 12), (24 * HOUR, 12), (YEAR, 40)])
def test_a_row_costs_few_bytes_over_any_horizon(horizon_ms: int, limit: int) -> None:
    count = 50_000
    gc.collect()
    tracemalloc.start()
    try:
        table = TimerWheel()
        for n in range(count):
            table.add(START + n * 7_919 % count * (horizon_ms // count), n)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / count < limit
