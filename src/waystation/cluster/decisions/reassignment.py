"""Moving a partition's replicas to other nodes: add, catch up, join, lead, remove. Pure.

While it lasts, `replicas` has the new ones in their order and then those that will leave; `adding` and `removing` say
which are which (as in KIP-455). Nothing depends on who began it: the entry says all, so it survives the death of any
node at any point.

1. `begin`: the entry gets the new replicas. They fetch, and the leader lets them in when they have caught up.
2. `advance`, by the leader: when all new ones are in sync, and enough members are left without those that leave, it
   hands over, if it is itself one of those that leave; and then removes them.
3. `cancel`: the new ones are removed, those that were to leave stay.

Whenever a replica is removed the leader epoch rises. The removed node deletes its copy, and may be added again later:
then no fetch that it had sent before may count as a promise of the new, empty copy. (Its folder's id does not tell: the
folder is the same.) Called by leadership.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from waystation.cluster.decisions.elections import hand_over, heir
from waystation.cluster.decisions.placement import check_assignment
from waystation.cluster.decisions.promises import floor
from waystation.cluster.decisions.state import NOBODY, NodeState, PartitionState, changed
from waystation.cluster.decisions.writes import Identity, StoreEntry, Write
from waystation.errors import Conflict, NoReassignment


def begin(
    partition: StoreEntry[PartitionState], target: Sequence[int], living: Collection[int], min_in_sync: int
) -> Write | None:
    """Asked for by anybody who may; replaces a reassignment that is under way. None: it is where it should be.

    InvalidReplicaAssignment. Conflict: the reassignment that it replaces cannot be taken back now (see `cancel`).
    """
    state = partition.state
    old = _without(state.replicas, state.adding)
    adding = _without(tuple(target), old)
    check_assignment(target, {*living, *old})  # one that is to get a copy must be alive to fetch it
    removing = _without(old, target)
    moved = _moved(partition, (*target, *removing), adding, removing, min_in_sync)
    return None if moved is None else Write({partition.key: moved}, {partition.key: partition.revision})


def advance(
    me: Identity,
    partition: StoreEntry[PartitionState],
    min_in_sync: int,
    nodes: Mapping[int, StoreEntry[NodeState]],
    caught_up: Collection[int],
) -> Write | None:
    """The leader's next step; None: it waits for replicas to join, or there is nothing to do."""
    state = partition.state
    if state.leader != me.node_id or me.leaving or not (state.adding or state.removing):
        return None
    if any(one not in state.in_sync for one in state.adding):
        return None
    target = _without(state.replicas, state.removing)
    if len(_without(state.in_sync, state.removing)) < floor(changed(state, replicas=target, adding=()), min_in_sync):
        return None
    if me.node_id in state.removing:
        to = heir(state, nodes, caught_up)
        return None if to is None else hand_over(me, partition, to, nodes[to])
    moved = _moved(partition, target, (), (), min_in_sync)
    return None if moved is None else Write({partition.key: moved}, me.expected | {partition.key: partition.revision})


def cancel(partition: StoreEntry[PartitionState], min_in_sync: int) -> Write:
    """NoReassignment: there is none. Conflict: too few members of the in-sync set would be left."""
    state = partition.state
    old = _without(state.replicas, state.adding)
    moved = _moved(partition, old, (), (), min_in_sync) if state.adding or state.removing else None
    if moved is None:
        raise NoReassignment(f"{partition.key} is not being reassigned: there is nothing to cancel")
    return Write({partition.key: moved}, {partition.key: partition.revision})


def _moved(
    partition: StoreEntry[PartitionState],
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    min_in_sync: int,
) -> PartitionState | None:
    """The partition with these replicas; None if it has them already. Where one is removed, the epoch rises."""
    state = partition.state
    if (replicas, adding, removing) == (state.replicas, state.adding, state.removing):
        return None
    removed = _without(state.replicas, replicas)
    members = _without(state.in_sync, removed)
    moved = changed(
        state,
        leader=NOBODY if state.leader in removed else state.leader,
        epoch=state.epoch + 1 if removed else state.epoch,
        in_sync=members,
        replicas=replicas,
        adding=adding,
        removing=removing,
    )
    if len(members) < len(state.in_sync) and len(members) < floor(moved, min_in_sync):
        raise Conflict(
            f"only {list(members)} of the nodes that {partition.key} would be left with are in sync; try again when"
            " more of them are"
        )
    return moved


def _without(some: Sequence[int], others: Collection[int]) -> tuple[int, ...]:
    return tuple(one for one in some if one not in others)
