"""One step of one KIP-848 member towards its target.

The rule that everything else serves: **a partition is given to a member only when no other member has it**, where
"has" counts from the moment it is promised to a member until that member says, by a heartbeat that lists what it
owns, that it has let go (or is removed from the group). So a member first gives up what it must; only then does it take
what is free; what is not free yet it is given by later steps.

That a member does not list a partition proves that it let go only if it knew that it had to: it may be about to take
what an earlier answer promised, while the answer that took it back got lost. So the epoch rises with the order to let
go, and only a heartbeat that carries the new epoch counts as an acknowledgement. (Kafka raises it afterwards, which
leaves that gap; clients just echo what they are told.)

Pure; called by `ConsumerGroup` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from waystation.groups.machines.calls import TopicPartition

Partitions = frozenset[TopicPartition]
NONE: Partitions = frozenset()

JOIN_EPOCH = 0
"""The epoch of a member that joins: it owns nothing, whatever was kept for it."""


class ReconcilePhase(Enum):
    """Where a member stands between its present and its target assignment."""

    STABLE = "stable"  # it has what the target of its epoch says
    REVOKING = "revoking"  # it was told to let go of something and has not said that it did
    WAITING = "waiting"  # something that it is to get is still with another member


class Holding(msgspec.Struct, frozen=True):
    """What a member has. `assigned` and `revoking` are disjoint, and both are its own until it says otherwise."""

    epoch: int
    phase: ReconcilePhase
    assigned: Partitions
    revoking: Partitions = NONE


def step(
    holding: Holding,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[TopicPartition], bool],
) -> Holding:
    """What the member has next. `owned` is what it says it has, knowing `holding.epoch`; None: it did not say."""
    if holding.phase is ReconcilePhase.STABLE and holding.epoch == target_epoch and holding.assigned == target:
        return holding
    if holding.phase is ReconcilePhase.REVOKING and (owned is None or owned & holding.revoking):
        return holding
    keeps = holding.assigned & target
    loses = holding.assigned - target
    if loses and holding.epoch != JOIN_EPOCH:
        return Holding(target_epoch, ReconcilePhase.REVOKING, keeps, loses)
    wanted = target - keeps
    gets = frozenset(partition for partition in wanted if is_free(partition))
    phase = ReconcilePhase.STABLE if gets == wanted else ReconcilePhase.WAITING
    return Holding(target_epoch, phase, keeps | gets)
