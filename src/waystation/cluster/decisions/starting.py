"""How a node starts: whether its disk is the one that made its promises, and what it does before it takes part. Pure.

A node's folder carries an id and an incarnation (`FolderIdentity`), and the store remembers both (`disks/ID`). One
after the other, each step durable before the next; a start that is interrupted begins again at the first:

1. `check_id`: nobody else lives under this node id.
2. `begin`: the folder's next incarnation, fsynced; then the store's. Where the store names another folder or a later
   incarnation, or knows nothing of this node, then what was promised under this id is not known to be in this folder:
   the folder gets a new id, and the store is told that the node is *leaving*.
3. While leaving, it reads the partitions and leaves every in-sync set (`leave_all`, until that has nothing to do), and
   then stops leaving (`settle`). The order matters: once the disk entry names the new folder, no leader's write can
   let the node in on the strength of what the former folder had fetched.
4. It reads the partitions afresh, also if it has read them before: the epochs of this reading are *barred*, it never
   leads one of them (an epoch has one life). Where it is named as leader, it claims the next epoch (`claim_all`).
5. `register`: its node entry. From here on others see that it lives.

While it is leaving, also after a crash, it neither fetches, leads nor joins: every decision asks `Identity.leaving`.
Called by membership, with what it has just read (a linearizable read, never a watch resumed from before).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from waystation.catalog.catalog import ABSENT
from waystation.cluster.decisions import elections, in_sync
from waystation.cluster.decisions.replica_fetch import NO_EPOCH
from waystation.cluster.decisions.state import DiskState, NodeState, PartitionState, disk_key, node_key
from waystation.cluster.decisions.writes import Identity, StoreEntry, Write
from waystation.errors import NodeIdTaken


class FolderIdentity(msgspec.Struct, frozen=True):
    """What a data folder says of itself."""

    node_id: int
    id: str  # random, made with the folder
    incarnation: int = 0  # one more at each start of the node; 0: it has never been started


class StartWrites(msgspec.Struct, frozen=True):
    """First the folder is written and fsynced, then the store."""

    folder: FolderIdentity
    write: Write


def check_id(folder: FolderIdentity, node: StoreEntry[NodeState] | None, *, answers: bool = False) -> None:
    """NodeIdTaken: another folder lives under this node id, or this very one, of which somebody has made a copy: what
    the living process has acknowledged since is not in it. After a crash with another disk it is the node's own former
    life, whose lease runs out; so the caller asks again for as long as a lease lasts before it gives up.

    `answers`: somebody listens at the address that the entry names. A process that was killed does not, and is not
    waited for."""
    if node is not None and node.state.folder != folder.id:
        raise NodeIdTaken(
            f"node {folder.node_id} runs already, from another data folder ({node.state.folder}; this one is"
            f" {folder.id}); give this node an id of its own, or stop the other one and wait for its lease to run out"
        )
    if node is not None and answers:
        raise NodeIdTaken(
            f"node {folder.node_id} runs already, from a copy of this data folder, or this is the copy; start a new"
            " node with an id of its own and an empty folder, or stop the other one"
        )


def trusted(folder: FolderIdentity, disk: StoreEntry[DiskState] | None) -> bool:
    """Whether the folder has all that was promised under its node id."""
    return disk is not None and disk.state.folder == folder.id and disk.state.incarnation <= folder.incarnation


def begin(
    folder: FolderIdentity, disk: StoreEntry[DiskState] | None, new_id: str, *, restored: bool = False
) -> StartWrites:
    """The folder's next incarnation. `new_id` is random, and used if the folder is not the promised one.

    `restored`: the operator says so, as nothing else would show a snapshot that was put back within one incarnation.
    """
    known = 0 if disk is None else disk.state.incarnation
    incarnation = max(folder.incarnation, known) + 1
    same = trusted(folder, disk) and not restored
    begun = FolderIdentity(folder.node_id, folder.id if same else new_id, incarnation)
    leaving = not same or (disk is not None and disk.state.leaving)
    key = disk_key(folder.node_id)
    state = DiskState(begun.id, incarnation, leaving)
    return StartWrites(begun, Write({key: state}, {key: ABSENT if disk is None else disk.revision}))


def superseded(me: Identity, disk: StoreEntry[DiskState] | None) -> bool:
    """Whether another process has started under this node id (from a copy of this folder, or after `disks/ID` was
    deleted). Asked at each change of the disk entry, before any later change is applied: the successor may be made
    leader in this node's name, and an epoch that names this node must not be led by both. If so, this process stops."""
    return (
        disk is None
        or disk.state.folder != me.disk.state.folder
        or (disk.state.incarnation != me.disk.state.incarnation)
    )


def leave_all(me: Identity, partitions: Iterable[StoreEntry[PartitionState]]) -> list[Write]:
    """Of a node that is leaving: out of every in-sync set. Nothing: it is out of all of them, and may `settle`."""
    return [write for partition in partitions if (write := in_sync.leave(me, partition)) is not None]


def settle(me: Identity) -> Write | None:
    """It has read the partitions after its disk entry was written, and found itself in no in-sync set: it is as a new
    node from here on. What it has read before this write does not count: it reads the partitions again."""
    if not me.leaving:
        return None
    disk = me.disk.state
    return Write({me.disk.key: DiskState(disk.folder, disk.incarnation)}, me.expected)


def claim_all(
    me: Identity, partitions: Iterable[StoreEntry[PartitionState]], log_epochs: Mapping[str, int]
) -> list[Write]:
    """Of a node that has started: the next epoch of every partition that names it as leader.

    `log_epochs`: the latest epoch in this node's log, by the partition's key; none where it has no log.
    """
    claims = [elections.claim(me, one, log_epochs.get(one.key, NO_EPOCH)) for one in partitions]
    return [write for write in claims if write is not None]


def register(me: Identity, state: NodeState, present: StoreEntry[NodeState] | None) -> Write:
    """Its node entry, at the end of its start, and again with the same incarnation whenever its lease was lost.

    NodeIdTaken: another process has it; this one must stop.
    """
    disk = me.disk.state
    if present is not None and present.state.incarnation > disk.incarnation:
        raise NodeIdTaken(
            f"node {me.node_id} was started again elsewhere (incarnation {present.state.incarnation}, this is"
            f" {disk.incarnation}); this process stops"
        )
    key = node_key(me.node_id)
    entry = NodeState(
        disk.incarnation, state.listeners, state.rack, state.version, disk.folder, draining=state.draining
    )
    return Write({key: entry}, me.expected | {key: ABSENT if present is None else present.revision})
