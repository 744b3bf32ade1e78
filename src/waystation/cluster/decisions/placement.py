"""Which nodes get the replicas of a new topic: spread over racks, even over nodes and leaders. Pure.

- The replicas of a partition are on different nodes, and in as many racks as there are, up to their number.
- Of a topic, each node is the preferred leader of as many partitions as any other, but for one; and has as many
  replicas as any other, but for one or two, unless racks of different sizes forbid it.
- Where that leaves a choice, the partitions of one leader get different followers, so that its work is spread when it
  dies; and then the node that has fewer replicas of other topics gets it.

The same nodes, loads and `start` give the same placement. Called by whoever creates a topic or adds partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from waystation.cluster.decisions.state import PartitionState
from waystation.errors import InvalidReplicaAssignment, InvalidReplicationFactor

DEFAULT_FACTOR = 3


class Candidate(msgspec.Struct, frozen=True):
    """A node that may get replicas: it lives, and is not drained."""

    node_id: int
    rack: str = ""
    replicas: int = 0  # that it has already, of all topics
    leads: int = 0  # for how many of them it is the preferred leader


def place(partitions: int, factor: int, nodes: Sequence[Candidate], start: int = 0) -> list[tuple[int, ...]]:
    """The replicas of each partition, the preferred leader first.

    `start` (random, or round robin) says at which node it begins, so that small topics do not all begin at the same.
    InvalidReplicationFactor.
    """
    check_factor(factor, len(nodes))
    ordered = sorted(nodes, key=lambda node: node.node_id)
    turn = start % len(ordered)
    chooser = _Chooser(ordered[turn:] + ordered[:turn])
    return [chooser.replicas(factor) for _ in range(partitions)]


class _Chooser:
    """Counts what the nodes have got of this topic. A tie is won by whoever is earlier in the order."""

    def __init__(self, nodes: Sequence[Candidate]) -> None:
        self._nodes = list(enumerate(nodes))
        self._leads: Counter[int] = Counter()
        self._replicas: Counter[int] = Counter()
        self._together: Counter[tuple[int, int, int]] = Counter()  # leader, node, as which replica of the partition

    def replicas(self, factor: int) -> tuple[int, ...]:
        leads, replicas, together = self._leads, self._replicas, self._together
        _, leader = min(
            self._nodes,
            key=lambda item: (leads[item[1].node_id], replicas[item[1].node_id], item[1].leads, item[0]),
        )
        chosen = [leader.node_id]
        racks = Counter([leader.rack])
        while len(chosen) < factor:
            nth = len(chosen)
            _, node = min(
                (item for item in self._nodes if item[1].node_id not in chosen),
                key=lambda item: (
                    racks[item[1].rack],
                    replicas[item[1].node_id],
                    together[leader.node_id, item[1].node_id, nth],
                    item[1].replicas,
                    item[0],
                ),
            )
            together[leader.node_id, node.node_id, nth] += 1
            chosen.append(node.node_id)
            racks[node.rack] += 1
        leads[leader.node_id] += 1
        replicas.update(chosen)
        return tuple(chosen)


class Planner:
    """New replicas for partitions that exist: of a node that is removed, or because there are to be more of them.

    Counts what it gives, so one planner makes the targets of many partitions (`reassignment.begin`)."""

    def __init__(self, nodes: Iterable[Candidate]) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._replicas = Counter({node.node_id: node.replicas for node in self._nodes.values()})

    def target(self, replicas: Sequence[int], factor: int, leaving: Collection[int] = ()) -> tuple[int, ...]:
        """Who has a copy stays, in the same order, but for those that leave. Others are added until there are `factor`,
        or as many as there are nodes. Fewer are wanted: the last ones leave."""
        chosen = [one for one in replicas if one not in leaving][:factor]
        racks = Counter(self._nodes[one].rack for one in chosen if one in self._nodes)
        while len(chosen) < factor:
            able = [one for one in self._nodes if one not in chosen and one not in leaving]
            if not able:
                break
            new = min(able, key=lambda one: (racks[self._nodes[one].rack], self._replicas[one], one))
            chosen.append(new)
            racks[self._nodes[new].rack] += 1
            self._replicas[new] += 1
        return tuple(chosen)


def default_factor(nodes: int) -> int:
    """Where nobody says how many replicas a topic has."""
    return max(1, min(DEFAULT_FACTOR, nodes))


def check_factor(factor: int, nodes: int) -> None:
    if factor < 1:
        raise InvalidReplicationFactor(f"replication factor {factor}: each partition needs at least one replica")
    if factor > nodes:
        raise InvalidReplicationFactor(
            f"replication factor {factor} is larger than the number of nodes that can get replicas, {nodes}; start more"
            " nodes, or ask for fewer replicas"
        )


def check_assignment(replicas: Sequence[int], nodes: Collection[int]) -> None:
    """Of an assignment that somebody has made by hand. InvalidReplicaAssignment."""
    if not replicas:
        raise InvalidReplicaAssignment("a partition was assigned to no node; name at least one")
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(f"a partition was assigned to the same node twice: {list(replicas)}")
    if strangers := [one for one in replicas if one not in nodes]:
        raise InvalidReplicaAssignment(
            f"there is no node {strangers[0]} in this cluster; there are {', '.join(map(str, sorted(nodes)))}"
        )


def first_state(replicas: tuple[int, ...]) -> PartitionState:
    """Of a new partition: all replicas are in sync, as there is nothing yet, and the preferred one leads."""
    return PartitionState(replicas, replicas[0], 0, tuple(sorted(replicas)))
