"""What `export` writes and `import` reads: one row for a message of a topic, one for a message of a queue.

A row has all of the message and where it was, so that nothing is lost in a file, whatever its format. A file has rows
of one sort. A row of either sort can be sent to a topic or to a queue: where it crosses, the broker's own table of
crossing says what becomes of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from waystation.message import Message

if TYPE_CHECKING:
    from waystation.client.records.publishing import OutgoingRecord

HeaderPair = tuple[str, bytes | None]


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a topic. A value of None is a tombstone, a timestamp of -1 Kafka's "it has none".

    What a line of another origin does not say is None: then it is as for any message that is sent now.
    """

    topic: str
    partition: int | None
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[HeaderPair, ...] = ()

    def as_record(self, *, keep_timestamp: bool, keep_partition: bool) -> OutgoingRecord:
        from waystation.client.records.publishing import OutgoingRecord

        return OutgoingRecord(
            self.value,
            self.key,
            self.headers,
            self.partition if keep_partition else None,
            self.timestamp_ms if keep_timestamp else None,
        )

    def as_message(self, now_ms: int, *, keep_times: bool) -> Message | None:
        from waystation.topics.records.crossing import message_of

        stamp = self.timestamp_ms if keep_times else None
        return message_of(self.key, self.value, self.headers, None if stamp is None or stamp < 0 else stamp)


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a queue. Its own fields are as its sender gave them: a delay counts from `taken_ms` on."""

    queue: str
    message: Message
    tag: int
    taken_ms: int
    deliveries: int = 0
    state: str = "ready"
    ready_at_ms: int | None = None

    def as_record(self, *, keep_timestamp: bool, keep_partition: bool) -> OutgoingRecord:
        from waystation.client.records.publishing import OutgoingRecord
        from waystation.topics.records.crossing import TOMBSTONE, headers_of

        said = self.message
        value = None if not said.payload and said.type == TOMBSTONE else said.payload
        stamp = self.taken_ms if said.timestamp_ms is None else said.timestamp_ms
        return OutgoingRecord(value, said.key, tuple(headers_of(said)), None, stamp if keep_timestamp else None)

    def as_message(self, now_ms: int, *, keep_times: bool) -> Message | None:
        """The message to put. With `keep_times` it is due when it was due and ends when it would have; None: it has."""
        said = self.message
        if not keep_times:
            return said
        changes: dict[str, Any] = {}
        if said.ttl_ms is not None:
            left_ms = self.taken_ms + said.ttl_ms - now_ms
            if left_ms <= 0:
                return None
            changes["ttl_ms"] = left_ms
        if self.ready_at_ms is not None:
            changes.update(deliver_at_ms=self.ready_at_ms, delay_ms=0)
        elif said.delay_ms or said.deliver_at_ms is not None:
            changes.update(deliver_at_ms=None, delay_ms=0)  # its time has come already
        return msgspec.structs.replace(said, **changes) if changes else said


Row = TopicRow | QueueRow
