"""Transaction markers, written to the partitions that took part (`transactions.markers.MarkerWriter`)."""

from __future__ import annotations

from typing import Protocol

from waystation.cluster.peer import Marker, MarkersWritten, WriteMarkers
from waystation.errors import FencedLeaderEpoch, ProducerEpochStale, WaystationError
from waystation.log import batch as batches
from waystation.topics.partition import Partition
from waystation.topics.topics import Topics
from waystation.world.clock import Clock


class MarkerOwner(Protocol):
    """Whoever must know that a transaction has ended in a log of theirs: committed offsets, queues."""

    def on_marker(self, partition: int, producer_id: int, producer_epoch: int, commit: bool) -> None: ...


class Markers:
    """Appends control batches; owners of state are told where they touch it."""

    def __init__(self, topics: Topics, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self.owners: dict[str, MarkerOwner] = {}  # internal topic → whoever keeps state in it

    async def write_all(self, request: WriteMarkers) -> MarkersWritten:
        """Another node's coordinator ends transactions in partitions that this one leads. Durable when it returns."""
        failures: list[str] = []
        written: list[tuple[int, Partition, int]] = []
        for number, one in enumerate(request.markers):
            try:
                self._check_coordinator(one)
                self.write_marker(
                    one.topic, one.index, one.producer_id, one.producer_epoch, one.commit, one.coordinator_epoch
                )
                target = self._topics.get(one.topic).partition(one.index)
                written.append((number, target, target.end_offset))
                failures.append("")
            except WaystationError as error:
                failures.append(type(error).__name__)
        for number, target, end in written:
            try:
                await target.until_durable(end)
            except WaystationError as error:
                failures[number] = type(error).__name__
        return MarkersWritten(tuple(failures))

    def _check_coordinator(self, marker: Marker) -> None:
        """A coordinator that was deposed may speak of a transaction that has ended since, when another has begun."""
        target = self._topics.get(marker.topic).partition(marker.index)
        state = target.producers.by_id.get(marker.producer_id)
        if state is not None and marker.coordinator_epoch < state.coordinator_epoch:
            raise FencedLeaderEpoch(
                f"{marker.topic}-{marker.index}: a marker of a coordinator of epoch {marker.coordinator_epoch}; it is"
                f" now {state.coordinator_epoch}"
            )

    async def spread(self, txn: object, coordinator_epoch: int) -> bool:
        """A broker alone writes them one by one."""
        return False

    def write_marker(
        self, topic: str, partition: int, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int
    ) -> None:
        target = self._topics.get(topic).partition(partition)
        state = target.producers.by_id.get(producer_id)
        if state is not None and producer_epoch < state.epoch:
            raise ProducerEpochStale(
                f"{topic}-{partition}: a marker of producer {producer_id} with epoch {producer_epoch}, but epoch"
                f" {state.epoch} was seen"
            )
        marker = batches.build_marker(producer_id, producer_epoch, commit, coordinator_epoch, self._clock.now_ms())
        target.append(marker, batches.read_header(marker))
        owner = self.owners.get(topic)
        if owner is not None:
            owner.on_marker(partition, producer_id, producer_epoch, commit)
