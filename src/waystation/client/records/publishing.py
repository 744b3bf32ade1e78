"""Publishing records to one topic: they are gathered into a batch per partition and sent when it is large enough.

A record counts as published only when the broker has acknowledged its batch. There is no retry: after an error,
`acknowledged` tells how many are safe, and whether the rest arrived is not known. Not for two threads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from waystation.client import admin
from waystation.client.records.calls import Calls
from waystation.client.sync.client import Client
from waystation.errors import UnknownTopic
from waystation.log.batches.batch import MAGIC, NO_PRODUCER, Header, Record, assemble, build, encode_records
from waystation.log.batches.compression import CODEC_NAMES, compress
from waystation.log.batches.partitioning import partition_of
from waystation.protocol import PublishAnswer

BATCH_BYTES = 256 * 1024
"""Well below the default max.message.bytes (1 MiB), well above where requests cost more than bytes."""

UNANSWERED = 16
"""Batches that are under way at once for somebody who does not wait for each."""

_RECORD_OVERHEAD = 16

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to publish. A value of None is a tombstone: on a compacted topic it deletes the key."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None  # None: when it is sent


@dataclass(frozen=True, slots=True)
class BatchLocation:
    """Where a batch was stored: `count` offsets from `base_offset` on."""

    partition: int
    base_offset: int
    count: int


@dataclass(slots=True)
class _Gathered:
    records: list[OutgoingRecord] = field(default_factory=list)
    size: int = 0


class RecordPublisher:
    """Collects and sends. `on_placed` hears of every acknowledged batch, in the order of sending.

    With `create`, a topic that is not there is made as for any publisher. Without `wait` the next batch is sent before
    the one before is acknowledged; `flush` waits for all.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        create: bool = False,
        compression: str = "none",
        wait: bool = True,
        on_placed: Callable[[BatchLocation], None] = lambda placed: None,
    ) -> None:
        self._calls = Calls(client)
        info = self._calls.run(admin.describe_topic(self._calls.core, topic, create=create))
        self._topic = topic
        self._count = len(info.partitions)
        self._codec = CODEC_NAMES[compression]
        self._most = 1 if wait else UNANSWERED
        self._on_placed = on_placed
        self._gathered: dict[int, _Gathered] = {}
        self._under_way: deque[tuple[int, int, Future[PublishAnswer]]] = deque()
        self._sticky = 0
        self.acknowledged = 0

    def publish(self, record: OutgoingRecord) -> None:
        """Takes a record; sends its partition's batch when it is full."""
        partition = self._choose(record)
        gathered = self._gathered.setdefault(partition, _Gathered())
        size = _size_of(record)
        if gathered.records and gathered.size + size > BATCH_BYTES:
            self._send(partition)
            gathered = self._gathered.setdefault(partition, _Gathered())
        gathered.records.append(record)
        gathered.size += size

    def flush(self) -> None:
        """Sends all that is gathered; everything is durable when this returns."""
        for partition in sorted(self._gathered):
            self._send(partition)
        self._wait_for(0)

    def _choose(self, record: OutgoingRecord) -> int:
        """The partition asked for, else the key's, else one that changes with every batch (sticky round-robin)."""
        if record.partition is not None:
            if not 0 <= record.partition < self._count:
                raise UnknownTopic(
                    f"topic {self._topic!r} has no partition {record.partition}: it has {self._count}, counted from 0"
                )
            return record.partition
        if record.key is not None:
            return partition_of(record.key, self._count)
        return self._sticky

    def _send(self, partition: int) -> None:
        records = self._gathered.pop(partition).records
        if partition == self._sticky:
            self._sticky = (self._sticky + 1) % self._count
        batch = _batch(records, self._codec)
        sending = admin.publish_batches(self._calls.core, self._topic, [(partition, batch)], resend=False)
        self._under_way.append((partition, len(records), self._calls.start(sending)))
        self._wait_for(self._most - 1)

    def _wait_for(self, left: int) -> None:
        """Until at most so many are under way."""
        while len(self._under_way) > left:
            partition, count, sent = self._under_way.popleft()
            ((_, _, base_offset),) = self._calls.wait(sent).places
            self.acknowledged += count
            self._on_placed(BatchLocation(partition, base_offset, count))


def _batch(records: Sequence[OutgoingRecord], codec: int) -> bytearray:
    now_ms = time.time_ns() // 1_000_000
    if all(record.timestamp_ms is None for record in records):
        return build([(record.key, record.value, record.headers) for record in records], now_ms, codec=codec)
    return _batch_of_times(records, codec, now_ms)


def _batch_of_times(records: Sequence[OutgoingRecord], codec: int, now_ms: int) -> bytearray:
    """As `build` makes it, with a timestamp for each record."""
    timed = [
        Record(i, now_ms if one.timestamp_ms is None else one.timestamp_ms, one.key, one.value, one.headers)
        for i, one in enumerate(records)
    ]
    base_ms, latest_ms = timed[0].timestamp, max(record.timestamp for record in timed)
    body, count = encode_records(timed, 0, base_ms)
    producer = (NO_PRODUCER, -1, -1)
    header = Header(0, 0, -1, MAGIC, 0, codec, count - 1, base_ms, latest_ms, *producer, count)
    return assemble(header, compress(codec, body))


def _size_of(record: OutgoingRecord) -> int:
    headers = sum(len(name) + len(content or b"") + 4 for name, content in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers + _RECORD_OVERHEAD
