"""Produce requests and responses, versions 0 to 13, by hand: records stay where the socket put them.

Versions 0–2 come only from clients that write old message formats; they are read so that each partition can be
answered with UNSUPPORTED_FOR_MESSAGE_FORMAT instead of a closed connection.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from uuid import UUID

import msgspec

from waystation.broker.access.types import CheckProduce, Header
from waystation.errors import WaystationError
from waystation.protocols.kafka.records.leader_codec import leader_field, write_endpoints, write_tagged
from waystation.protocols.kafka.requests.nodes import Leader
from waystation.protocols.kafka.requests.registry import Listener
from waystation.wire.kafka_types import MAX_ARRAY, Reader, write_array, write_nullable_string, write_string

MIN_VERSION = 0
MAX_VERSION = 13
FIRST_FLEXIBLE = 9
TOPIC_IDS = 13
IMPLICIT_TRANSACTION = 12
TELLS_LEADERS = 10

_RESULT = struct.Struct(">ihq")
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")


class PartitionData(msgspec.Struct):
    """One partition's records; `records` is a view into the connection's buffer, and begins at `place` of that.

    `header`, `refusal`: what the check of the records has found, if they were checked ahead.
    """

    topic: str | UUID
    index: int
    records: memoryview | None
    place: int
    header: Header | None = None
    refusal: WaystationError | None = None


class ProduceRequest(msgspec.Struct):
    version: int
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[PartitionData]
    listener: Listener | None = None
    """What the client has reached: it is told addresses of that kind. Set by who handles the request."""
    check_produce: CheckProduce | None = None
    """Set when the producer was asked about: once for all transactional batches of the request."""

    def let_go(self) -> None:
        """Its records are in the log: the buffer that they are views into may be freed or written over, however long
        the answer has to wait."""
        for part in self.partitions:
            part.records = None


class PartitionResult(msgspec.Struct):
    topic: str | UUID
    index: int
    error: int = 0
    base_offset: int = -1
    append_time_ms: int = -1
    start_offset: int = -1
    message: str | None = None
    records: Sequence[tuple[int, str]] = ()
    """Those that the batch was refused for, counted from 0, and why (KIP-467)."""
    leader: Leader | None = None
    """Set where this broker does not lead."""


def decode(data: memoryview, version: int, place: int = 0) -> ProduceRequest:
    """`data` begins at `place` of the buffer that it is a view into."""
    reader = Reader(data, version >= FIRST_FLEXIBLE, MAX_ARRAY)
    transactional_id = reader.nullable_string() if version >= 3 else None
    acks = reader.i16()
    timeout_ms = reader.i32()
    partitions: list[PartitionData] = []
    for _ in range(reader.array()):
        topic: str | UUID = reader.uuid() if version >= TOPIC_IDS else reader.string()
        for _ in range(reader.array()):
            index, records = reader.i32(), reader.nullable_bytes()
            begin = place + reader.position - (0 if records is None else len(records))
            partitions.append(PartitionData(topic, index, records, begin))
            reader.tags()
        reader.tags()
    reader.tags()
    return ProduceRequest(version, transactional_id, acks, timeout_ms, partitions)


def encode(version: int, results: list[PartitionResult], throttle_ms: int = 0, prefix: str = "") -> bytearray:
    """The response body. Results of one topic stand together, as they came. `prefix`: of names, which the client does
    not know."""
    compact = version >= FIRST_FLEXIBLE
    topics: dict[str | UUID, list[PartitionResult]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(result)
    out = bytearray()
    write_array(out, len(topics), compact)
    for topic, partitions in topics.items():
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            write_string(out, topic.removeprefix(prefix), compact)
        write_array(out, len(partitions), compact)
        for result in partitions:
            _write_result(out, result, version, compact)
        if compact:
            out.append(0)
    if version >= 1:
        out += _I32.pack(throttle_ms)
    if compact:
        leaders = [result.leader for result in results if result.leader is not None]
        write_endpoints(out, leaders if version >= TELLS_LEADERS else ())
    return out


def _write_result(out: bytearray, result: PartitionResult, version: int, compact: bool) -> None:
    out += _RESULT.pack(result.index, result.error, result.base_offset)
    if version >= 2:
        out += _I64.pack(result.append_time_ms)
    if version >= 5:
        out += _I64.pack(result.start_offset)
    if version >= 8:
        write_array(out, len(result.records), compact)
        for number, why in result.records:
            out += _I32.pack(number)
            write_nullable_string(out, why, compact)
            if compact:
                out.append(0)
        write_nullable_string(out, result.message, compact)
    if compact:
        if result.leader is None or version < TELLS_LEADERS:
            out.append(0)
        else:
            write_tagged(out, [(0, leader_field(result.leader))])
