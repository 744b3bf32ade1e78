"""Who wrote what to a log: the idempotence and the open transactions of every producer.

For each producer id: its epoch, its last five batches (so that a retried one is recognised and answered with the
offset it got the first time), and where its open transaction began. The state follows from the log; a snapshot at
times bounds how much of it must be read again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from waystation.errors import OutOfOrderSequence, ProducerEpochStale
from waystation.log.batches.batch import Header
from waystation.wire.crc32c import crc32c

REMEMBERED_BATCHES = 5
"""What Kafka's producers may have in flight at once with idempotence."""

_SEQUENCE_SPACE = 2**31


class StoredBatch(msgspec.Struct, array_like=True):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class ProducerState(msgspec.Struct, array_like=True):
    """One producer's."""

    producer_id: int
    epoch: int
    batches: list[StoredBatch]
    transaction_start: int | None = None  # first offset of the open transaction
    coordinator_epoch: int = -1
    last_timestamp: int = -1  # of its records
    seen_ms: int = 0  # when it last wrote, by the broker's clock

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class _Snapshot(msgspec.Struct):
    offset: int
    producers: list[ProducerState]


class Producers:
    """The table. `check` asks, `record` tells; the log calls both around every append."""

    def __init__(self) -> None:
        self.by_id: dict[int, ProducerState] = {}
        self.open: dict[int, int] = {}  # producer id → first offset of its open transaction
        self.changed = False
        self.ended = 0  # markers since the log was opened
        self.asked: dict[int, tuple[int, int]] = {}
        """Producer id → the last request to end its transaction: the coordinator's epoch, the number of the attempt.
        It is in no snapshot, since it counts as long as a leader leads (`topics/markers.py`)."""

    def check(self, header: Header) -> StoredBatch | None:
        """None: append it. A stored batch: this one is a duplicate of it. Raises if it may not be appended."""
        state = self.by_id.get(header.producer_id)
        if state is None:
            return None
        if header.producer_epoch < state.epoch:
            raise ProducerEpochStale(
                f"producer {header.producer_id} wrote with epoch {header.producer_epoch}, but {state.epoch} was seen"
            )
        if header.base_sequence < 0:
            return None
        if header.producer_epoch > state.epoch:
            if header.base_sequence != 0:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} began epoch {header.producer_epoch}"
                    f" with sequence {header.base_sequence}"
                )
            return None
        last_sequence = header.last_sequence
        for stored in state.batches:
            if stored.first_sequence == header.base_sequence and stored.last_sequence == last_sequence:
                return stored
        expected = (state.last_sequence + 1) % _SEQUENCE_SPACE
        if header.base_sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}"
            )
        return None

    def record(self, header: Header, now_ms: int) -> None:
        """A data batch of a producer with an id was appended (or is read again at recovery)."""
        self.changed = True
        producer_id = header.producer_id
        state = self.by_id.get(producer_id)
        if state is None:
            state = self.by_id[producer_id] = ProducerState(producer_id, header.producer_epoch, [])
        elif header.producer_epoch != state.epoch:
            state.epoch = header.producer_epoch
            state.batches.clear()
        if header.base_sequence >= 0:
            state.batches.append(
                StoredBatch(
                    header.base_sequence,
                    header.last_sequence,
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                )
            )
            if len(state.batches) > REMEMBERED_BATCHES:
                del state.batches[0]
        state.last_timestamp = header.max_timestamp
        state.seen_ms = now_ms
        if header.transactional and state.transaction_start is None:
            state.transaction_start = header.base_offset
            self.open[producer_id] = header.base_offset

    def end_transaction(self, header: Header, coordinator_epoch: int, now_ms: int) -> int | None:
        """A marker was appended. Returns where the transaction that it ends began, None if none was open."""
        self.changed = True
        self.ended += 1
        state = self.by_id.get(header.producer_id)
        if state is None:
            state = self.by_id[header.producer_id] = ProducerState(header.producer_id, header.producer_epoch, [])
        if header.producer_epoch > state.epoch:
            state.epoch = header.producer_epoch
            state.batches.clear()
        start = state.transaction_start
        state.transaction_start = None
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp = header.max_timestamp
        state.seen_ms = now_ms
        self.open.pop(header.producer_id, None)
        return start

    @property
    def first_open_offset(self) -> int | None:
        """Where the earliest open transaction begins: read_committed readers stop before it."""
        return min(self.open.values()) if self.open else None

    def expire(self, before_ms: int) -> None:
        """Forgets producers without an open transaction that have not written since `before_ms`.

        By the broker's clock, not by their records: who imports records of last year is not idle.
        """
        stale = [
            state.producer_id
            for state in self.by_id.values()
            if state.transaction_start is None and state.seen_ms < before_ms
        ]
        for producer_id in stale:
            del self.by_id[producer_id]
            self.asked.pop(producer_id, None)
            self.changed = True

    def changed_by(self, others: dict[int, ProducerState | None]) -> Producers:
        """The same, but for these: as they are given, None: not known."""
        made = Producers()
        made._load(state for state in self.by_id.values() if state.producer_id not in others)
        made._load(state for state in others.values() if state is not None)
        return made

    # -- snapshots --------------------------------------------------------------------------------------------------

    def snapshot(self, offset: int) -> bytes:
        """The state as of `offset` (everything before it applied)."""
        body = msgspec.msgpack.encode(_Snapshot(offset, list(self.by_id.values())))
        return crc32c(body).to_bytes(4, "big") + body

    @classmethod
    def restore(cls, data: bytes) -> tuple[int, Producers] | None:
        """(offset, state), or None if the bytes are not a whole snapshot."""
        if len(data) < 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
            return None
        try:
            snapshot = msgspec.msgpack.decode(data[4:], type=_Snapshot)
        except msgspec.DecodeError:
            return None
        producers = cls()
        producers._load(snapshot.producers)
        return snapshot.offset, producers

    def _load(self, states: Iterable[ProducerState]) -> None:
        for state in states:
            self.by_id[state.producer_id] = state
            if state.transaction_start is not None:
                self.open[state.producer_id] = state.transaction_start
