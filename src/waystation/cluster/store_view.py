"""The view of a node in a cluster: what the store says of nodes and partitions, followed as a part of the catalog.

Pure bookkeeping: it holds the entries under `nodes/` and `partitions/` as they were last told, with the revisions that
a compared write has to name, and tells those who subscribed which keys changed. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from waystation.catalog import ABSENT, Catalog, Update
from waystation.cluster.state import (
    NODES,
    PARTITIONS,
    NodeState,
    PartitionState,
    node_key,
    node_of,
    partition_key,
    partition_of,
    read_node,
    read_partition,
)
from waystation.cluster.view import KnownNode, Placed, placed

OnChanged = Callable[[Iterable[str]], None]


class Known(NamedTuple):
    """A partition's entry, and the revision that it has."""

    state: PartitionState
    revision: int


class StoreView:
    """A `ClusterView`, and a part that follows the catalog. On the loop's thread only."""

    prefixes: tuple[str, ...] = (NODES, PARTITIONS)

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self._nodes: dict[int, tuple[NodeState, int]] = {}
        self._partitions: dict[tuple[UUID, int], Known] = {}
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

    def placed(self, topic_id: UUID, index: int) -> Placed | None:
        known = self._partitions.get((topic_id, index))
        return None if known is None else placed(known.state, self._by_id.__contains__)

    def controller(self) -> int:
        return self._living[0].id if self._living else self.node_id

    # -- as the store has it, for those who decide --------------------------------------------------------------------

    def node_state(self, node_id: int) -> NodeState | None:
        found = self._nodes.get(node_id)
        return None if found is None else found[0]

    def node_revision(self, node_id: int) -> int:
        found = self._nodes.get(node_id)
        return ABSENT if found is None else found[1]

    def partition(self, topic_id: UUID, index: int) -> Known | None:
        return self._partitions.get((topic_id, index))

    def partitions(self) -> Iterable[tuple[tuple[UUID, int], Known]]:
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
            prefix = NODES if change.key.startswith(NODES) else PARTITIONS
            if update.revision > self._loaded[prefix]:
                self._take(change.key, change.value, update.revision)
                keys.append(change.key)
        if any(key.startswith(NODES) for key in keys):
            self._renew()
        for callback in self._subscribers if keys else ():
            callback(keys)

    def known_keys(self) -> Iterable[str]:
        yield from [node_key(node_id) for node_id in self._nodes]
        yield from [partition_key(topic_id, index) for topic_id, index in self._partitions]

    def _take(self, key: str, value: bytes | None, revision: int) -> None:
        if key.startswith(NODES):
            node_id = node_of(key)
            if value is None:
                self._nodes.pop(node_id, None)
            else:
                self._nodes[node_id] = (read_node(value), revision)
        elif value is None:
            self._partitions.pop(partition_of(key), None)
        else:
            self._partitions[partition_of(key)] = Known(read_partition(value), revision)

    def _renew(self) -> None:
        self._living = tuple(
            KnownNode(node_id, state.rack, state.listeners, state.version)
            for node_id, (state, _) in sorted(self._nodes.items())
        )
        self._by_id = {node.id: node for node in self._living}
