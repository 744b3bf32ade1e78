"""Which replicas to move, where operators say what they want and not where each goes: other numbers of replicas, or
none on certain nodes. Pure.

As little data as possible is copied: a replica stays where it is, unless its node is to be left or there are too many.
A new one gets to a rack that has none yet, then to the node with the fewest. Called by
`admin/operations/cluster_operations.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

import msgspec

from waystation.cluster.decisions.placement import check_factor
from waystation.errors import InvalidReplicaAssignment

PartitionId = tuple[UUID, int]


class ReplicaMove(msgspec.Struct, frozen=True):
    topic_id: UUID
    index: int
    replicas: tuple[int, ...]  # the preferred leader first


def moves(
    wanted: Iterable[PartitionId],
    replicas: Mapping[PartitionId, tuple[int, ...]],
    racks: Mapping[int, str],
    *,
    factor: int | None = None,
    leaving: Collection[int] = (),
) -> list[ReplicaMove]:
    """Of the wanted partitions, those that have to change.

    `replicas`: of all partitions, without those that are being removed. `racks`: of the nodes that can get replicas.
    `factor`: None: as many as they have, or as there are nodes. InvalidReplicationFactor; InvalidReplicaAssignment if
    a partition would have none.
    """
    able = {node: rack for node, rack in racks.items() if node not in leaving}
    if factor is not None:
        check_factor(factor, len(able))
    mover = _Mover(replicas, able)
    found = []
    for one in wanted:
        target = mover.target(one, factor, leaving)
        if target != replicas[one]:
            found.append(ReplicaMove(*one, target))
    return found


class _Mover:
    """Counts what nodes have, as it would be after the moves so far."""

    def __init__(self, replicas: Mapping[PartitionId, tuple[int, ...]], racks: Mapping[int, str]) -> None:
        self._replicas = replicas
        self._racks = racks
        self._has: Counter[int] = Counter()
        self._leads: Counter[int] = Counter()
        for those in replicas.values():
            self._count(those, 1)

    def _count(self, replicas: Sequence[int], by: int) -> None:
        for node in replicas:
            self._has[node] += by
        if replicas:
            self._leads[replicas[0]] += by

    def target(self, partition: PartitionId, factor: int | None, leaving: Collection[int]) -> tuple[int, ...]:
        now = self._replicas[partition]
        self._count(now, -1)
        target = [node for node in now if node not in leaving]
        self._fill(target, now, factor or len(now))
        while factor is not None and len(target) > factor:
            # Of a node that is dead or drained, or of one that has many; the first, which leads as a rule, is the last.
            target.remove(
                max(target, key=lambda node: (node not in self._racks, node != target[0], self._has[node], node))
            )
        if not target:
            raise InvalidReplicaAssignment(
                f"all replicas of partition {partition[1]} of topic {partition[0]} would be removed: no other node can"
                " get one; start another node first"
            )
        if factor is not None:  # more replicas are to spread the work, too
            leader = min(target, key=lambda node: (self._leads[node], target.index(node)))
            target = [leader, *(node for node in target if node != leader)]
        self._count(target, 1)
        return tuple(target)

    def _fill(self, target: list[int], now: Sequence[int], count: int) -> None:
        while len(target) < count:
            near = Counter(self._racks.get(node, "") for node in target)
            able = [node for node in self._racks if node not in target and node not in now]
            if not able:
                return
            target.append(min(able, key=lambda node: (near[self._racks[node]], self._has[node], node)))
