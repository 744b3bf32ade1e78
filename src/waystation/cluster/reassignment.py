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

from waystation.cluster.state import NodeState, PartitionState
from waystation.cluster.writes import Identity, Known, Write


def begin(partition: Known[PartitionState], target: Sequence[int], nodes: Collection[int]) -> Write | None:
    """Asked for by anybody who may; replaces a reassignment that is under way. None: it is where it should be.
    InvalidReplicaAssignment."""
    raise NotImplementedError


def advance(
    me: Identity,
    partition: Known[PartitionState],
    min_in_sync: int,
    nodes: Mapping[int, Known[NodeState]],
    caught_up: Collection[int],
) -> Write | None:
    """The leader's next step; None: it waits for replicas to join, or there is nothing to do."""
    raise NotImplementedError


def cancel(partition: Known[PartitionState], min_in_sync: int) -> Write:
    """NoReassignment: there is none. Conflict: too few members of the in-sync set would be left; later it may do."""
    raise NotImplementedError
