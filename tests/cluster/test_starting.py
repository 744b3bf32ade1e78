"""How a node starts: a disk that made a promise must be the disk that comes back, and an epoch has one life."""

from __future__ import annotations

import pytest

from tests.cluster.decisions_kit import DISK_REVISION, KEY, NODE_REVISION, after, disk, identity, node, partition
from waystation.catalog.catalog import ABSENT
from waystation.cluster.decisions import starting
from waystation.cluster.decisions.starting import FolderIdentity
from waystation.cluster.decisions.state import NOBODY, DiskState, NodeState
from waystation.errors import NodeIdTaken

MINE = FolderIdentity(1, "folder 1", 3)


def test_a_node_comes_back_with_its_disk_and_keeps_its_promises() -> None:
    begun = starting.begin(MINE, disk(1, incarnation=3), "new")
    assert begun.folder == FolderIdentity(1, "folder 1", 4)
    assert begun.write.changes == {"disks/1": DiskState("folder 1", 4)}
    assert begun.write.expected == {"disks/1": DISK_REVISION}


def test_a_start_that_stopped_before_the_store_knew_begins_again_with_the_same_disk() -> None:
    begun = starting.begin(FolderIdentity(1, "folder 1", 4), disk(1, incarnation=3), "new")
    assert begun.write.changes == {"disks/1": DiskState("folder 1", 5)}


def test_a_new_node_is_new() -> None:
    begun = starting.begin(FolderIdentity(1, "folder 1"), None, "new")
    assert begun.folder == FolderIdentity(1, "new", 1)
    assert begun.write.changes == {"disks/1": DiskState("new", 1, leaving=True)}
    assert begun.write.expected == {"disks/1": ABSENT}


@pytest.mark.parametrize(
    ("folder", "what"),
    [
        (FolderIdentity(1, "another", 0), "empty"),
        (FolderIdentity(1, "folder 1", 2), "restored from a backup"),
        (FolderIdentity(1, "folder 2", 9), "another node's"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_disk_that_is_not_the_promised_one_is_recognised(folder: FolderIdentity, what: str) -> None:
    known = disk(1, incarnation=3)
    assert not starting.trusted(folder, known)
    begun = starting.begin(folder, known, "new")
    assert begun.folder.id == "new"
    assert begun.folder.incarnation > max(3, folder.incarnation)  # later than any that a leader has heard
    assert begun.write.changes == {"disks/1": DiskState("new", begun.folder.incarnation, leaving=True)}


def test_a_snapshot_that_was_put_back_within_one_incarnation_is_recognised_if_it_is_said() -> None:
    begun = starting.begin(MINE, disk(1, incarnation=3), "new", restored=True)
    assert begun.write.changes == {"disks/1": DiskState("new", 4, leaving=True)}


def test_a_crash_while_leaving_does_not_make_the_disk_a_good_one() -> None:
    begun = starting.begin(MINE, disk(1, incarnation=3, leaving=True), "new")
    assert begun.folder.id == "folder 1"
    assert begun.write.changes == {"disks/1": DiskState("folder 1", 4, leaving=True)}


def test_a_node_with_another_disk_leaves_every_set_and_then_is_as_new() -> None:
    me = identity(1, leaving=True)
    led, followed = partition(1, (1, 2)), partition(2, (1, 2))
    first, second = starting.leave_all(me, [led, followed, partition(2, (2, 3))])
    assert (after(first).leader, after(first).epoch, after(first).in_sync) == (NOBODY, 5, (2,))
    assert (after(second).leader, after(second).in_sync) == (2, (2,))
    assert starting.leave_all(me, [partition(2, (2, 3))]) == []
    settled = starting.settle(me)
    assert settled is not None
    assert settled.changes == {"disks/1": DiskState("folder 1", 1)}
    assert settled.expected == {"disks/1": DISK_REVISION}


def test_the_last_member_leaves_an_empty_set_and_no_leader() -> None:
    (write,) = starting.leave_all(identity(1, leaving=True), [partition(1, (1,))])
    assert (after(write).leader, after(write).in_sync) == (NOBODY, ())


def test_a_restarted_leader_claims_the_next_epoch() -> None:
    (write,) = starting.claim_all(identity(1), [partition(1), partition(2)], {KEY: 5})
    assert (after(write).leader, after(write).epoch, after(write).in_sync) == (1, 6, (1, 2, 3))


def test_a_restarted_leader_that_is_not_in_the_set_resigns() -> None:
    (write,) = starting.claim_all(identity(1), [partition(1, (2, 3))], {})
    assert (after(write).leader, after(write).epoch) == (NOBODY, 5)


def test_a_node_whose_log_is_ahead_of_the_store_claims_nothing() -> None:
    assert starting.claim_all(identity(1), [partition(1, epoch=5)], {KEY: 6}) == []


def test_a_second_node_with_the_same_id_is_refused() -> None:
    starting.check_id(MINE, None)
    starting.check_id(MINE, node(1))  # its own former life
    with pytest.raises(NodeIdTaken, match="copy"):
        starting.check_id(MINE, node(1), answers=True)
    starting.check_id(MINE, None, answers=True)
    with pytest.raises(NodeIdTaken, match="from another data folder"):
        starting.check_id(MINE, node(1, folder="another"))


def test_a_node_whose_lease_was_lost_registers_again_with_the_same_incarnation() -> None:
    write = starting.register(identity(1), NodeState(0, {}, "rack a", "1.0"), None)
    assert write.changes == {"nodes/1": NodeState(1, {}, "rack a", "1.0", "folder 1")}
    assert write.expected == {"nodes/1": ABSENT, "disks/1": DISK_REVISION}
    again = starting.register(identity(1), NodeState(0, {}), node(1))
    assert again.expected == {"nodes/1": NODE_REVISION, "disks/1": DISK_REVISION}


def test_a_process_stops_when_another_one_has_started_under_its_id() -> None:
    me = identity(1)
    assert not starting.superseded(me, disk(1))
    assert not starting.superseded(me, disk(1, leaving=True))
    for other in (disk(1, incarnation=2), disk(1, "another"), None):
        assert starting.superseded(me, other)


def test_a_former_process_does_not_register_over_its_successor() -> None:
    with pytest.raises(NodeIdTaken, match="incarnation 2, this is 1"):
        starting.register(identity(1), NodeState(0, {}), node(1, incarnation=2))
