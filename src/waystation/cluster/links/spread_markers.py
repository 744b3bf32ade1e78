"""The end of a transaction in partitions that other nodes lead.

It is a marker in each partition, which the leader of that one writes when the coordinator asks; the coordinator goes on
when all of them are durable, as otherwise a lost one would be missed by nobody. What was asked for and not answered may
arrive when the transaction has ended and the next one is open: the leader knows it by the coordinator's epoch, by the
number of the attempt and by its own epoch, and refuses it (`topics/markers.py`). How a partition joins is in
`transactions/writers.py`.

Used by the coordinator in a cluster. On the loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from waystation.cluster.decisions.state import NOBODY
from waystation.cluster.links.link import Links
from waystation.cluster.links.peer import (
    Marker,
    MarkersWritten,
    WriteMarkers,
)
from waystation.cluster.store_view import StoreView
from waystation.cluster.view import PartitionReplicas
from waystation.errors import (
    NotFound,
    NotLeader,
    ProducerEpochStale,
    Unavailable,
    UnknownTopic,
)
from waystation.observe.events import event_logger
from waystation.topics.markers import Markers
from waystation.topics.topics import Topic, Topics
from waystation.transactions.machine import Transaction

logger = event_logger("waystation.cluster")

ANSWER_S = 10.0
SKIPPED = frozenset({NotFound.__name__, UnknownTopic.__name__, ProducerEpochStale.__name__})
"""The partition was deleted, or an operator has ended the transaction there: trying again could never succeed."""


class SpreadMarkers:
    """`transactions.markers.MarkerWriter`, whose partitions are led by several nodes."""

    def __init__(self, markers: Markers, topics: Topics, view: StoreView, links: Links) -> None:
        self._local = markers
        self._all = topics
        self._view = view
        self._links = links

    def write_marker(
        self, topic: str, partition: int, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int
    ) -> None:
        """To a partition that is led here: an operator asks for it."""
        self._local.write_marker(topic, partition, producer_id, producer_epoch, commit, coordinator_epoch)

    async def spread(self, txn: Transaction, coordinator_epoch: int, attempt: int) -> bool:
        """All markers of a prepared transaction, durable when it returns. NotLeader, Unavailable: not all of them."""
        by_node: dict[int, list[Marker]] = defaultdict(list)
        for topic, index in sorted(txn.partitions):
            found = self._all.find(topic)
            if found is not None:
                placed = self._placed(found, index)
                marker = Marker(topic, index, *txn.producer, txn.commits, coordinator_epoch, attempt, placed.epoch)
                by_node[placed.leader].append(marker)
        await asyncio.gather(*(self._write(node_id, tuple(markers)) for node_id, markers in by_node.items()))
        return True

    def _placed(self, topic: Topic, index: int) -> PartitionReplicas:
        placed = self._view.placed(topic.id, index)
        if placed is None or placed.leader == NOBODY:
            raise NotLeader(f"{topic.name}-{index} has no leader now, so that a transaction cannot be ended there yet")
        return placed

    async def _write(self, node_id: int, markers: tuple[Marker, ...]) -> None:
        request = WriteMarkers(markers)
        if node_id == self._view.node_id:
            answer = await self._local.write_all(request)
        else:
            heard = await self._links.to(node_id).ask(request, ANSWER_S)
            if not isinstance(heard, MarkersWritten):
                raise Unavailable(f"node {node_id} did not write markers: {heard}")
            answer = heard
        for marker, failure in zip(markers, answer.failures, strict=True):
            if failure in SKIPPED:
                logger.warning(
                    "marker.skipped",
                    "no marker to {topic}-{partition}: {reason}",
                    topic=marker.topic,
                    partition=marker.index,
                    reason=failure,
                )
            elif failure:
                raise NotLeader(f"node {node_id} did not write the marker to {marker.topic}-{marker.index}: {failure}")
