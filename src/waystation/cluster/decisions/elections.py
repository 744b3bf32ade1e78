"""Who leads a partition: takeover, claim, resigning, handing over, eviction, and an operator's elections. Pure.

A partition's leader is whoever its entry names, for the epoch that it names. There is no controller: a replica makes
itself leader by a compared write. Why that is safe:

- It is in the in-sync set, by the store's word at the very revision that the write compares. So it has all that was
  acknowledged, on disk.
- Each new leader has a new epoch, and the store makes one write for a revision. So an epoch has one leader.
- An epoch has one life: a process never leads an epoch that it found in the store when it started (`barred`), because
  followers may have records of that epoch which its log has lost.

That the former leader is silent and its node entry gone keeps leaders from being deposed for nothing; safety does not
need it. Called by leadership, with its view of the store.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from waystation.catalog.catalog import ABSENT
from waystation.cluster.decisions.promises import floor
from waystation.cluster.decisions.state import NOBODY, DiskState, NodeState, PartitionState, changed, node_key
from waystation.cluster.decisions.writes import Identity, StoreEntry, Write
from waystation.errors import ElectionNotNeeded, NoEligibleLeader, NoPreferredLeader


def store_went_back(state: PartitionState, log_epoch: int) -> bool:
    """The log has a later epoch than the store: the store was restored from a backup. Then this node does not follow,
    lead or truncate there: an operator decides."""
    return log_epoch > state.epoch


def may_lead(me: Identity, state: PartitionState, barred: int, log_epoch: int, *, truncating: bool = False) -> bool:
    """Whether this process begins to lead the epoch that the store gives it.

    `barred`: the partition's epoch when this process started. `log_epoch`: of the last record in its log; an epoch
    that has records already was led before, so a store that went back cannot give it a second life. `truncating`: an
    answer of the former leader is still cutting the log; followers would promise what is removed a moment later, and
    other records would take its place. It leads when that is done.
    """
    if truncating or me.leaving:
        return False
    return state.leader == me.node_id and state.epoch > max(barred, log_epoch)


def takeover(
    me: Identity,
    partition: StoreEntry[PartitionState],
    living: Container[int],
    min_in_sync: int,
    log_epoch: int,
    *,
    silent: bool,
) -> Write | None:
    """This replica makes itself leader, because the leader is dead or there is none.

    `living`: the nodes whose node entries are there. `silent`: the leader has not answered this node for a while.
    """
    state = partition.state
    if me.node_id not in state.in_sync or me.leaving or store_went_back(state, log_epoch):
        return None
    expected = me.expected | {partition.key: partition.revision}
    if state.leader != NOBODY:
        if state.leader == me.node_id or state.leader in living or not silent:
            return None
        expected[node_key(state.leader)] = ABSENT
    members = tuple(one for one in state.in_sync if one == me.node_id or one in living)
    if len(members) < floor(state, min_in_sync):
        members = state.in_sync
    return Write({partition.key: led(state, me.node_id, members)}, expected)


def turn(node_id: int, state: PartitionState, living: Container[int], resigned: Container[int] = ()) -> int:
    """How many others go first: the living in-sync replicas before this one in the order of preference, and whoever has
    just resigned after all others. The caller waits a little for each, then takes over."""
    able = [one for one in state.replicas if one in state.in_sync and (one in living or one == node_id)]
    ordered = sorted(able, key=lambda one: one in resigned)
    return ordered.index(node_id) if node_id in ordered else len(ordered)


def claim(me: Identity, partition: StoreEntry[PartitionState], log_epoch: int) -> Write | None:
    """This node has started and the store names it as leader, of an epoch that it may not lead any more: it claims the
    next one, or resigns where it is not in the in-sync set."""
    state = partition.state
    if state.leader != me.node_id or me.leaving or store_went_back(state, log_epoch):
        return None
    if me.node_id not in state.in_sync:
        return resign(me, partition)
    return Write({partition.key: led(state, me.node_id)}, me.expected | {partition.key: partition.revision})


def resign(me: Identity, partition: StoreEntry[PartitionState]) -> Write | None:
    """This leader cannot go on: its disk fails, or it is cut off from its followers but not from the store."""
    if partition.state.leader != me.node_id:
        return None
    state = changed(partition.state, leader=NOBODY)
    return Write({partition.key: state}, me.expected | {partition.key: partition.revision})


def hand_over(
    me: Identity, partition: StoreEntry[PartitionState], to: int, node: StoreEntry[NodeState]
) -> Write | None:
    """This leader makes another in-sync replica the leader: a drain, or the preferred leader has come back.

    That the heir has caught up is a matter of speed (`LeaderState.caught_up`), and so is the comparing of its node
    entry: a partition should not be given to a node that has just died.
    """
    state = partition.state
    if state.leader != me.node_id or to == me.node_id or to not in state.in_sync or me.leaving:
        return None
    expected = me.expected | {partition.key: partition.revision, node.key: node.revision}
    return Write({partition.key: led(state, to)}, expected)


def heir(state: PartitionState, nodes: Mapping[int, StoreEntry[NodeState]], caught_up: Collection[int]) -> int | None:
    """To whom a leader hands over when its node is drained or its replica removed: the first in the order of preference
    that lives, has caught up, and neither is drained nor to be removed itself."""
    able = [
        one
        for one in state.replicas
        if one != state.leader and one in state.in_sync and one in caught_up and one not in state.removing
    ]
    return next((one for one in able if one in nodes and not nodes[one].state.draining), None)


def preferred(
    state: PartitionState, nodes: Mapping[int, StoreEntry[NodeState]], caught_up: Collection[int]
) -> int | None:
    """To whom a leader hands over because it is preferred; None: it leads already, or cannot yet."""
    first = next((one for one in state.replicas if one not in state.removing), None)
    return first if first is not None and first == heir(state, nodes, caught_up) else None


def drain(
    me: Identity,
    partition: StoreEntry[PartitionState],
    nodes: Mapping[int, StoreEntry[NodeState]],
    caught_up: Collection[int],
) -> Write | None:
    """Of a node that is drained: it gives a leadership away. None: it has none here, or nobody can have it yet."""
    to = heir(partition.state, nodes, caught_up)
    return None if to is None else hand_over(me, partition, to, nodes[to])


def to_preferred(
    me: Identity,
    partition: StoreEntry[PartitionState],
    nodes: Mapping[int, StoreEntry[NodeState]],
    caught_up: Collection[int],
) -> Write | None:
    """Of a leader: it gives the leadership back to whom the partition prefers."""
    to = preferred(partition.state, nodes, caught_up)
    return None if to is None else hand_over(me, partition, to, nodes[to])


def elect_preferred(
    partition: StoreEntry[PartitionState], nodes: Mapping[int, StoreEntry[NodeState]], caught_up: Collection[int]
) -> int:
    """As `preferred`, where somebody has asked for it. ElectionNotNeeded, NoPreferredLeader."""
    state = partition.state
    wanted = next((one for one in state.replicas if one not in state.removing), NOBODY)
    if state.leader == wanted:
        raise ElectionNotNeeded(f"node {wanted} is the preferred leader of {partition.key}, and leads it already")
    to = preferred(state, nodes, caught_up)
    if to is None:
        raise NoPreferredLeader(
            f"node {wanted}, the preferred leader of {partition.key}, is not alive, is being drained, or is not in sync"
            " yet; try again later"
        )
    return to


def evict(peer: StoreEntry[NodeState], incarnation: int) -> Write | None:
    """The peer's process is dead (it refuses connections): its node entry is deleted before its lease runs out.

    `incarnation`: of the process that was connected; a later one has started meanwhile and must not be evicted.
    """
    if peer.state.incarnation != incarnation:
        return None
    return Write({peer.key: None}, {peer.key: peer.revision})


def elect_unclean(
    partition: StoreEntry[PartitionState],
    node_id: int,
    living: Container[int],
    disk: StoreEntry[DiskState] | None,
    log_epoch: int,
) -> Write:
    """An operator makes a replica leader that may lack acknowledged records: what it lacks is lost.

    `log_epoch`: the latest epoch in any log that the operator knows of; the new one is later, so that a store that was
    restored from a backup catches up with the logs. ElectionNotNeeded, NoEligibleLeader.
    """
    state = partition.state
    clean = [one for one in state.in_sync if one in living]
    if clean and not store_went_back(state, log_epoch):
        raise ElectionNotNeeded(
            f"{partition.key} can have a leader that lacks nothing: node {clean[0]} is in sync and alive; wait for it,"
            " or elect the preferred leader"
        )
    if node_id not in state.replicas or node_id not in living or disk is None or disk.state.leaving:
        raise NoEligibleLeader(
            f"node {node_id} cannot lead {partition.key}: it must be one of its replicas {list(state.replicas)}, be"
            " alive, and not be replacing its disk; name another node, or start this one"
        )
    epoch = max(state.epoch, log_epoch) + 1
    new = changed(state, leader=node_id, epoch=epoch, in_sync=(node_id,))
    return Write({partition.key: new}, {partition.key: partition.revision, disk.key: disk.revision})


def led(state: PartitionState, leader: int, members: tuple[int, ...] | None = None) -> PartitionState:
    """The partition with a new leader, and so a new epoch."""
    return changed(state, leader=leader, epoch=state.epoch + 1, in_sync=members)
