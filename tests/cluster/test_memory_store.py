"""The store in memory on its bad days, which are etcd's, made on request and under a clock that a test turns."""

from __future__ import annotations

from collections import deque

import pytest

from tests.cluster.store_kit import Following
from waystation.catalog import ABSENT, CatalogChange, Compacted
from waystation.cluster.memory_store import Fate, MemoryFace, MemoryStore
from waystation.errors import RevisionConflict, StoreUnavailable


class Clock:
    def __init__(self) -> None:
        self.time_s = 100.0

    def monotonic(self) -> float:
        return self.time_s

    def now_ms(self) -> int:
        return int(self.time_s * 1000)


class Stage:
    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore(self.clock)
        self.a, self.b = self.store.face(), self.store.face()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def fates(face: MemoryFace, *those: Fate) -> None:
    """Of the next calls; then all is well."""
    left = deque(those)
    face.fate = lambda name: left.popleft() if left else Fate.ANSWERED


def test_a_lease_runs_out_when_the_clock_says_so_and_not_before(stage: Stage) -> None:
    lease = stage.a.grant(3)
    stage.a.write({"nodes/1": b""}, lease=lease)
    assert stage.store.next_expiry_s() == 103
    following = Following(stage.b, 0)
    stage.clock.time_s = 102.9
    assert stage.a.keep_alive(lease)
    stage.clock.time_s = 105.8
    stage.store.expire()
    assert stage.b.get("nodes/1") is not None
    stage.clock.time_s = 105.9
    stage.store.expire()
    assert following.take()[-1].changes == (CatalogChange("nodes/1", None),)
    assert not stage.a.keep_alive(lease)
    assert stage.store.next_expiry_s() is None


def test_a_lease_can_be_lost_early_and_only_those_of_that_face(stage: Stage) -> None:
    stage.a.write({"nodes/1": b""}, lease=stage.a.grant(3))
    stage.b.write({"nodes/2": b""}, lease=stage.b.grant(3))
    stage.a.lose_leases()
    assert list(stage.b.read().entries) == ["nodes/2"]


def test_without_an_answer_the_write_was_not_made_or_was_made_or_is_made_later(stage: Stage) -> None:
    fates(stage.a, Fate.UNANSWERED, Fate.ANSWER_LOST, Fate.LATE)
    for key in ("not", "made", "late"):
        with pytest.raises(StoreUnavailable):
            stage.a.write({key: b""})
    assert list(stage.b.read().entries) == ["made"]
    assert stage.a.late == 1
    stage.a.deliver_late()
    assert list(stage.b.read().entries) == ["late", "made"]
    assert stage.a.late == 0


def test_a_late_write_whose_comparison_fails_by_then_changes_nothing(stage: Stage) -> None:
    fates(stage.a, Fate.LATE, Fate.ANSWER_LOST)
    with pytest.raises(StoreUnavailable):
        stage.a.write({"x": b"late"}, {"x": ABSENT})
    stage.b.write({"x": b"first"})
    stage.a.deliver_late()
    entry = stage.b.get("x")
    assert entry is not None
    assert entry.value == b"first"
    with pytest.raises(StoreUnavailable):  # and a conflict whose answer is lost is not told either
        stage.a.write({"x": b"late"}, {"x": ABSENT})
    with pytest.raises(RevisionConflict):
        stage.a.write({"x": b"late"}, {"x": ABSENT})


def test_who_is_cut_off_gets_no_answer_and_no_news_and_all_of_it_afterwards(stage: Stage) -> None:
    cut, other = Following(stage.a, 0), Following(stage.b, 0)
    stage.a.cut()
    for call in (stage.a.revision, stage.a.read, lambda: stage.a.get("x"), lambda: stage.a.grant(1)):
        with pytest.raises(StoreUnavailable):
            call()
    last = [stage.b.write({"x": b"%d" % number}) for number in range(3)][-1]
    assert len(other.reach(last)) == 3
    assert cut.take() == []
    woken = cut.woken
    stage.a.restore()
    assert cut.woken > woken
    assert len(cut.reach(last)) == 3
    assert stage.a.revision() == last


def test_a_watch_may_be_late_though_calls_are_answered(stage: Stage) -> None:
    following = Following(stage.a, 0)
    stage.a.pause_watches()
    revision = stage.a.write({"x": b""})
    assert stage.a.get("x") is not None
    assert following.take() == []
    stage.a.resume_watches()
    following.reach(revision)


def test_a_watch_that_is_late_when_the_history_is_compacted_is_told_so(stage: Stage) -> None:
    late, early = Following(stage.a, 0), Following(stage.b, 0)
    stage.a.pause_watches()
    early.reach(stage.b.write({"x": b""}))
    stage.store.compact()
    early.reach(stage.b.write({"x": b"2"}))
    stage.a.resume_watches()
    with pytest.raises(Compacted):
        late.take()
