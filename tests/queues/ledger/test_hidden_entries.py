"""Entries from a number on are not handed out, whatever their priority; the others are, in the usual order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waystation.queues.ledger.ledger import Ledger

TIMEOUT_MS = 1000


@given(
    priorities=st.lists(st.sampled_from([0, 1, 9, 200]), min_size=1, max_size=60),
    hidden=st.integers(0, 61),
    released=st.sets(st.integers(0, 59)),
    steps=st.lists(st.integers(1, 7), min_size=1, max_size=40),
    claims=st.booleans(),
)
def test_what_is_hidden_waits_and_the_rest_goes_in_the_usual_order(
    priorities: list[int], hidden: int, released: set[int], steps: list[int], claims: bool
) -> None:
    ledger = Ledger()
    ledger.attach("c")
    for entry, priority in enumerate(priorities):
        ledger.admit(entry, priority=priority)
    for grant in ledger.acquire("c", len(priorities), 0, TIMEOUT_MS):
        ledger.release("c", [(grant.first, grant.count)])
    gone = {entry for entry in range(len(priorities)) if entry not in released}
    if len(gone) < len(priorities):
        ledger.finish([(entry, 1) for entry in gone])
    else:
        gone = set()
    left = [entry for entry in range(len(priorities)) if entry not in gone]
    wanted = sorted((entry for entry in left if entry < hidden), key=lambda entry: (-priorities[entry], entry))
    ledger.hide_from(hidden)
    taken: list[int] = []
    for count in steps:
        runs = ledger.claim(count) if claims else [run[:2] for run in ledger.acquire("c", count, 0, TIMEOUT_MS)]
        got = [entry for first, length in runs for entry in range(first, first + length)]
        assert len(got) == min(count, len(wanted) - len(taken))
        assert sorted(got) == sorted(wanted[len(taken) : len(taken) + len(got)])
        taken += got
    ledger.hide_from(None)
    rest = ledger.acquire("c", len(priorities), 0, TIMEOUT_MS)
    assert sum(grant.count for grant in rest) == len(left) - len(taken)
