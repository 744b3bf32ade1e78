"""The in-sync set of a partition: who joins, who is taken out, and how far it may shrink. Pure.

Everything that was acknowledged is on the disk of every member: that is what takeovers rest on. So:

- Only the leader lets a replica in: one whose fetches in this epoch show that it has all that may ever have been
  acknowledged (`LeaderState.may_join`). The write compares the joiner's disk entry: the folder that those fetches named
  must be the one that it still has.
- The set is shrunk by the leader (who does not keep up), by a takeover (who is dead), and by a node that comes with
  another disk (`leave`); and never below the floor, but by the last: below `min.insync.replicas` nothing could be
  acknowledged, and a member that is away still has all that was, so whichever comes back first may lead.

A leader goes on counting the larger set until it knows the outcome of such a write (`LeaderState.proposed`). Called by
leadership.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from waystation.cluster.decisions.promises import Joiner, floor
from waystation.cluster.decisions.state import NOBODY, DiskState, PartitionState, changed
from waystation.cluster.decisions.writes import Identity, StoreEntry, Write


def grow(
    me: Identity,
    partition: StoreEntry[PartitionState],
    joiners: Sequence[Joiner],
    disks: Mapping[int, StoreEntry[DiskState]],
) -> Write | None:
    """The leader lets replicas in whose fetches have shown that they have all of it."""
    state = partition.state
    if state.leader != me.node_id or me.leaving:
        return None
    expected: dict[str, int] = {}
    members = set(state.in_sync)
    for joiner in joiners:
        disk = disks.get(joiner.node_id)
        if joiner.node_id not in state.replicas or joiner.node_id in members or disk is None:
            continue
        if disk.state.folder != joiner.folder or disk.state.leaving:
            continue  # these fetches came from a disk that is not there any more
        members.add(joiner.node_id)
        expected[disk.key] = disk.revision
    if not expected:
        return None
    expected |= me.expected | {partition.key: partition.revision}
    return Write({partition.key: changed(state, in_sync=members)}, expected)


def shrink(
    me: Identity,
    partition: StoreEntry[PartitionState],
    behind: Collection[int],
    min_in_sync: int,
    broken: Collection[int] = (),
) -> Write | None:
    """The leader takes members out that do not keep up, if enough are left; and those whose disk has lost what they
    had promised (`LeaderState.broken`), however few are left, because they must not lead."""
    state = partition.state
    if state.leader != me.node_id or me.leaving:
        return None
    sound = {one for one in state.in_sync if one == me.node_id or one not in broken}
    members = {one for one in sound if one == me.node_id or one not in behind}
    if len(members) < floor(state, min_in_sync):
        members = sound
    if len(members) == len(state.in_sync):
        return None
    return Write({partition.key: changed(state, in_sync=members)}, me.expected | {partition.key: partition.revision})


def leave(me: Identity, partition: StoreEntry[PartitionState]) -> Write | None:
    """Of a node whose folder is not the one that made its promises. If it was the last member, nobody may lead until an
    operator decides."""
    state = partition.state
    leads = state.leader == me.node_id
    if not me.leaving or (me.node_id not in state.in_sync and not leads):
        return None
    members = [one for one in state.in_sync if one != me.node_id]
    left = changed(state, leader=NOBODY if leads else state.leader, in_sync=members)
    return Write({partition.key: left}, me.expected | {partition.key: partition.revision})
