"""The in-sync set: who is let in, who is taken out, and how far it may shrink."""

from __future__ import annotations

from tests.cluster.decisions_kit import DISK_REVISION, KEY, REVISION, after, disk, identity, partition
from waystation.cluster.decisions import in_sync
from waystation.cluster.decisions.promises import Joiner

FETCHED = Joiner(3, "folder 3")


def test_the_leader_lets_a_replica_in_by_the_disk_that_fetched() -> None:
    write = in_sync.grow(identity(1), partition(1, (1, 2)), [FETCHED], {3: disk(3)})
    assert after(write).in_sync == (1, 2, 3)
    assert write is not None
    assert write.expected == {KEY: REVISION, "disks/1": DISK_REVISION, "disks/3": DISK_REVISION}


def test_a_replica_whose_disk_was_replaced_since_is_not_let_in() -> None:
    for known in ({3: disk(3, "another")}, {3: disk(3, leaving=True)}, {}):
        assert in_sync.grow(identity(1), partition(1, (1, 2)), [FETCHED], known) is None


def test_only_the_leader_changes_the_set() -> None:
    assert in_sync.grow(identity(2), partition(1, (1, 2)), [FETCHED], {3: disk(3)}) is None
    assert in_sync.shrink(identity(2), partition(1), [3], 2) is None
    assert in_sync.leave(identity(2), partition(1)) is None


def test_a_node_without_a_replica_is_not_let_in() -> None:
    assert in_sync.grow(identity(1), partition(1, (1, 2), (1, 2)), [FETCHED], {3: disk(3)}) is None


def test_who_does_not_keep_up_is_taken_out_as_long_as_enough_are_left() -> None:
    assert after(in_sync.shrink(identity(1), partition(1), [3], 2)).in_sync == (1, 2)
    assert in_sync.shrink(identity(1), partition(1), [2, 3], 2) is None  # all stay: the first that is back helps
    assert after(in_sync.shrink(identity(1), partition(1), [2, 3], 1)).in_sync == (1,)
    assert in_sync.shrink(identity(1), partition(1), [], 2) is None
    assert in_sync.shrink(identity(1), partition(1), [1], 2) is None


def test_who_has_lost_records_is_taken_out_however_few_are_left() -> None:
    assert after(in_sync.shrink(identity(1), partition(1, (1, 2)), [], 2, broken=[2])).in_sync == (1,)
    assert after(in_sync.shrink(identity(1), partition(1), [3], 2, broken=[2])).in_sync == (1, 3)
