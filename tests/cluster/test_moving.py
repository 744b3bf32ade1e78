"""Which replicas are moved when operators want other numbers of them, or none on certain nodes."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.cluster.decisions.moving import PartitionId, moves
from waystation.errors import InvalidReplicaAssignment, InvalidReplicationFactor

TOPIC = UUID(int=1)


def placed(*replicas: tuple[int, ...]) -> dict[PartitionId, tuple[int, ...]]:
    return {(TOPIC, index): those for index, those in enumerate(replicas)}


def after(
    replicas: dict[PartitionId, tuple[int, ...]],
    racks: dict[int, str],
    factor: int | None = None,
    leaving: tuple[int, ...] = (),
) -> list[tuple[int, ...]]:
    found = moves(replicas, replicas, racks, factor=factor, leaving=leaving)
    changed = {(move.topic_id, move.index): move.replicas for move in found}
    return [changed.get(one, those) for one, those in replicas.items()]


def test_a_cluster_that_grew_gets_more_replicas_and_leaders_on_all_nodes() -> None:
    found = after(placed(*[(1,)] * 6), {1: "", 2: "", 3: ""}, factor=3)
    assert all(set(those) == {1, 2, 3} for those in found)
    assert Counter(those[0] for those in found) == {1: 2, 2: 2, 3: 2}


def test_replicas_of_a_node_that_is_left_are_given_to_the_others_and_no_other_is_moved() -> None:
    replicas = placed((1, 2), (2, 3), (3, 1), (1, 4))
    found = after(replicas, dict.fromkeys((1, 2, 3, 4), ""), leaving=(4,))
    assert found[:3] == list(replicas.values())[:3]
    assert found[3][0] == 1
    assert found[3][1] in (2, 3)


def test_a_leader_that_is_left_is_followed_by_the_next_in_the_order() -> None:
    assert after(placed((1, 2, 3)), dict.fromkeys((2, 3, 4), ""), leaving=(1,)) == [(2, 3, 4)]


def test_without_a_node_to_move_to_there_are_fewer_replicas() -> None:
    assert after(placed((1, 2, 3)), {1: "", 2: ""}, leaving=(3,)) == [(1, 2)]


def test_the_last_replica_is_not_removed() -> None:
    with pytest.raises(InvalidReplicaAssignment, match="start another node"):
        after(placed((3,)), {3: ""}, leaving=(3,))


def test_more_replicas_than_nodes_are_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidReplicationFactor, match=r"4 .* 3"):
        after(placed((1,)), dict.fromkeys((1, 2, 3), ""), factor=4)


def test_a_new_replica_is_put_into_a_rack_that_has_none() -> None:
    assert after(placed((1, 2)), {1: "a", 2: "a", 3: "a", 4: "b"}, factor=3) == [(1, 2, 4)]


def test_fewer_replicas_are_taken_from_nodes_that_have_many() -> None:
    found = after(placed((1, 2, 3), (1, 2, 3), (2, 1, 3)), dict.fromkeys((1, 2, 3), ""), factor=2)
    assert all(len(set(those)) == 2 for those in found)
    counts = Counter(node for those in found for node in those)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_fewer_replicas_are_taken_from_nodes_that_cannot_get_any() -> None:
    assert after(placed((3, 1, 2)), {1: "", 2: ""}, factor=2) == [(1, 2)]


@given(st.data())
def test_what_is_wanted_is_so_afterwards_and_asking_again_changes_no_set(data: st.DataObject) -> None:
    nodes = list(range(1, data.draw(st.integers(2, 6)) + 1))
    replicas = placed(
        *data.draw(st.lists(st.lists(st.sampled_from(nodes), min_size=1, unique=True).map(tuple), min_size=1))
    )
    leaving = tuple(data.draw(st.lists(st.sampled_from(nodes), max_size=len(nodes) - 1, unique=True)))
    factor = data.draw(st.none() | st.integers(1, len(nodes) - len(leaving)))
    racks = {node: "ab"[node % 2] for node in nodes}
    found = after(replicas, racks, factor, leaving)
    for before, those in zip(replicas.values(), found, strict=True):
        assert len(set(those)) == len(those)
        assert not set(those) & set(leaving)
        assert len(those) == (factor or min(len(before), len(nodes) - len(leaving)))
        stay = [node for node in before if node not in leaving]
        assert factor is not None or list(those[: len(stay)]) == stay
    again = after(placed(*found), racks, factor, leaving)
    assert [set(those) for those in again] == [set(those) for those in found]
