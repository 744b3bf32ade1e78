"""Which partitions this node has a replica of, and how far they were acknowledged: what `Topics` has to know to open
them (`topics.Replicas`). Asks the view. On the loop."""

from __future__ import annotations

from uuid import UUID

from waystation.cluster.replication.high_watermarks import HighWatermarks
from waystation.cluster.store_view import StoreView


class ReplicaPlaces:
    def __init__(self, view: StoreView, high_watermarks: HighWatermarks) -> None:
        self._view = view
        self._high_watermarks = high_watermarks

    def here(self, topic_id: UUID, index: int) -> bool:
        known = self._view.partition(topic_id, index)
        return known is not None and self._view.node_id in known.state.replicas

    def high_watermark(self, topic_id: UUID, index: int) -> int:
        return self._high_watermarks.of(topic_id, index)
