"""Transaction markers, written to the partitions that took part (`transactions.markers.MarkerWriter`).

A marker ends whatever its producer has open in the partition, and an epoch of a producer may be that of many
transactions. So a coordinator's request must not be carried out late, when the transaction that it means has ended by a
later request and the next one is open. Each attempt of a coordinator has a number, and a leader takes none that is not
higher than the last: it knows that one as long as it leads, so that a request must also name its epoch.
"""

from __future__ import annotations

from typing import Protocol

from waystation.cluster.links.peer import Marker, MarkersWritten, WriteMarkers
from waystation.errors import Conflict, FencedLeaderEpoch, ProducerEpochStale, WaystationError
from waystation.log.batches import batch as batches
from waystation.topics.partitions.partition import Partition
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
                target = self._topics.get(one.topic).partition(one.index)
                self._check_asked(target, one)
                self.write_marker(
                    one.topic, one.index, one.producer_id, one.producer_epoch, one.commit, one.coordinator_epoch
                )
                target.producers.asked[one.producer_id] = (one.coordinator_epoch, one.attempt)
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

    @staticmethod
    def _check_asked(target: Partition, marker: Marker) -> None:
        """Raises where the marker may be meant for a transaction that has ended since, when another has begun: a
        coordinator that was deposed asks for it, or its request has been under way while it asked again."""
        target.check_epoch(marker.leader_epoch)
        last = target.producers.asked.get(marker.producer_id)
        if last is not None and marker.attempt >= 0 and (marker.coordinator_epoch, marker.attempt) <= last:
            raise Conflict(
                f"{marker.topic}-{marker.index}: a marker that was asked for before the last one of producer"
                f" {marker.producer_id}"
            )
        state = target.producers.by_id.get(marker.producer_id)
        if state is not None and marker.coordinator_epoch < state.coordinator_epoch:
            raise FencedLeaderEpoch(
                f"{marker.topic}-{marker.index}: a marker of a coordinator of epoch {marker.coordinator_epoch}; it is"
                f" now {state.coordinator_epoch}"
            )

    async def spread(self, txn: object, coordinator_epoch: int, attempt: int) -> bool:
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
