"""Deduplication of a topic by message id, within a window, also across restarts.

A topic with `waystation.dedup.window.ms` set is opened up: a record whose `x-message-id` header was seen within the
window is left out of its batch. The batch keeps its offsets and sequence numbers (the record leaves a gap, as
compaction does), so idempotent producers notice nothing; a batch of nothing but duplicates is stored empty.

The ids are those in the log: after a restart they are read again from it, so there is no second place to keep them.
They are read again, too, when this broker leads the partition anew: another one has taken ids meanwhile, and what was
truncated has not used any. An id whose transaction was aborted was not used. While it is open nobody knows: a batch
that a client built is taken for a repetition, and messages are refused for now, since each would be lost or stored
twice in one of the two cases.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from weakref import ref

from waystation.errors import InvalidRecord, TooLarge, Unavailable
from waystation.log.aborted import Aborted
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header, Record
from waystation.log.batches.compression import compress
from waystation.message import Message
from waystation.topics.partitions.partition import Partition

ID_HEADER = "x-message-id"
DEDUP_SETTING = "waystation.dedup.window.ms"
DEDUP_MS = 600_000
"""The window of a topic that is created for somebody who wants each message once."""


class DedupWindow:
    """The ids of one partition, oldest first."""

    def __init__(self, partition: Partition, window_ms: int, now_ms: int) -> None:
        self.window_ms = window_ms
        self.epoch = partition.epoch
        """The leader's, in which these are all ids."""
        self._partition = ref(partition)  # who has a window for each partition shall not keep partitions by it
        self._seen: OrderedDict[bytes, int] = OrderedDict()
        self._transactional: dict[bytes, tuple[int, int]] = {}  # of those: producer id and offset, until it is settled
        partition.aborted.on_forget = self._were_aborted
        found = partition.find_time(now_ms - window_ms)
        if found is not None:
            for data, header in partition.batches_from(found[0]):
                if not header.control:
                    self._read(data, header)

    def _read(self, data: bytes, header: Header) -> None:
        try:
            for record in batches.records_of(data, header):
                self._note(record, record.timestamp, header, header.base_offset)
        except (InvalidRecord, TooLarge):
            return  # from before the topic was opened up; it can have no ids

    def __len__(self) -> int:
        return len(self._seen)

    def fresh(self, messages: Sequence[Message], now_ms: int, producer_id: int) -> Sequence[Message]:
        """Those whose ids were not seen, nor are those of others before them: what is not in a batch yet leaves no gap
        in it. Unavailable if one is in an open transaction that is not this producer's."""
        self._forget(now_ms - self.window_ms)
        ids: set[bytes] = set()
        kept: list[Message] = []
        for message in messages:
            if message.id is not None:
                message_id = message.id.encode(errors="replace")
                if message_id in ids:
                    continue
                if self._used(message_id):
                    if self._transactional.get(message_id, (producer_id, 0))[0] != producer_id:
                        said = f"id: {message.id!r} was published in a transaction that is still open"
                        raise Unavailable(f"{said}; publish again when it has ended")
                    continue
                ids.add(message_id)
            kept.append(message)
        return messages if len(kept) == len(messages) else kept

    def filter(
        self, batch: bytearray | memoryview, header: Header, now_ms: int
    ) -> tuple[bytearray | memoryview, Header]:
        """The batch without the records that were seen; the batch itself where there are none."""
        self._forget(now_ms - self.window_ms)
        everything = list(batches.records_of(batch, header))
        fresh: list[Record] = []
        ids: set[bytes] = set()
        for record in everything:
            message_id = _id_of(record)
            if message_id is not None:
                if message_id in ids or self._used(message_id):
                    continue
                ids.add(message_id)
            fresh.append(record)
        if len(fresh) == len(everything):
            return batch, header
        body, count = batches.encode_records(fresh, header.base_offset, header.base_timestamp)
        smaller = batches.assemble(header._replace(record_count=count), compress(header.codec, body))
        return smaller, batches.read_header(smaller)

    def remember(self, batch: bytearray | memoryview, header: Header, now_ms: int, offset: int) -> None:
        """The batch was appended at the offset: its ids count from now on."""
        for record in batches.records_of(batch, header):
            self._note(record, now_ms, header, offset)

    def _note(self, record: Record, when_ms: int, header: Header, offset: int) -> None:
        message_id = _id_of(record)
        if message_id is None:
            return
        self._seen[message_id] = when_ms
        if header.transactional:
            self._transactional[message_id] = (header.producer_id, offset)
        else:
            self._transactional.pop(message_id, None)

    def _used(self, message_id: bytes) -> bool:
        """Whether a message of this id is in the partition, or will be if its transaction commits."""
        if message_id not in self._seen:
            return False
        by = self._transactional.get(message_id)
        partition = self._partition()
        if by is None or partition is None:
            return True
        producer_id, offset = by
        if any(aborted.producer_id == producer_id for aborted in partition.aborted.overlapping(offset, offset + 1)):
            del self._seen[message_id], self._transactional[message_id]
            return False
        if offset < partition.stable_offset:
            del self._transactional[message_id]  # it was committed
        return True

    def _were_aborted(self, transactions: Sequence[Aborted]) -> None:
        """Nobody else knows of them from now on."""
        for message_id, (producer_id, offset) in list(self._transactional.items()):
            if any(
                one.producer_id == producer_id and one.first_offset <= offset <= one.last_offset for one in transactions
            ):
                del self._seen[message_id], self._transactional[message_id]

    def _forget(self, before_ms: int) -> None:
        while self._seen:
            message_id, when = next(iter(self._seen.items()))
            if when >= before_ms:
                return
            del self._seen[message_id]
            self._transactional.pop(message_id, None)


def _id_of(record: Record) -> bytes | None:
    for name, content in record.headers:
        if name == ID_HEADER:
            return content
    return None
