"""Who leads: a replica that has all that was acknowledged, in an epoch that nobody else has led."""

from __future__ import annotations

import pytest

from tests.cluster.decisions_kit import (
    DISK_REVISION,
    KEY,
    NODE_REVISION,
    REVISION,
    after,
    disk,
    identity,
    node,
    partition,
)
from waystation.catalog.catalog import ABSENT
from waystation.cluster.decisions import elections
from waystation.cluster.decisions.state import NOBODY
from waystation.cluster.decisions.writes import Write, together
from waystation.errors import ElectionNotNeeded, NoEligibleLeader, NoPreferredLeader

ALL = {1, 2, 3}


def test_an_in_sync_follower_takes_over_from_a_dead_leader() -> None:
    write = elections.takeover(identity(2), partition(1), {2, 3}, 2, 5, silent=True)
    state = after(write)
    assert (state.leader, state.epoch, state.in_sync, state.version) == (2, 6, (2, 3), 1)
    assert write is not None
    assert write.expected == {KEY: REVISION, "nodes/1": ABSENT, "disks/2": DISK_REVISION}


def test_nobody_takes_over_while_the_leaders_entry_is_there_or_it_answers() -> None:
    assert elections.takeover(identity(2), partition(1), ALL, 2, 5, silent=True) is None
    assert elections.takeover(identity(2), partition(1), {2, 3}, 2, 5, silent=False) is None


def test_nobody_takes_over_from_outside_the_set() -> None:
    assert elections.takeover(identity(3), partition(1, (1, 2)), {2, 3}, 2, 5, silent=True) is None
    assert elections.takeover(identity(3), partition(NOBODY, ()), ALL, 2, 5, silent=True) is None


def test_where_there_is_no_leader_being_in_sync_is_enough() -> None:
    write = elections.takeover(identity(2), partition(NOBODY), ALL, 2, 5, silent=False)
    assert (after(write).leader, after(write).epoch, after(write).in_sync) == (2, 6, (1, 2, 3))
    assert write is not None
    assert write.expected == {KEY: REVISION, "disks/2": DISK_REVISION}


def test_a_takeover_keeps_the_dead_in_the_set_rather_than_go_below_the_floor() -> None:
    alone = elections.takeover(identity(3), partition(1), {3}, 2, 5, silent=True)
    assert after(alone).in_sync == (1, 2, 3)  # whichever comes back first may lead
    one_is_enough = elections.takeover(identity(3), partition(1), {3}, 1, 5, silent=True)
    assert after(one_is_enough).in_sync == (3,)


def test_a_partition_with_fewer_replicas_than_the_minimum_has_a_lower_floor() -> None:
    write = elections.takeover(identity(2), partition(1, (1, 2), (1, 2)), {2}, 3, 5, silent=True)
    assert after(write).in_sync == (1, 2)


def test_a_node_that_is_replacing_its_disk_takes_no_part() -> None:
    me = identity(2, leaving=True)
    assert elections.takeover(me, partition(1), {2, 3}, 2, 5, silent=True) is None
    assert elections.claim(me, partition(2), 5) is None
    assert elections.hand_over(me, partition(2), 3, node(3)) is None
    assert not elections.may_lead(me, partition(2).state, 4, 4)


def test_a_node_whose_log_is_ahead_of_the_store_takes_no_part() -> None:
    assert elections.store_went_back(partition(epoch=5).state, 6)
    assert elections.takeover(identity(2), partition(1), {2, 3}, 2, 6, silent=True) is None


def test_the_first_living_member_in_the_order_of_preference_goes_first() -> None:
    state = partition(1, (1, 2, 3), (3, 1, 2)).state
    assert [elections.turn(one, state, {2, 3}) for one in (3, 2)] == [0, 1]
    assert elections.turn(2, state, {2}) == 0
    assert elections.turn(2, state, {1, 2, 3}) == 2


def test_who_has_just_resigned_goes_last() -> None:
    state = partition(NOBODY).state
    assert [elections.turn(one, state, ALL, resigned={1}) for one in (1, 2, 3)] == [2, 0, 1]


def test_an_epoch_has_one_life() -> None:
    me, state = identity(1), partition(1, epoch=5).state
    assert elections.may_lead(me, state, barred=4, log_epoch=4)
    assert not elections.may_lead(me, state, barred=5, log_epoch=4)  # it found that epoch when it started
    assert not elections.may_lead(me, state, barred=4, log_epoch=5)  # somebody has led it, by its own log
    assert not elections.may_lead(identity(2), state, barred=4, log_epoch=4)
    assert not elections.may_lead(me, state, barred=4, log_epoch=4, truncating=True)  # it leads when that is done


def test_a_leader_that_cannot_go_on_resigns() -> None:
    write = elections.resign(identity(1), partition(1))
    assert (after(write).leader, after(write).epoch, after(write).in_sync) == (NOBODY, 5, (1, 2, 3))
    assert elections.resign(identity(2), partition(1)) is None


def test_a_leader_hands_over_to_a_member_that_lives() -> None:
    write = elections.hand_over(identity(1), partition(1), 2, node(2))
    assert (after(write).leader, after(write).epoch, after(write).in_sync) == (2, 6, (1, 2, 3))
    assert write is not None
    assert write.expected == {KEY: REVISION, "nodes/2": NODE_REVISION, "disks/1": DISK_REVISION}
    assert elections.hand_over(identity(1), partition(1, (1, 3)), 2, node(2)) is None
    assert elections.hand_over(identity(3), partition(1), 2, node(2)) is None


def test_a_drained_node_hands_over_to_the_first_that_has_caught_up() -> None:
    state = partition(1).state
    nodes = {one: node(one) for one in ALL}
    assert elections.heir(state, nodes, {2, 3}) == 2
    assert elections.heir(state, nodes, {3}) == 3
    assert elections.heir(state, {**nodes, 2: node(2, draining=True)}, {2, 3}) == 3
    assert elections.heir(state, {1: nodes[1], 3: nodes[3]}, {2, 3}) == 3
    assert elections.heir(state, nodes, set()) is None
    assert after(elections.drain(identity(1), partition(1), nodes, {3})).leader == 3
    assert elections.drain(identity(1), partition(1), nodes, set()) is None
    assert elections.drain(identity(1), partition(2), nodes, {3}) is None


def test_the_preferred_leader_comes_back() -> None:
    nodes = {one: node(one) for one in ALL}
    away = partition(2)
    assert elections.preferred(away.state, nodes, {1, 3}) == 1
    assert elections.preferred(away.state, nodes, {3}) is None  # not yet: another one is no better
    assert elections.preferred(partition(1).state, nodes, {2, 3}) is None
    assert after(elections.to_preferred(identity(2), away, nodes, {1, 3})).leader == 1
    assert elections.to_preferred(identity(2), away, nodes, {3}) is None
    assert elections.elect_preferred(away, nodes, {1, 3}) == 1
    with pytest.raises(ElectionNotNeeded, match="leads it already"):
        elections.elect_preferred(partition(1), nodes, {2, 3})
    with pytest.raises(NoPreferredLeader, match="node 1"):
        elections.elect_preferred(away, {3: node(3)}, {3})


def test_a_dead_process_is_evicted_but_not_its_successor() -> None:
    write = elections.evict(node(1, incarnation=4), 4)
    assert write == Write({"nodes/1": None}, {"nodes/1": NODE_REVISION})
    assert elections.evict(node(1, incarnation=5), 4) is None


def test_an_unclean_election_is_by_name_and_only_where_nothing_better_lives() -> None:
    stuck = partition(NOBODY, (1,))
    write = elections.elect_unclean(stuck, 2, {2, 3}, disk(2), 5)
    assert (after(write).leader, after(write).epoch, after(write).in_sync) == (2, 6, (2,))
    with pytest.raises(ElectionNotNeeded, match="node 1 is in sync and alive"):
        elections.elect_unclean(stuck, 2, ALL, disk(2), 5)
    for node_id, living, known in (
        (4, {2, 3, 4}, disk(4)),
        (2, {3}, disk(2)),
        (2, {2}, disk(2, leaving=True)),
        (2, {2}, None),
    ):
        with pytest.raises(NoEligibleLeader, match=f"node {node_id}"):
            elections.elect_unclean(stuck, node_id, living, known, 5)


def test_after_a_store_went_back_an_operator_chooses_an_epoch_behind_all_logs() -> None:
    write = elections.elect_unclean(partition(1, epoch=5), 1, ALL, disk(1), 9)
    assert (after(write).leader, after(write).epoch) == (1, 10)


def test_many_partitions_move_in_few_writes() -> None:
    writes = []
    for i in range(250):
        known = partition(1)
        known = type(known)(f"partitions/topic/{i}", known.state, known.revision)
        write = elections.takeover(identity(2), known, {2, 3}, 2, 5, silent=True)
        assert write is not None
        writes.append(write)
    large = list(together(writes, most=100))
    assert sum(len(one.changes) for one in large) == 250
    assert len(large) == 3
    for one in large:
        assert len(one.changes.keys() | one.expected.keys()) <= 100
        assert one.expected["nodes/1"] == ABSENT
        assert one.expected.keys() > one.changes.keys()


def test_writes_that_rest_on_different_revisions_are_not_made_together() -> None:
    first, second = Write({"a": None}, {"a": 1, "x": 1}), Write({"b": None}, {"b": 1, "x": 2})
    assert list(together([first, second])) == [first, second]
