"""What one fetch reads, in steps: so that nobody else waits while a client gets megabytes.

Invariants: a step reads as many bytes as it may, or one batch that is larger. What was read in several steps is whole
batches, one behind the other, and nothing that came after the reading began. All of it together is no more than there
is room for, or one batch.

Used by `fetch`, on the loop's thread.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from waystation.broker.access.types import closest
from waystation.errors import FencedLeaderEpoch, NotLeader, OffsetOutOfRange, WaystationError
from waystation.protocols.kafka.records.fetch_codec import FROM_FOLLOWERS, FetchPartition, FetchRequest, PartitionAnswer
from waystation.protocols.kafka.requests.errors_map import refused
from waystation.protocols.kafka.requests.nodes import NO_NODE, endpoint_with_id, leader_of

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.types import Partition
    from waystation.protocols.kafka.requests.registry import Listener

STEP_BYTES = 256 * 1024
"""A quarter of a millisecond, from the disk's cache into memory."""
LITTLE = 8
"""An eighth of what was read is not worth a step of its own, which costs as much as a fetch: it is left to the next."""


class Reading:
    """The answers of one fetch, as they are read. `room`: bytes that it may have in all."""

    def __init__(
        self, access: Access, request: FetchRequest, wanted: Sequence[FetchPartition], room: int, listener: Listener
    ) -> None:
        self._access = access
        self._find = access.topics.partition_to_read
        self._meter = access.meter
        self._listener = listener
        self._wanted = wanted
        self._committed = request.read_committed
        self._leader_only = request.version < FROM_FOLLOWERS
        self._rack = request.rack
        self._at = 0  # the partition that is next, or begun
        self._partition: Partition | None = None  # of that one, if it is begun
        self._offset = 0
        self._end = 0
        self.room = room
        self.answers: list[PartitionAnswer] = []
        self.partitions: list[Partition | None] = []  # of each answer; a topic may be deleted between two steps
        self.size = 0
        self.urgent = False  # one of them should not wait: an error

    def step(self, limit: int, *, patient: bool = False) -> bool:
        """Reads on; whether that was all of it. `patient`: a first batch that is larger than the limit waits as well,
        for a step that is not."""
        begin = self.size
        while self._at < len(self._wanted):
            wanted = self._wanted[self._at]
            if self._partition is None:
                self.answers.append(PartitionAnswer(wanted.topic, wanted.index))
                self.partitions.append(None)
            answer = self.answers[-1]
            try:
                if self._partition is None and not self._begin(wanted, answer):
                    more = False
                elif self.size - begin >= limit:
                    more = self._left(wanted, answer) > self.size // LITTLE
                else:
                    more = self._read(wanted, answer, begin, limit, patient=patient)
            except WaystationError as error:
                more = False
                if not answer.records:  # else its client meets it with the next fetch
                    answer.error = refused(self._meter, error)
                    if isinstance(error, NotLeader | FencedLeaderEpoch):
                        answer.leader = leader_of(self._access, wanted.topic, wanted.index, self._listener)
            if more:
                return False
            self.urgent = self.urgent or bool(answer.error) or answer.diverging is not None or answer.preferred >= 0
            self._partition = None
            self._at += 1
        return True

    def _begin(self, wanted: FetchPartition, answer: PartitionAnswer) -> bool:
        """Whether there may be something to read."""
        partition = self.partitions[-1] = self._find(wanted.topic, wanted.index)
        partition.check_epoch(wanted.leader_epoch)
        if self._leader_only:
            partition.check_leads()
        answer.high_watermark = partition.visible_offset
        answer.stable_offset = partition.stable_offset
        answer.start_offset = partition.start_offset
        if wanted.last_fetched_epoch >= 0:
            epoch, end = partition.epochs.end_offset_for(wanted.last_fetched_epoch, partition.end_offset)
            if 0 <= epoch < wanted.last_fetched_epoch or 0 <= end < wanted.offset:
                answer.diverging = (epoch, end)
                return False
        if self._rack:
            answer.preferred = self._nearer(partition, wanted.offset)
            if answer.preferred != NO_NODE:
                return False
        if self.size and self.room <= self.size:
            return False
        self._partition, self._offset, self._end = partition, wanted.offset, partition.visible_offset
        if self._committed:
            answer.aborted = []
            self._end = answer.stable_offset
        return True

    def _nearer(self, partition: Partition, offset: int) -> int:
        """A replica in the consumer's rack that has what it wants; NO_NODE: it shall read here."""
        view = self._access.view
        if not partition.leads or not partition.start_offset <= offset <= partition.visible_offset:
            return NO_NODE
        node_id = closest(view, partition.topic.id, partition.index, self._rack)
        if node_id == view.node_id or endpoint_with_id(view, node_id, self._listener) is None:
            return NO_NODE
        return node_id

    def _left(self, wanted: FetchPartition, answer: PartitionAnswer) -> int:
        """Bytes that may still be read of this partition."""
        return max(0, min(wanted.max_bytes - answer.size, self.room - self.size))

    def _read(self, wanted: FetchPartition, answer: PartitionAnswer, begin: int, limit: int, *, patient: bool) -> bool:
        """Reads on in a partition; whether there is more, for a later step."""
        partition = self._partition
        if partition is None:
            raise RuntimeError("a partition is read that was not begun")
        left = self._left(wanted, answer)
        portion = min(left, limit - (self.size - begin))
        if not self.size:
            first = portion if patient else sys.maxsize  # one batch is always given, however little is asked for
        else:
            first = left if self.size == begin else portion
        try:
            data = partition.read_within(self._offset, portion, self._end, first)
        except OffsetOutOfRange:
            partition.check_leads()  # a follower may lack what its leader has: consumers would jump to another offset
            raise
        if not data:
            return data is None and (patient or first < left)
        whole, offset = partition.whole_of_read(data)
        if self._committed and answer.aborted is not None:
            found = [(entry.producer_id, entry.first_offset) for entry in partition.aborted_in(self._offset, data)]
            answer.aborted += [entry for entry in found if entry not in answer.aborted]
        more = portion < left and len(data) >= portion
        # What is behind the last whole batch would be sent in vain: it is read again by the next step or fetch.
        answer.records.append(data if whole == len(data) else memoryview(data)[:whole])
        answer.size += whole
        self.size += whole if more else len(data)  # which is in memory until it is sent
        answer.delivered = offset - wanted.offset
        self._offset = offset
        return more
