"""Records that were acquired before their time, or after it: they wait or die as if nobody had taken them."""

from __future__ import annotations

import pytest

from waystation.share.machines.delivery import EXPIRED, Death, SharePartition, saved_at

NOW_MS, TIMEOUT_MS = 1_000, 500


def partition(**settings: bool | int) -> SharePartition:
    core = SharePartition(saved_at(0), **settings)  # type: ignore[arg-type]
    core.admit(10)
    core.ledger.attach("a")
    return core


def deliveries(core: SharePartition, now_ms: int = NOW_MS) -> dict[int, int]:
    """What one consumer takes now, and how often each was handed out."""
    core.end_locks(now_ms)
    core.lapse(now_ms)
    grants = core.acquire("a", 100, now_ms, TIMEOUT_MS)
    return {offset: grant.deliveries for grant in grants for offset in range(grant.first, grant.first + grant.count)}


def test_an_early_record_is_not_handed_out_before_its_time_and_not_counted() -> None:
    core = partition(max_deliveries=1)
    assert deliveries(core) == dict.fromkeys(range(10), 1)
    core.postpone("a", [(3, 2)], NOW_MS + 700)
    core.ack("a", [(0, 3), (5, 5)])
    assert core.start == 3
    assert deliveries(core, NOW_MS + 699) == {}
    assert deliveries(core, NOW_MS + 700) == {3: 1, 4: 1}
    assert core.ack("a", [(3, 2)]).unknown == []
    assert core.start == 10


@pytest.mark.parametrize("before", [0, 1, 2])
def test_after_a_restart_an_early_record_is_counted_as_before(before: int) -> None:
    core = partition()
    for _ in range(before):
        deliveries(core)
        core.release("a", [(0, 10)])
    deliveries(core)
    core.postpone("a", [(0, 10)], NOW_MS + 700)
    restored = SharePartition(core.saved())
    restored.admit(10)
    restored.ledger.attach("a")
    assert deliveries(restored) == dict.fromkeys(range(10), before + 1)


def test_what_is_not_held_cannot_be_postponed() -> None:
    core = partition()
    core.postpone("a", [(0, 10)], NOW_MS + 700)
    assert deliveries(core) == dict.fromkeys(range(10), 1)


@pytest.mark.parametrize("keeps_dead", [False, True])
def test_an_expired_record_is_dead_and_the_last_time_does_not_count(keeps_dead: bool) -> None:
    core = partition(keeps_dead=keeps_dead)
    deliveries(core)
    core.release("a", [(0, 1)])
    assert deliveries(core) == {0: 2}
    settled = core.give_up("a", [(0, 2)], EXPIRED)
    assert settled.deaths == [Death(0, 1, 1, EXPIRED), Death(1, 1, 0, EXPIRED)]
    assert settled.changed
    assert core.start == (0 if keeps_dead else 2)
    core.buried(0, 2)
    assert core.start == 2
