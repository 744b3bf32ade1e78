"""The view of a node in a cluster: what the store says of nodes, disks and partitions, as a part of the catalog.

Pure bookkeeping: it holds those entries as they were last told, with the revisions that a compared write has to name,
and tells those who subscribed which keys changed. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from waystation.catalog import ABSENT, Catalog, Update
from waystation.cluster.decisions.state import (
    DISKS,
    NODES,
    PARTITIONS,
    DiskState,
    NodeState,
    PartitionState,
    disk_key,
    node_key,
    node_of,
    partition_key,
    partition_of,
    read_disk,
    read_node,
    read_partition,
)
from waystation.cluster.decisions.writes import StoreEntry
from waystation.cluster.view import KnownNode, PartitionReplicas, placed

OnChanged = Callable[[Sequence[str]], None]
PartitionId = tuple[UUID, int]


class StoreView:
    """A `ClusterView`, and a part that follows the catalog. On the loop's thread only."""

    prefixes: tuple[str, ...] = (NODES, DISKS, PARTITIONS)

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self._nodes: dict[int, StoreEntry[NodeState]] = {}
        self._disks: dict[int, StoreEntry[DiskState]] = {}
        self._partitions: dict[PartitionId, StoreEntry[PartitionState]] = {}
        self._living: tuple[KnownNode, ...] = ()
        self._by_id: dict[int, KnownNode] = {}
        self._subscribers: list[OnChanged] = []
        self._loaded = dict.fromkeys(self.prefixes, ABSENT)  # what was told up to there is older than what was read

    def subscribe(self, callback: OnChanged) -> None:
        """`callback` gets the keys that changed, after each change, in the order of the revisions."""
        self._subscribers.append(callback)

    # -- as a view --------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[KnownNode]:
        return self._living

    def node(self, node_id: int) -> KnownNode | None:
        return self._by_id.get(node_id)

    def known(self) -> Sequence[int]:
        return sorted(self._nodes.keys() | self._disks.keys())

    def placed(self, topic_id: UUID, index: int) -> PartitionReplicas | None:
        known = self._partitions.get((topic_id, index))
        return None if known is None else placed(known.state, self._by_id.__contains__)

    def controller(self) -> int:
        return self._living[0].id if self._living else self.node_id

    # -- as the store has it, for those who decide --------------------------------------------------------------------

    @property
    def living(self) -> Mapping[int, StoreEntry[NodeState]]:
        """The entries of nodes, by their ids."""
        return self._nodes

    @property
    def disks(self) -> Mapping[int, StoreEntry[DiskState]]:
        """By the ids of nodes, those that do not live too."""
        return self._disks

    def node_state(self, node_id: int) -> NodeState | None:
        known = self._nodes.get(node_id)
        return None if known is None else known.state

    def node_revision(self, node_id: int) -> int:
        known = self._nodes.get(node_id)
        return ABSENT if known is None else known.revision

    def partition(self, topic_id: UUID, index: int) -> StoreEntry[PartitionState] | None:
        return self._partitions.get((topic_id, index))

    def partitions(self) -> list[tuple[PartitionId, StoreEntry[PartitionState]]]:
        """All of them, as they are now."""
        return list(self._partitions.items())

    # -- as a part ---------------------------------------------------------------------------------------------------

    def load(self, catalog: Catalog) -> None:
        """Reads what there is. Blocks; before the follower starts, after it has begun."""
        for prefix in self.prefixes:
            snapshot = catalog.read(prefix)
            for key, entry in snapshot.entries.items():
                self._take(key, entry.value, entry.revision)
            self._loaded[prefix] = snapshot.revision
        self._renew()

    async def apply(self, update: Update) -> None:
        keys = []
        for change in update.changes:
            if update.revision > self._loaded[_prefix_of(change.key)]:
                self._take(change.key, change.value, update.revision)
                keys.append(change.key)
        if any(key.startswith(NODES) for key in keys):
            self._renew()
        for callback in self._subscribers if keys else ():
            callback(keys)

    def known_keys(self) -> Iterable[str]:
        yield from [node_key(node_id) for node_id in self._nodes]
        yield from [disk_key(node_id) for node_id in self._disks]
        yield from [partition_key(topic_id, index) for topic_id, index in self._partitions]

    def _take(self, key: str, value: bytes | None, revision: int) -> None:
        prefix = _prefix_of(key)
        if prefix == PARTITIONS:
            self._take_partition(key, value, revision)
        elif prefix == NODES:
            if value is None:
                self._nodes.pop(node_of(key), None)
            else:
                self._nodes[node_of(key)] = StoreEntry(key, read_node(value), revision)
        elif value is None:
            self._disks.pop(node_of(key), None)
        else:
            self._disks[node_of(key)] = StoreEntry(key, read_disk(value), revision)

    def _take_partition(self, key: str, value: bytes | None, revision: int) -> None:
        if value is None:
            self._partitions.pop(partition_of(key), None)
        else:
            self._partitions[partition_of(key)] = StoreEntry(key, read_partition(value), revision)

    def _renew(self) -> None:
        self._living = tuple(
            KnownNode(node_id, known.state.rack, known.state.listeners, known.state.version, known.state.draining)
            for node_id, known in sorted(self._nodes.items())
        )
        self._by_id = {node.id: node for node in self._living}


def _prefix_of(key: str) -> str:
    return next(prefix for prefix in StoreView.prefixes if key.startswith(prefix))
