"""The core of a share group's partition, with a naive model beside it: no record lost, none back that was acknowledged.

The model is a dict from offset to what happened to it. Crashes are part of the story: the partition is made again from
what it would have written, and goes on.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from waystation.share.machines.delivery import LIMIT, REJECTED, Saved, SharePartition, saved_at
from waystation.share.machines.marks import DYING
from waystation.share.machines.records import read_value, write_value

TIMEOUT_MS = 100
LIMIT_OF_DELIVERIES = 3
MEMBERS = ("a", "b")


def fresh(start: int = 0, *, limit: int = LIMIT_OF_DELIVERIES, keeps_dead: bool = False) -> SharePartition:
    partition = SharePartition(saved_at(start), max_deliveries=limit, keeps_dead=keeps_dead)
    for member in MEMBERS:
        partition.ledger.attach(member)
    return partition


def again(partition: SharePartition) -> SharePartition:
    """As it is after a crash: from the bytes in the log."""
    saved = read_value(write_value(partition.saved()), Saved)
    restored = SharePartition(saved, max_deliveries=partition.ledger.max_deliveries, keeps_dead=partition.keeps_dead)
    for member in MEMBERS:
        restored.ledger.attach(member)
    return restored


def offsets(partition: SharePartition, member: str = "a", count: int = 100, now_ms: int = 0) -> dict[int, int]:
    """Acquires, and tells each offset's deliveries."""
    grants = partition.acquire(member, count, now_ms, TIMEOUT_MS)
    return {grant.first + i: grant.deliveries for grant in grants for i in range(grant.count)}


class Story(RuleBasedStateMachine):
    """Offsets 0, 1, 2, … in the order of the log; some of them are nothing to deliver."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.partition = fresh()
        self.finished: set[int] = set()
        self.empty: set[int] = set()
        self.counts: dict[int, int] = {}
        self.held: dict[int, tuple[str, int]] = {}

    @initialize(keeps=st.booleans(), start=st.integers(0, 5))
    def begin(self, keeps: bool, start: int) -> None:
        self.partition = fresh(start, keeps_dead=keeps)
        self.finished = set(range(start))

    @rule(count=st.integers(1, 8))
    def admit(self, count: int) -> None:
        self.partition.admit(self.partition.end + count)
        self._mourn(self.partition)

    @rule(count=st.integers(1, 4))
    def skip(self, count: int) -> None:
        """Only what is new can turn out to be nothing: after a crash the same things are nothing again."""
        if any(self.partition.marks.at(offset) is not None for offset in range(self.partition.end, 10_000)):
            return
        first = self.partition.end
        self.partition.skip(first + count)
        self.empty |= set(range(first, first + count))

    @rule(member=st.sampled_from(MEMBERS), count=st.integers(1, 6))
    def acquire(self, member: str, count: int) -> None:
        self.lapse()
        for offset, deliveries in offsets(self.partition, member, count, self.now_ms).items():
            assert offset not in self.finished
            assert offset not in self.empty
            assert offset not in self.held
            self.counts[offset] = self.counts.get(offset, 0) + 1
            assert deliveries == self.counts[offset]
            self.held[offset] = member, self.now_ms + TIMEOUT_MS

    @precondition(lambda self: self.partition.end > self.partition.start)
    @rule(data=st.data(), verb=st.sampled_from(["ack", "release", "reject"]), member=st.sampled_from(MEMBERS))
    def settle(self, data: st.DataObject, verb: str, member: str) -> None:
        first = data.draw(st.integers(self.partition.start, self.partition.end - 1))
        count = data.draw(st.integers(1, 5))
        self.lapse()
        mine = {o for o in range(first, first + count) if self.held.get(o, ("",))[0] == member}
        settled = getattr(self.partition, verb)(member, [(first, count)])
        assert {o for f, n in settled.unknown for o in range(f, f + n)} == set(range(first, first + count)) - mine
        for offset in mine:
            del self.held[offset]
            spent = self.counts[offset] >= LIMIT_OF_DELIVERIES
            if verb != "release" or spent:
                self.finished.add(offset)
        dead = {d.first + i: d.reason for d in settled.deaths for i in range(d.count)}
        if verb == "ack":
            assert not dead
        elif verb == "reject":
            assert dead == dict.fromkeys(mine, REJECTED)
        else:
            assert dead == {o: LIMIT for o in mine if self.counts[o] >= LIMIT_OF_DELIVERIES}
        for death in settled.deaths:
            self.partition.buried(death.first, death.count)

    @rule(ms=st.integers(1, 150))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.lapse()

    def lapse(self) -> None:
        settled = self.partition.end_locks(self.now_ms)
        late = {offset for offset, (_, at_ms) in self.held.items() if at_ms <= self.now_ms}
        assert {o for f, n in settled.returned for o in range(f, f + n)} == late
        for offset in late:
            del self.held[offset]
            if self.counts[offset] >= LIMIT_OF_DELIVERIES:
                self.finished.add(offset)
        for death in settled.deaths:
            self.partition.buried(death.first, death.count)

    @rule()
    def crash(self) -> None:
        end = self.partition.end
        self.partition = again(self.partition)
        self.held.clear()
        for offset in range(self.partition.end, end):  # the log is read again, and says the same
            if offset in self.empty:
                self.partition.skip(offset + 1)
            else:
                self.partition.admit(offset + 1)
        self._mourn(self.partition)

    def _mourn(self, partition: SharePartition) -> None:
        deaths, partition.dead_again = partition.dead_again, []
        for death in deaths:
            self.finished |= set(range(death.first, death.first + death.count))
            partition.buried(death.first, death.count)

    @invariant()
    def start_is_the_first_that_is_not_done(self) -> None:
        partition = self.partition
        alive = [o for o in range(partition.start, partition.end) if o not in self.finished | self.empty]
        assert partition.start == (alive[0] if alive else partition.end)
        assert len(partition.ledger) == len(alive)


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=60, stateful_step_count=40)


def test_start_waits_for_the_first_that_is_not_done() -> None:
    partition = fresh(10)
    partition.admit(20)
    assert offsets(partition) == dict.fromkeys(range(10, 20), 1)
    partition.ack("a", [(11, 4)])
    assert partition.start == 10
    assert partition.ack("a", [(10, 1)]).changed
    assert partition.start == 15


def test_acknowledged_in_the_middle_stays_so_after_a_crash() -> None:
    partition = fresh()
    partition.admit(10)
    offsets(partition)
    partition.ack("a", [(3, 2), (7, 1)])
    partition = again(partition)
    assert partition.start == partition.end == 0
    partition.admit(10)
    assert offsets(partition) == {0: 2, 1: 2, 2: 2, 5: 2, 6: 2, 8: 2, 9: 2}


def test_deliveries_end_at_the_limit_and_the_dead_wait_for_their_dead_letters() -> None:
    partition = fresh(limit=2, keeps_dead=True)
    partition.admit(3)
    for _ in range(2):
        offsets(partition)
        settled = partition.release("a", [(0, 3)])
    assert [(death.first, death.count, death.deliveries, death.reason) for death in settled.deaths] == [
        (0, 3, 2, LIMIT)
    ]
    assert partition.start == 0
    assert partition.marks.at(0) == DYING
    assert not offsets(partition)
    partition.buried(0, 3)
    assert partition.start == 3


def test_the_dying_are_found_again_after_a_crash() -> None:
    partition = fresh(keeps_dead=True)
    partition.admit(3)
    offsets(partition)
    partition.reject("a", [(1, 1)])
    partition = again(partition)
    partition.admit(3)
    assert [(death.first, death.count, death.reason) for death in partition.dead_again] == [(1, 1, REJECTED)]
    assert offsets(partition) == {0: 2, 2: 2}


def test_what_the_log_lost_is_not_waited_for() -> None:
    partition = fresh()
    partition.admit(10)
    offsets(partition, count=5)
    assert partition.log_begins_at(7)
    assert partition.start == 7
    assert offsets(partition) == {7: 1, 8: 1, 9: 1}
    assert partition.ack("a", [(2, 1)]).unknown == [(2, 1)]
    partition.log_begins_at(50)
    assert partition.start == partition.end == 50


def test_reset_starts_over() -> None:
    partition = fresh()
    partition.admit(10)
    offsets(partition)
    partition.ack("a", [(0, 10)])
    partition.reset(4, 1)
    partition.ledger.attach("a")
    partition.admit(6)
    assert offsets(partition) == {4: 1, 5: 1}
    assert partition.saved().epoch == 1


def test_marks_from_before_a_crash_do_not_fill_the_window() -> None:
    partition = fresh(keeps_dead=True)
    partition.admit(10)
    offsets(partition)
    partition.ack("a", [(2, 1), (4, 1)])
    partition.reject("a", [(6, 2)])
    assert partition.in_flight == 8
    partition = again(partition)
    assert partition.in_flight == 0
    partition.admit(5)
    assert partition.in_flight == 4, "three records, in four pieces"
    partition.admit(10)
    assert partition.in_flight == 8


def test_state_is_small_however_much_was_done_behind_one_that_is_not() -> None:
    partition = fresh()
    partition.admit(100_000)
    offsets(partition, count=100_000)
    partition.ack("a", [(1, 99_999)])
    assert partition.start == 0
    assert len(write_value(partition.saved())) < 30
    assert partition.in_flight == 2
