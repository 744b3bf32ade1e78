"""Where the replicas of a new topic are put: on different nodes, in different racks, evenly."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.cluster.decisions.placement import (
    Candidate,
    Planner,
    check_assignment,
    default_factor,
    first_state,
    place,
)
from waystation.cluster.decisions.state import PartitionState
from waystation.errors import InvalidReplicaAssignment, InvalidReplicationFactor


def nodes(*racks: str) -> list[Candidate]:
    """Nodes from 1 on, in these racks."""
    return [Candidate(i, rack) for i, rack in enumerate(racks, 1)]


def test_three_nodes_share_replicas_and_leaders() -> None:
    assert place(3, 3, nodes("", "", "")) == [(1, 2, 3), (2, 1, 3), (3, 1, 2)]


def test_a_topic_of_one_partition_begins_at_a_node_of_its_own() -> None:
    leaders = [place(1, 1, nodes("", "", ""), start)[0][0] for start in range(6)]
    assert leaders == [1, 2, 3, 1, 2, 3]


def test_replicas_are_in_different_racks() -> None:
    placed = place(12, 2, nodes("a", "a", "b", "b"))
    assert all({1, 2} & {*replicas} and {3, 4} & {*replicas} for replicas in placed)


def test_a_rack_of_its_own_gets_a_replica_of_everything() -> None:
    """Racks come before evenness: otherwise one rack's failure would take a partition with it."""
    placed = place(9, 2, nodes("a", "a", "a", "b"))
    assert all(4 in replicas for replicas in placed)
    assert Counter(replicas[0] for replicas in placed).keys() == {1, 2, 3, 4}


def test_the_followers_of_one_leader_differ() -> None:
    """When it dies, its partitions are spread over the others."""
    placed = place(60, 2, nodes("", "", "", ""))
    for leader in range(1, 5):
        heirs = Counter(replicas[1] for replicas in placed if replicas[0] == leader)
        assert max(heirs.values()) - min(heirs.values()) <= 1
        assert len(heirs) == 3


def test_a_node_with_less_gets_the_next_topic() -> None:
    some = [Candidate(1, replicas=50, leads=20), Candidate(2, replicas=10, leads=2), Candidate(3, replicas=30, leads=9)]
    assert place(1, 2, some) == [(2, 3)]


def test_more_replicas_than_nodes_are_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidReplicationFactor, match=r"replication factor 3 .* replicas, 2;"):
        place(1, 3, nodes("", ""))
    with pytest.raises(InvalidReplicationFactor, match="at least one"):
        place(1, 0, nodes("", ""))
    with pytest.raises(InvalidReplicationFactor, match="replicas, 0;"):
        place(1, 1, [])


def test_an_assignment_by_hand_is_checked() -> None:
    check_assignment([2, 1], [1, 2, 3])
    for wrong, why in (([], "to no node"), ([1, 1], "twice"), ([1, 9], "node 9")):
        with pytest.raises(InvalidReplicaAssignment, match=why):
            check_assignment(wrong, [1, 2, 3])


def test_by_default_there_are_three_replicas_where_there_are_three_nodes() -> None:
    assert [default_factor(count) for count in (0, 1, 2, 3, 9)] == [1, 1, 2, 3, 3]


def test_a_new_partition_is_led_by_the_preferred_replica_and_all_are_in_sync() -> None:
    assert first_state((3, 1, 2)) == PartitionState((3, 1, 2), 3, 0, (1, 2, 3))


def test_the_replicas_of_a_removed_node_are_spread_over_the_others() -> None:
    planner = Planner(Candidate(one, replicas=10) for one in (1, 2, 4, 5))
    targets = [planner.target((1, 3), 2, leaving={3}) for _ in range(6)]
    assert all(target[0] == 1 for target in targets)
    assert Counter(target[1] for target in targets) == {2: 2, 4: 2, 5: 2}


def test_a_removed_node_is_replaced_in_its_rack() -> None:
    """Or two replicas would be in one rack from then on."""
    planner = Planner(nodes("a", "a", "b", "b"))
    assert planner.target((1, 3), 2, leaving={3}) == (1, 4)


def test_where_no_node_is_left_for_it_a_replica_is_given_up() -> None:
    assert Planner(nodes("", "")).target((3, 1, 2), 3, leaving={3}) == (1, 2)


def test_a_cluster_that_grows_gets_more_replicas_and_one_that_shrinks_fewer() -> None:
    assert Planner(nodes("", "", "")).target((1,), 3) == (1, 2, 3)
    assert Planner(nodes("", "", "")).target((3, 1, 2), 2) == (3, 1)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 100))
def test_a_placement_is_even_over_nodes_leaders_and_racks(
    partitions: int, factor: int, racks: int, rack_size: int, start: int
) -> None:
    some = [Candidate(i, f"rack {i % racks}") for i in range(racks * rack_size)]
    factor = min(factor, len(some))
    placed = place(partitions, factor, some, start)
    assert placed == place(partitions, factor, some, start)
    assert all(len({*replicas}) == factor for replicas in placed)
    assert all(len({one % racks for one in replicas}) == min(factor, racks) for replicas in placed)
    leads = Counter(replicas[0] for replicas in placed)
    has = Counter(one for replicas in placed for one in replicas)
    assert max(leads[one.node_id] for one in some) - min(leads[one.node_id] for one in some) <= 1
    assert max(has[one.node_id] for one in some) - min(has[one.node_id] for one in some) <= 2
