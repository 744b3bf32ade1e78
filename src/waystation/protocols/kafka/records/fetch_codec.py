"""Fetch requests and responses, versions 4 to 18, by hand: records go from the file to the socket as they are."""

from __future__ import annotations

import struct
from uuid import UUID

import msgspec

from waystation.protocols.kafka.records.leader_codec import leader_field, write_endpoints, write_tagged
from waystation.protocols.kafka.requests.nodes import NO_NODE, Leader
from waystation.wire.kafka_types import MAX_ARRAY, Malformed, Reader, write_array, write_string, write_uvarint

MIN_VERSION = 4
MAX_VERSION = 18
FIRST_FLEXIBLE = 12
TOPIC_IDS = 13
FROM_FOLLOWERS = 11
"""From this version on a consumer says in which rack it is, and may read from a replica that follows (KIP-392)."""
TELLS_ENDPOINTS = 16
MAX_TOPIC_CHARS = 249
"""Of a topic's name: no topic has a longer one. Names are kept in sessions."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_PARTITION = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">iqb")  # epoch, offset, no tagged fields


class FetchPartition(msgspec.Struct):
    """What a consumer wants of one partition."""

    topic: str | UUID
    index: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1


class FetchRequest(msgspec.Struct):
    version: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[tuple[str | UUID, int]] = msgspec.field(default_factory=list)
    rack: str = ""


class PartitionAnswer(msgspec.Struct):
    topic: str | UUID
    index: int
    error: int = 0
    high_watermark: int = -1
    stable_offset: int = -1
    start_offset: int = -1
    aborted: list[tuple[int, int]] | None = None
    records: list[bytes | memoryview] = msgspec.field(default_factory=list)  # in pieces, one behind the other
    size: int = 0  # of the records
    diverging: tuple[int, int] | None = None  # (epoch, where it ended)
    leader: Leader | None = None  # where this broker does not lead
    preferred: int = NO_NODE  # a replica that is nearer to the consumer
    delivered: int = 0  # offsets that the records span; not sent


def decode(data: memoryview, version: int) -> FetchRequest:
    reader = Reader(data, version >= FIRST_FLEXIBLE, MAX_ARRAY)
    if version < 15:
        reader.i32()  # replica id: we have no followers of this kind
    max_wait_ms, min_bytes, max_bytes = reader.i32(), reader.i32(), reader.i32()
    read_committed = reader.i8() == 1
    session_id, session_epoch = (reader.i32(), reader.i32()) if version >= 7 else (0, -1)
    partitions = [part for _ in range(reader.array()) for part in _read_topic(reader, version)]
    request = FetchRequest(
        version, max_wait_ms, min_bytes, max_bytes, read_committed, session_id, session_epoch, partitions
    )
    if version >= 7:
        for _ in range(reader.array()):
            topic: str | UUID = reader.uuid() if version >= TOPIC_IDS else reader.string()
            request.forgotten += [(topic, reader.i32()) for _ in range(reader.array())]
            reader.tags()
    if version >= FROM_FOLLOWERS:
        request.rack = reader.nullable_string() or ""
    reader.tags()
    return request


def _read_topic(reader: Reader, version: int) -> list[FetchPartition]:
    topic: str | UUID = reader.uuid() if version >= TOPIC_IDS else reader.string()
    if isinstance(topic, str) and len(topic) > MAX_TOPIC_CHARS:
        raise Malformed(f"a topic's name of {len(topic)} characters")
    found = []
    for _ in range(reader.array()):
        index = reader.i32()
        leader_epoch = reader.i32() if version >= 9 else -1
        offset = reader.i64()
        last_fetched_epoch = reader.i32() if version >= FIRST_FLEXIBLE else -1
        if version >= 5:
            reader.i64()  # a follower's log start
        found.append(FetchPartition(topic, index, offset, reader.i32(), leader_epoch, last_fetched_epoch))
        reader.tags()
    reader.tags()
    return found


def encode(
    version: int,
    answers: list[PartitionAnswer],
    *,
    error: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    prefix: str = "",
) -> list[bytes | bytearray | memoryview]:
    """The response in parts, so that the records are never copied together. `prefix`: of names, which the client does
    not know."""
    compact = version >= FIRST_FLEXIBLE
    topics: dict[str | UUID, list[PartitionAnswer]] = {}
    for answer in answers:
        topics.setdefault(answer.topic, []).append(answer)
    parts: list[bytes | bytearray | memoryview] = []
    out = bytearray(_I32.pack(throttle_ms))
    if version >= 7:
        out += _I16.pack(error)
        out += _I32.pack(session_id)
    write_array(out, len(topics), compact)
    for topic, partitions in topics.items():
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            write_string(out, topic.removeprefix(prefix), compact)
        write_array(out, len(partitions), compact)
        for answer in partitions:
            _write_head(out, answer, version, compact)
            if answer.records:
                parts.append(out)
                parts += answer.records
                out = bytearray()
            if compact:
                _write_tags(out, answer)
        if compact:
            out.append(0)
    if compact:
        leaders = [answer.leader for answer in answers if answer.leader is not None]
        write_endpoints(out, leaders if version >= TELLS_ENDPOINTS else ())
    parts.append(out)
    return parts


def _write_head(out: bytearray, answer: PartitionAnswer, version: int, compact: bool) -> None:
    """Everything of a partition up to its records."""
    out += _PARTITION.pack(answer.index, answer.error, answer.high_watermark, answer.stable_offset)
    if version >= 5:
        out += _I64.pack(answer.start_offset)
    if answer.aborted is None:
        out += b"\0" if compact else b"\xff\xff\xff\xff"
    else:
        write_array(out, len(answer.aborted), compact)
        for producer_id, first_offset in answer.aborted:
            out += _ABORTED.pack(producer_id, first_offset)
            if compact:
                out.append(0)
    if version >= FROM_FOLLOWERS:
        out += _I32.pack(answer.preferred)
    if compact:
        write_uvarint(out, answer.size + 1)
    else:
        out += _I32.pack(answer.size)


def _write_tags(out: bytearray, answer: PartitionAnswer) -> None:
    if answer.diverging is not None:
        write_tagged(out, [(0, _DIVERGING.pack(*answer.diverging, 0))])
    elif answer.leader is not None:
        write_tagged(out, [(1, leader_field(answer.leader))])
    else:
        out.append(0)
