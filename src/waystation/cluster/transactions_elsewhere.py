"""Transactions over partitions that other nodes lead: how they join one, and how they are told its end.

The coordinator of a transactional id and the leaders of its partitions are on different nodes. Data is appended where
its partition is led; before the first batch of a transaction there, the leader has its partition join by asking the
coordinator (as KIP-890 does), and from then on the log itself shows that the transaction is open. Its end is a marker
in each partition, which the leader of that one writes when the coordinator asks; the coordinator goes on when all of
them are durable, as otherwise a lost one would be missed by nobody. A marker names the coordinator's epoch; an older
one than was seen is refused (`topics/markers.py`).

Used by the broker in a cluster, in place of the coordinator itself. On the loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from waystation.cluster.link import Links
from waystation.cluster.peer import (
    Done,
    JoinTransaction,
    Marker,
    MarkersWritten,
    Refused,
    WriteMarkers,
)
from waystation.cluster.state import NOBODY
from waystation.cluster.store_view import StoreView
from waystation.errors import (
    NotFound,
    NotLeader,
    ProducerEpochStale,
    Unavailable,
    UnknownTopic,
    WaystationError,
)
from waystation.groups.errors import NotCoordinator
from waystation.observe.events import event_logger
from waystation.topics.markers import Markers
from waystation.topics.topics import TRANSACTIONS_TOPIC, Topic, Topics
from waystation.transactions.coordinator import TransactionCoordinator
from waystation.transactions.errors import InvalidTransactionState
from waystation.transactions.machine import Producer, Transaction

logger = event_logger("waystation.cluster")

ANSWER_S = 10.0
SKIPPED = frozenset({NotFound.__name__, UnknownTopic.__name__, ProducerEpochStale.__name__})
"""The partition was deleted, or an operator has ended the transaction there: trying again could never succeed."""
GUARDS_MOST = 10_000

Guard = tuple[int, int, str, int]
"""Producer id, producer epoch, topic, partition."""


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

    async def spread(self, txn: Transaction, coordinator_epoch: int) -> bool:
        """All markers of a prepared transaction, durable when it returns. NotLeader, Unavailable: not all of them."""
        by_node: dict[int, list[Marker]] = defaultdict(list)
        for topic, index in sorted(txn.partitions):
            marker = Marker(topic, index, *txn.producer, txn.commits, coordinator_epoch)
            found = self._all.find(topic)
            if found is not None:
                by_node[self._leader(found, index)].append(marker)
        await asyncio.gather(*(self._write(node_id, tuple(markers)) for node_id, markers in by_node.items()))
        return True

    def _leader(self, topic: Topic, index: int) -> int:
        placed = self._view.placed(topic.id, index)
        if placed is None or placed.leader == NOBODY:
            raise NotLeader(f"{topic.name}-{index} has no leader now, so that a transaction cannot be ended there yet")
        return placed.leader

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


class Joining:
    """How partitions that are led here join transactions (`TransactionCoordinator`'s calls of the same names)."""

    def __init__(self, coordinator: TransactionCoordinator, topics: Topics, view: StoreView, links: Links) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._view = view
        self._links = links
        self._guards: dict[Guard, None] = {}

    def _home(self, transactional_id: str) -> int:
        """The node that coordinates it. NotCoordinator: none does now."""
        topic_id = self._topics.get(TRANSACTIONS_TOPIC).id
        placed = self._view.placed(topic_id, self._coordinator.partition_of(transactional_id))
        if placed is None or placed.leader == NOBODY:
            raise NotCoordinator(f"transactional id {transactional_id!r} has no coordinator now; ask again")
        return placed.leader

    def elsewhere(self, transactional_id: str) -> bool:
        """Whether another node coordinates it."""
        return self._home(transactional_id) != self._view.node_id

    def check_produce(
        self, transactional_id: str | None, producer_id: int, producer_epoch: int, topic: str, partition: int
    ) -> bool:
        if transactional_id is None or self._home(transactional_id) == self._view.node_id:
            return self._coordinator.check_produce(transactional_id, producer_id, producer_epoch, topic, partition)
        state = self._topics.partition(topic, partition).producers.by_id.get(producer_id)
        if state is not None and producer_epoch < state.epoch:
            raise ProducerEpochStale(f"producer {producer_id} is at epoch {state.epoch}, not {producer_epoch}")
        if state is not None and state.epoch == producer_epoch and state.transaction_start is not None:
            return True
        return self._guards.pop((producer_id, producer_epoch, topic, partition), 0) is None

    async def add_implicitly(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partitions: Iterable[int],
        *,
        verify: bool = False,
    ) -> None:
        """`verify`: they have to be in it already."""
        indexes = tuple(partitions)
        if transactional_id is None or self._home(transactional_id) == self._view.node_id:
            await self._coordinator.add_implicitly(transactional_id, producer_id, producer_epoch, topic, indexes)
            return
        request = JoinTransaction(transactional_id, producer_id, producer_epoch, topic, indexes, verify)
        answer = await self._links.to(self._home(transactional_id)).ask(request, ANSWER_S)
        if isinstance(answer, Refused):
            raise error_of(answer)
        for index in indexes:
            self._guards[producer_id, producer_epoch, topic, index] = None
        while len(self._guards) > GUARDS_MOST:
            del self._guards[next(iter(self._guards))]

    async def answer(self, request: JoinTransaction) -> Done:
        """Another node leads the partitions, and this one coordinates."""
        if request.verify:
            producer = Producer(request.producer_id, request.producer_epoch)
            wanted = [(request.topic, index) for index in request.indexes]
            found = self._coordinator.verify_partitions(request.transactional_id, producer, wanted)
            if not all(found.values()):
                raise InvalidTransactionState(f"{request.topic} is not part of the transaction of its producer")
            return Done()
        await self._coordinator.add_implicitly(
            request.transactional_id, request.producer_id, request.producer_epoch, request.topic, request.indexes
        )
        return Done()

    async def add_offsets(self, transactional_id: str, producer: Producer, topic: str, index: int) -> None:
        """The offsets of a group that this node coordinates join."""
        await self.add_implicitly(transactional_id, *producer, topic, [index])
        self._guards.pop((*producer, topic, index), None)


def error_of(refused: Refused) -> WaystationError:
    """What another node has raised."""
    kinds = {kind.__name__: kind for kind in _below(WaystationError)}
    return kinds.get(refused.error, Unavailable)(refused.text)


def _below(kind: type[WaystationError]) -> list[type[WaystationError]]:
    found = [kind]
    for one in kind.__subclasses__():
        found += _below(one)
    return found
