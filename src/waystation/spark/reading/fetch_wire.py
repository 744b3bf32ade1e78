"""The bytes of what the source asks the broker and of what it answers: seven APIs of the Kafka protocol.

Records are not looked at here: an answer says where in its bytes they are. Pure; for `fetching`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from waystation.errors import NotAllowed, Unavailable
from waystation.spark.options import Partition
from waystation.wire.kafka_types import Reader, write_array, write_nullable_string, write_string

Address = tuple[str, int]

FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, FIND_COORDINATOR = 1, 2, 3, 8, 10
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
VERSIONS = {
    FETCH: 11,
    LIST_OFFSETS: 5,
    METADATA: 12,
    OFFSET_COMMIT: 7,
    FIND_COORDINATOR: 2,
    SASL_HANDSHAKE: 1,
    SASL_AUTHENTICATE: 1,
}

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3
TOPIC_DELETED = frozenset({UNKNOWN_TOPIC, 100, 103})  # no such topic or partition, no such id, another id
NOT_ALLOWED = frozenset({29, 30, 31})  # the topic, the group, the cluster
UNTOLD = -(1 << 31)
WRITE = 1 << 4
"""Of the operations that a client may do."""
MOVED = frozenset({5, 6, 7, 9, 13, 14, 15, 16, 56, 72, 74, 75, 76})
"""Kafka's codes for: not now, not here; ask again."""


class Moved(Unavailable):
    """The broker says that it is not the one to ask, or not yet."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the brokers describe it."""

    name: str
    id: str
    leaders: Mapping[int, int]
    """By partition: the broker that has it."""
    internal: bool = False
    operations: int | None = None
    """What this client may do there, a bit for each operation, if that was asked and is told."""


@dataclass(slots=True)
class FetchedPartition:
    """What a fetch brought of one partition."""

    error: int = 0
    high_watermark: int = -1
    stable_offset: int = -1
    start_offset: int = -1
    aborted: list[tuple[int, int]] = field(default_factory=list)
    data: bytes | bytearray = b""
    """The whole answer: no copy is made of what may be some MiB."""
    begin: int = 0
    size: int = 0
    """Where in it the records of this partition are; PADDING bytes at least are behind them."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A question for records: from where on in which partitions, how much, and how long to wait for it."""

    positions: Mapping[Partition, int]
    committed: bool
    max_bytes: int
    max_wait_ms: int = 500
    min_bytes: int = 1


def write_handshake(mechanism: str) -> bytearray:
    out = bytearray()
    write_string(out, mechanism, False)
    return out


def read_handshake(answer: bytearray) -> tuple[int, list[str]]:
    """(error, the mechanisms that there are)"""
    reader = Reader(memoryview(answer), False)
    return reader.i16(), [reader.string() for _ in range(reader.array())]


def write_authenticate(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def read_authenticate(answer: bytearray) -> tuple[int, str, bytes, int]:
    """(error, why, the broker's part of the login, the lifetime of the session in ms or 0)"""
    reader = Reader(memoryview(answer), False)
    return reader.i16(), reader.nullable_string() or "", bytes(reader.take(max(0, reader.i32()))), reader.i64()


def write_metadata(names: Iterable[str] | None, *, operations: bool = False) -> bytearray:
    out = bytearray()
    if names is None:
        out += b"\0"
    else:
        wanted = list(names)
        write_array(out, len(wanted), True)
        for name in wanted:
            out += bytes(16)
            write_string(out, name, True)
            out += b"\0"
    out += bytes((0, operations, 0))  # create nothing; authorised operations; no tags
    return out


def read_metadata(answer: bytearray) -> tuple[dict[int, Address], dict[str, Topic]]:
    reader = Reader(memoryview(answer), True)
    reader.i32()
    brokers = {}
    for _ in range(reader.array()):
        node, host, port = reader.i32(), reader.string(), reader.i32()
        reader.nullable_string()
        reader.tags()
        brokers[node] = (host, port)
    reader.nullable_string()
    reader.i32()
    topics = {}
    for _ in range(reader.array()):
        error, name, topic_id, internal = reader.i16(), reader.nullable_string(), reader.uuid(), bool(reader.i8())
        leaders = {}
        for _ in range(reader.array()):
            reader.i16()
            index, leader = reader.i32(), reader.i32()
            reader.i32()
            for _ in range(3):
                for _ in range(reader.array()):
                    reader.i32()
            reader.tags()
            leaders[index] = leader
        operations = reader.i32()
        reader.tags()
        if error in (0, 5) and name is not None:
            told = operations if operations > UNTOLD else None
            topics[name] = Topic(name, topic_id.hex, leaders, internal, told)
    return brokers, topics


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return found


def _write_topics(out: bytearray, partitions: Iterable[Partition], each: Callable[[Partition], bytes]) -> None:
    topics = _by_topic(partitions)
    write_array(out, len(topics), False)
    for topic, indexes in topics.items():
        write_string(out, topic, False)
        write_array(out, len(indexes), False)
        for index in indexes:
            out += each((topic, index))


_LIST_PARTITION = struct.Struct(">iiq")
_FETCH_PARTITION = struct.Struct(">iiqqi")
_FETCH_HEAD = struct.Struct(">iiiibii")
_FETCHED = struct.Struct(">ihqqq")


def write_list_offsets(wanted: Mapping[Partition, int], committed: bool) -> bytearray:
    out = bytearray(struct.pack(">ib", -1, committed))
    _write_topics(out, wanted, lambda one: _LIST_PARTITION.pack(one[1], -1, wanted[one]))
    return out


def read_offsets(answer: bytearray) -> dict[Partition, tuple[int, int]]:
    reader = Reader(memoryview(answer), False)
    reader.i32()
    found = {}
    for _ in range(reader.array()):
        topic = reader.string()
        for _ in range(reader.array()):
            index, error, _, offset, _ = reader.i32(), reader.i16(), reader.i64(), reader.i64(), reader.i32()
            found[topic, index] = (error, offset)
    return found


def write_fetch(fetch: Fetch, partitions: Iterable[Partition]) -> bytearray:
    out = bytearray(_FETCH_HEAD.pack(-1, fetch.max_wait_ms, fetch.min_bytes, fetch.max_bytes, fetch.committed, 0, -1))
    _write_topics(
        out, partitions, lambda one: _FETCH_PARTITION.pack(one[1], -1, fetch.positions[one], -1, fetch.max_bytes)
    )
    write_array(out, 0, False)
    write_string(out, "", False)
    return out


def read_fetch(answer: bytearray) -> dict[Partition, FetchedPartition]:
    reader = Reader(memoryview(answer), False)
    reader.i32()
    error, _ = reader.i16(), reader.i32()
    if error:
        raise Moved(f"Kafka error {error}")
    found: dict[Partition, FetchedPartition] = {}
    for _ in range(reader.array()):
        topic = reader.string()
        for _ in range(reader.array()):
            index, code, high, stable, start = reader.unpack(_FETCHED)
            aborted = [(reader.i64(), reader.i64()) for _ in range(reader.array())]
            reader.i32()
            size = max(0, reader.i32())
            found[topic, index] = FetchedPartition(code, high, stable, start, aborted, answer, reader.position, size)
            reader.take(size)
    return found


def write_commit(group: str, offsets: Mapping[Partition, int]) -> bytearray:
    out = bytearray()
    write_string(out, group, False)
    out += struct.pack(">i", -1)
    write_string(out, "", False)
    write_nullable_string(out, None, False)
    _write_topics(out, offsets, lambda one: struct.pack(">iqih", one[1], offsets[one], -1, -1))
    return out


def read_codes(answer: bytearray) -> dict[Partition, int]:
    reader = Reader(memoryview(answer), False)
    reader.i32()
    found = {}
    for _ in range(reader.array()):
        topic = reader.string()
        for _ in range(reader.array()):
            index = reader.i32()
            found[topic, index] = reader.i16()
    return found


def read_coordinator(answer: bytearray) -> Address:
    reader = Reader(memoryview(answer), False)
    reader.i32()
    error, text = reader.i16(), reader.nullable_string()
    if error in NOT_ALLOWED:
        raise NotAllowed(
            "this user may not commit offsets of the group; an administrator allows it: `waystation acls add --user"
            " NAME --allow read --group GROUP`"
        )
    if error:
        raise Moved(f"no coordinator for the group: {text or f'Kafka error {error}'}")
    reader.i32()
    return reader.string(), reader.i32()
