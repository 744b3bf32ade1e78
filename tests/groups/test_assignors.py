"""What an assignor promises: everything assigned once, only to subscribers, balanced, and nothing moved needlessly."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.groups.kit import topic_id
from waystation.groups.machines.assignors import ASSIGNORS, Assignment, Subscriber, ranged, uniform

_TOPICS = [topic_id(f"t{number}") for number in range(4)]
_counts = st.dictionaries(st.sampled_from(_TOPICS), st.integers(1, 9), max_size=4)
_members = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(7)]),
    st.frozensets(st.sampled_from(_TOPICS)),
    min_size=1,
    max_size=7,
)


def subscribers(members: dict[str, frozenset[UUID]], current: Assignment | None = None) -> dict[str, Subscriber]:
    present = current or {}
    return {name: Subscriber(topics, present.get(name, frozenset())) for name, topics in members.items()}


def wanted(members: dict[str, frozenset[UUID]], counts: dict[UUID, int]) -> set[tuple[UUID, int]]:
    topics = frozenset[UUID]().union(*members.values())
    return {(topic, part) for topic, count in counts.items() if topic in topics for part in range(count)}


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members=_members, counts=_counts)
def test_each_partition_goes_to_exactly_one_subscriber(
    name: str, members: dict[str, frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    assignment = ASSIGNORS[name](subscribers(members), counts)
    owners = Counter(part for parts in assignment.values() for part in parts)
    assert set(owners) == wanted(members, counts)
    assert all(count == 1 for count in owners.values())
    assert assignment.keys() == members.keys()
    for member, parts in assignment.items():
        assert {topic for topic, _ in parts} <= members[member]


@given(members=_members, counts=_counts)
def test_uniform_leaves_no_pair_that_a_move_would_bring_closer(
    members: dict[str, frozenset[UUID]], counts: dict[UUID, int]
) -> None:
    assignment = uniform(subscribers(members), counts)
    for giver, parts in assignment.items():
        for taker in members:
            if any(topic in members[taker] for topic, _ in parts):
                assert len(assignment[giver]) - len(assignment[taker]) <= 1 or giver == taker


@given(
    names=st.sets(st.sampled_from([f"m{number}" for number in range(9)]), min_size=1),
    counts=_counts,
    later=st.sets(st.sampled_from([f"m{number}" for number in range(9)]), min_size=1),
)
def test_uniform_moves_only_what_balance_demands(names: set[str], counts: dict[UUID, int], later: set[str]) -> None:
    everything = frozenset(_TOPICS)
    before = uniform(subscribers(dict.fromkeys(sorted(names), everything)), counts)
    after = uniform(subscribers(dict.fromkeys(sorted(later), everything), before), counts)
    sizes = sorted(len(parts) for parts in after.values())
    assert sizes[-1] - sizes[0] <= 1
    share = sum(counts.values()) // len(later)
    for member in names & later:
        kept = before[member] & after[member]
        # Whoever had no more than an equal share keeps all of it; whoever had more keeps at least the share.
        assert len(kept) >= min(len(before[member]), share)
    assert uniform(subscribers(dict.fromkeys(sorted(later), everything), after), counts) == after


@given(members=_members, counts=_counts)
def test_uniform_is_settled_by_its_own_answer(members: dict[str, frozenset[UUID]], counts: dict[UUID, int]) -> None:
    once = uniform(subscribers(members), counts)
    assert uniform(subscribers(members, once), counts) == once


def test_uniform_finds_a_way_through_a_third_member() -> None:
    """a reads only t0, c only t1, b both: to relieve a, b has to take from a and give to c."""
    t0, t1 = _TOPICS[:2]
    members = {"a": frozenset({t0}), "b": frozenset({t0, t1}), "c": frozenset({t1})}
    current = {"a": frozenset({(t0, 0), (t0, 1)}), "b": frozenset({(t1, 0)})}
    assignment = uniform(subscribers(members, current), {t0: 2, t1: 1})
    assert {member: len(parts) for member, parts in assignment.items()} == {"a": 1, "b": 1, "c": 1}


def test_range_gives_stretches_that_line_up() -> None:
    t0, t1 = _TOPICS[:2]
    both = frozenset({t0, t1})
    assignment = ranged(subscribers({"a": both, "b": both}), {t0: 4, t1: 4})
    assert assignment["a"] == {(t0, 0), (t0, 1), (t1, 0), (t1, 1)}
    assert assignment["b"] == {(t0, 2), (t0, 3), (t1, 2), (t1, 3)}


def test_range_goes_by_instance_ids_so_that_a_restart_changes_nothing() -> None:
    t0 = _TOPICS[0]
    before = {"x": Subscriber(frozenset({t0}), instance_id="1"), "y": Subscriber(frozenset({t0}), instance_id="2")}
    after = {"z": Subscriber(frozenset({t0}), instance_id="1"), "y": Subscriber(frozenset({t0}), instance_id="2")}
    assert ranged(before, {t0: 4})["x"] == ranged(after, {t0: 4})["z"]


def test_a_large_group_is_assigned_without_searching() -> None:
    everything = frozenset(_TOPICS)
    members = {f"m{number:04}": everything for number in range(1_000)}
    counts = dict.fromkeys(_TOPICS, 2_500)
    first = uniform(subscribers(members), counts)
    del members["m0500"]
    second = uniform(subscribers(members, first), counts)
    moved = sum(len(second[member] - first[member]) for member in members)
    assert moved == len(first["m0500"])
