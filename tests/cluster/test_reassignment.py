"""Replicas that move: add, catch up, join, lead, remove; and back again, if it is cancelled."""

from __future__ import annotations

import pytest

from tests.cluster.decisions_kit import REVISION, after, identity, node, partition
from waystation.cluster.decisions import reassignment
from waystation.cluster.decisions.state import NOBODY, PartitionState
from waystation.cluster.decisions.writes import StoreEntry
from waystation.errors import Conflict, InvalidReplicaAssignment, NoReassignment

LIVING = {1, 2, 3, 4}
NODES = {one: node(one) for one in LIVING}


def moved(partition: StoreEntry[PartitionState], state: PartitionState) -> StoreEntry[PartitionState]:
    return StoreEntry(partition.key, state, partition.revision + 1)


def test_a_partition_moves_from_one_node_to_another() -> None:
    there = partition(1, (1, 2, 3))
    begun = after(reassignment.begin(there, (2, 3, 4), LIVING, 2))
    assert (begun.replicas, begun.adding, begun.removing) == ((2, 3, 4, 1), (4,), (1,))
    assert (begun.leader, begun.epoch, begun.in_sync) == (1, 5, (1, 2, 3))
    assert reassignment.advance(identity(1), moved(there, begun), 2, NODES, {2, 3}) is None  # node 4 has to catch up

    joined = partition(1, (1, 2, 3, 4), begun.replicas, adding=(4,), removing=(1,))
    handed = after(reassignment.advance(identity(1), joined, 2, NODES, {2, 3, 4}))
    assert (handed.leader, handed.epoch, handed.removing) == (2, 6, (1,))
    assert reassignment.advance(identity(1), moved(joined, handed), 2, NODES, {2, 3, 4}) is None  # not its work now

    write = reassignment.advance(identity(2), moved(joined, handed), 2, NODES, {3, 4})
    done = after(write)
    assert (done.replicas, done.adding, done.removing, done.in_sync) == ((2, 3, 4), (), (), (2, 3, 4))
    assert (done.leader, done.epoch) == (2, 7)  # no fetch of the copy that is deleted now counts any more
    assert write is not None
    assert write.expected[joined.key] == REVISION + 1


def test_more_replicas_are_added_without_a_new_epoch() -> None:
    begun = after(reassignment.begin(partition(1, (1,), (1,)), (1, 2, 3), LIVING, 2))
    assert (begun.replicas, begun.adding, begun.removing) == ((1, 2, 3), (2, 3), ())
    there = partition(1, (1, 2, 3), (1, 2, 3), adding=(2, 3))
    done = after(reassignment.advance(identity(1), there, 2, NODES, {2, 3}))
    assert (done.adding, done.leader, done.epoch, done.in_sync) == ((), 1, 5, (1, 2, 3))


def test_another_order_of_preference_is_done_at_once() -> None:
    done = after(reassignment.begin(partition(1), (3, 2, 1), LIVING, 2))
    assert (done.replicas, done.adding, done.removing, done.leader, done.epoch) == ((3, 2, 1), (), (), 1, 5)
    assert reassignment.begin(partition(1), (1, 2, 3), LIVING, 2) is None


def test_a_replica_is_not_removed_while_too_few_of_the_others_are_in_sync() -> None:
    there = partition(1, (1, 3), (1, 2, 3), removing=(3,))
    assert reassignment.advance(identity(1), there, 2, NODES, {3}) is None
    back = partition(1, (1, 2, 3), (1, 2, 3), removing=(3,))
    assert after(reassignment.advance(identity(1), back, 2, NODES, {2, 3})).in_sync == (1, 2)


def test_a_leader_that_is_to_leave_waits_for_an_heir() -> None:
    there = partition(1, (1, 2, 3), (2, 3, 1), removing=(1,))
    assert reassignment.advance(identity(1), there, 2, NODES, set()) is None
    assert after(reassignment.advance(identity(1), there, 2, NODES, {3})).leader == 3


def test_it_can_be_cancelled_at_any_point() -> None:
    begun = partition(1, (1, 2, 3), (2, 3, 4, 1), adding=(4,), removing=(1,))
    state = after(reassignment.cancel(begun, 2))
    assert (state.replicas, state.adding, state.removing, state.in_sync) == ((2, 3, 1), (), (), (1, 2, 3))
    assert (state.leader, state.epoch) == (1, 6)

    led_by_the_new_one = partition(4, (2, 3, 4), (2, 3, 4, 1), adding=(4,), removing=(1,))
    state = after(reassignment.cancel(led_by_the_new_one, 2))
    assert (state.leader, state.epoch, state.in_sync) == (NOBODY, 6, (2, 3))


def test_it_is_not_cancelled_where_that_would_lose_the_copies_that_are_in_sync() -> None:
    only_new = partition(4, (4,), (4, 1), adding=(4,), removing=(1,))
    with pytest.raises(Conflict, match="try again"):
        reassignment.cancel(only_new, 1)


def test_there_is_nothing_to_cancel_where_nothing_moves() -> None:
    with pytest.raises(NoReassignment, match="not being reassigned"):
        reassignment.cancel(partition(1), 2)


def test_a_new_target_replaces_the_old_one() -> None:
    there = partition(1, (1, 2, 3), (2, 3, 4, 1), adding=(4,), removing=(1,))
    state = after(reassignment.begin(there, (1, 2, 5), {*LIVING, 5}, 2))
    assert (state.replicas, state.adding, state.removing) == ((1, 2, 5, 3), (5,), (3,))
    assert state.epoch == 6  # node 4 was removed


def test_a_copy_is_not_given_to_a_node_that_is_not_alive() -> None:
    for target in ((1, 2, 9), (), (1, 1)):
        with pytest.raises(InvalidReplicaAssignment):
            reassignment.begin(partition(1), target, LIVING, 2)
    assert reassignment.begin(partition(1), (1, 2), {1}, 2) is not None  # one that has a copy may be away
    with pytest.raises(InvalidReplicaAssignment):
        reassignment.begin(partition(1, (1, 2, 3), (1, 2, 3, 4), adding=(4,)), (1, 2, 4), {1, 2, 3}, 2)
