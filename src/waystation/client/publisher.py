"""Publishing to one topic: messages are gathered into a batch per partition and sent when it is large enough.

A message counts as published only when the server has acknowledged its batch. There is no retry: after an error,
`acknowledged` tells how many are safe, and whether the rest arrived is not known. Used by the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from waystation.client.partitioning import partition_of
from waystation.client.refusals import check
from waystation.client.topics import TopicInfo
from waystation.client.wire import Connection
from waystation.errors import UnknownTopic
from waystation.log.batch import MAGIC, NO_PRODUCER, Header, Record, assemble, build, encode_records
from waystation.log.compression import CODEC_NAMES, compress

BATCH_BYTES = 256 * 1024
"""Well below the default max.message.bytes (1 MiB), well above where requests cost more than bytes."""

_RECORD_OVERHEAD = 16
_TIMEOUT_MS = 30_000

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish. A value of None is a tombstone: on a compacted topic it deletes the key."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None  # None: when it is sent


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a batch was stored: `count` offsets from `base_offset` on. With acks=0 the offset is not known (-1)."""

    partition: int
    base_offset: int
    count: int


@dataclass(slots=True)
class _Pending:
    messages: list[Outgoing] = field(default_factory=list)
    size: int = 0


class Publisher:
    """Collects and sends. `on_placed` hears of every acknowledged batch, in the order of sending."""

    def __init__(
        self,
        connection: Connection,
        topic: TopicInfo,
        *,
        compression: str = "none",
        acks: int = -1,
        on_placed: Callable[[Placed], None] = lambda placed: None,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._codec = CODEC_NAMES[compression]
        self._acks = acks
        self._on_placed = on_placed
        self._pending: dict[int, _Pending] = {}
        self._sticky = 0
        self.acknowledged = 0

    def publish(self, message: Outgoing) -> None:
        """Takes a message; sends its partition's batch when it is full."""
        partition = self._choose(message)
        pending = self._pending.setdefault(partition, _Pending())
        size = _size_of(message)
        if pending.messages and pending.size + size > BATCH_BYTES:
            self._send(partition)
            pending = self._pending.setdefault(partition, _Pending())
        pending.messages.append(message)
        pending.size += size

    def flush(self) -> None:
        """Sends all that is gathered."""
        for partition in sorted(self._pending):
            self._send(partition)

    def _choose(self, message: Outgoing) -> int:
        """The partition asked for, else the key's, else one that changes with every batch (sticky round-robin)."""
        partitions = self._topic.partitions
        if message.partition is not None:
            if message.partition not in partitions:
                raise UnknownTopic(
                    f"topic {self._topic.name!r} has no partition {message.partition}: it has {len(partitions)},"
                    " counted from 0"
                )
            return message.partition
        if message.key is not None:
            return partition_of(message.key, len(partitions))
        return self._sticky

    def _send(self, partition: int) -> None:
        messages = self._pending.pop(partition).messages
        if partition == self._sticky:
            self._sticky = (self._sticky + 1) % len(self._topic.partitions)
        batch = _batch(messages, self._codec)
        data = {"name": self._topic.name, "partition_data": [{"index": partition, "records": batch}]}
        answer = self._connection.call(
            "produce",
            answer=self._acks != 0,
            transactional_id=None,
            acks=self._acks,
            timeout=_TIMEOUT_MS,
            topic_data=[data],
        )
        base_offset = -1
        if answer is not None:
            result = answer.responses[0].partition_responses[0]
            check(result.error_code, f"topic {self._topic.name!r}", _explain(result))
            base_offset = int(result.base_offset)
        self.acknowledged += len(messages)
        self._on_placed(Placed(partition, base_offset, len(messages)))


def _explain(result: object) -> str | None:
    """The server's words for the batch, or for the first record that it did not like."""
    message: str | None = result.error_message  # type: ignore[attr-defined]
    for error in result.record_errors:  # type: ignore[attr-defined]
        message = error.batch_index_error_message or message
        break
    return message


def _batch(messages: Sequence[Outgoing], codec: int) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    if all(message.timestamp_ms is None for message in messages):
        return bytes(
            build([(message.key, message.value, message.headers) for message in messages], now_ms, codec=codec)
        )
    return bytes(_batch_of_times(messages, codec, now_ms))


def _batch_of_times(messages: Sequence[Outgoing], codec: int, now_ms: int) -> bytearray:
    """As `build` makes it, with a timestamp for each record."""
    records = [
        Record(i, now_ms if one.timestamp_ms is None else one.timestamp_ms, one.key, one.value, one.headers)
        for i, one in enumerate(messages)
    ]
    base_ms, latest_ms = records[0].timestamp, max(record.timestamp for record in records)
    body, count = encode_records(records, 0, base_ms)
    producer = (NO_PRODUCER, -1, -1)
    header = Header(0, 0, -1, MAGIC, 0, codec, count - 1, base_ms, latest_ms, *producer, count)
    return assemble(header, compress(codec, body))


def _size_of(message: Outgoing) -> int:
    headers = sum(len(name) + len(content or b"") + 4 for name, content in message.headers)
    return len(message.value or b"") + len(message.key or b"") + headers + _RECORD_OVERHEAD
