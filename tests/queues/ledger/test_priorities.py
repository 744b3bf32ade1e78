"""Priorities as a queue tells them apart, and the levels of the ledger that they stand on."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.message import HIGHEST_PRIORITY
from waystation.queues.ledger.moves import HIGHEST, PRIORITIES
from waystation.queues.ledger.priorities import levels


@given(st.integers(0, HIGHEST_PRIORITY))
def test_a_higher_priority_never_stands_lower_and_what_is_too_high_is_as_the_highest(most: int) -> None:
    found = levels(most)
    assert len(found) == HIGHEST_PRIORITY + 1
    assert all(one <= other for one, other in pairwise(found))
    assert found[0] == 0
    assert set(found[most:]) == {found[most]}
    assert len(set(found)) == min(most + 1, PRIORITIES)
    assert found[most] == min(most, HIGHEST)


@pytest.mark.parametrize("most", range(HIGHEST + 1))
def test_as_many_as_there_are_levels_are_told_apart_as_they_are(most: int) -> None:
    assert list(levels(most)[: most + 1]) == list(range(most + 1))
