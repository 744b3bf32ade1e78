"""What `__transaction_state` holds: Kafka's TransactionLogKey and TransactionLogValue, byte for byte.

A key is a version and a transactional id; a value is the whole state of that id, so that compaction by key keeps
exactly what is needed. Values are written in version 1 (with tagged fields) and read in versions 0 and 1. One tag is
ours: Kafka does not store the epoch before the last bump, which makes it refuse a request that a producer repeats after
the coordinator restarted. Kafka's own readers skip a tag that they do not know.

A key of another version is ours as well: the reservation of producer ids (see `producer_ids.py`), in partition 0.

Called by the coordinator alone. Bytes that do not decode raise Corrupt: this log is not guessed at.
"""

from __future__ import annotations

import struct

import msgspec

from waystation.errors import Corrupt, NewerFormat
from waystation.transactions.machine import NO_EPOCH, NO_PRODUCER_ID, Producer, Transaction, TransactionState

KEY_VERSION = 0
RESERVATION_KEY_VERSION = 0x5000
"""Far above anything Kafka uses: its tools print such a key as of an unknown version and go on."""
VALUE_VERSION = 1
CLIENT_VERSION_BUMPS_EPOCH = 2

_TAG_PREVIOUS_ID = 0
_TAG_NEXT_ID = 1
_TAG_CLIENT_VERSION = 2
_TAG_LAST_EPOCH = 1000

_VERSION = struct.Struct(">h")
_HEAD = struct.Struct(">qhib")
_TIMES = struct.Struct(">qq")
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">h")


class TransactionKey(msgspec.Struct, frozen=True):
    transactional_id: str


class ReservationKey(msgspec.Struct, frozen=True):
    """The one record that says which producer ids were given away in blocks."""


def encode_key(transactional_id: str) -> bytes:
    text = transactional_id.encode()
    return struct.pack(">hH", KEY_VERSION, len(text)) + text


def decode_key(key: bytes) -> TransactionKey | ReservationKey | None:
    """None for a key of a kind that this version does not know."""
    try:
        (version,) = _VERSION.unpack_from(key)
        if version == RESERVATION_KEY_VERSION:
            return ReservationKey()
        if version != KEY_VERSION:
            return None
        reader = _Reader(key, 2)
        return TransactionKey(reader.text(reader.short()))
    except (struct.error, UnicodeDecodeError) as error:
        raise Corrupt(f"transaction log key {key[:64]!r} does not decode: {error}") from error


def encode_reservation(end: int) -> tuple[bytes, bytes]:
    """The record that reserves all producer ids below `end`."""
    return _VERSION.pack(RESERVATION_KEY_VERSION), _VERSION.pack(0) + _LONG.pack(end)


def decode_reservation(value: bytes) -> int:
    if len(value) != 10 or value[:2] != b"\0\0":
        raise NewerFormat(f"producer id reservation {value[:32]!r} is of an unknown form")
    return int(_LONG.unpack_from(value, 2)[0])


def encode_value(txn: Transaction) -> bytes:
    parts = [
        _VERSION.pack(VALUE_VERSION),
        _HEAD.pack(txn.producer.producer_id, txn.producer.epoch, txn.timeout_ms, txn.state),
        _partitions(txn),
        _TIMES.pack(txn.updated_ms, txn.started_ms),
        _tags(txn),
    ]
    return b"".join(parts)


def decode_value(transactional_id: str, value: bytes) -> Transaction:
    try:
        return _decode_value(transactional_id, value)
    except (struct.error, ValueError) as error:
        raise Corrupt(f"the state of transactional id {transactional_id!r} does not decode: {error}") from error


def partition_for(transactional_id: str, count: int) -> int:
    """The partition of `__transaction_state` that holds an id: that of NAME if it is NAME/PART, so that those which are
    committed together have one coordinator."""
    return partition_for_name(transactional_id.rpartition("/")[0] or transactional_id, count)


def partition_for_name(name: str, count: int) -> int:
    """As Kafka chooses, by Java's hash of the string."""
    data = name.encode("utf-16-be", "surrogatepass")
    code = 0
    for i in range(0, len(data), 2):
        code = (31 * code + (data[i] << 8) + data[i + 1]) & 0xFFFFFFFF
    signed = code - (1 << 32) if code & 0x80000000 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % count


# -- writing --------------------------------------------------------------------------------------------------------


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _partitions(txn: Transaction) -> bytes:
    if txn.state is TransactionState.EMPTY:
        return _uvarint(0)  # null
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(txn.partitions):
        by_topic.setdefault(topic, []).append(partition)
    parts = [_uvarint(len(by_topic) + 1)]
    for topic, indexes in by_topic.items():
        name = topic.encode()
        parts += [_uvarint(len(name) + 1), name, _uvarint(len(indexes) + 1)]
        parts += [struct.pack(f">{len(indexes)}i", *indexes), _uvarint(0)]
    return b"".join(parts)


def _tags(txn: Transaction) -> bytes:
    tags: list[tuple[int, bytes]] = []
    if txn.previous_producer_id != NO_PRODUCER_ID:
        tags.append((_TAG_PREVIOUS_ID, _LONG.pack(txn.previous_producer_id)))
    if txn.next_producer_id != NO_PRODUCER_ID:
        tags.append((_TAG_NEXT_ID, _LONG.pack(txn.next_producer_id)))
    if txn.bumps_epoch:
        tags.append((_TAG_CLIENT_VERSION, _SHORT.pack(CLIENT_VERSION_BUMPS_EPOCH)))
    if txn.last_epoch != NO_EPOCH:
        tags.append((_TAG_LAST_EPOCH, _SHORT.pack(txn.last_epoch)))
    return _uvarint(len(tags)) + b"".join(_uvarint(tag) + _uvarint(len(data)) + data for tag, data in tags)


# -- reading --------------------------------------------------------------------------------------------------------


class _Reader:
    """A cursor over bytes; running off their end is struct.error."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        values = form.unpack_from(self._data, self._at)
        self._at += form.size
        return values

    def take(self, length: int) -> bytes:
        piece = self._data[self._at : self._at + length]
        if length < 0 or len(piece) != length:
            raise struct.error(f"{length} bytes wanted at {self._at}, {len(piece)} left")
        self._at += length
        return piece

    def text(self, length: int) -> str:
        return self.take(length).decode()

    def short(self) -> int:
        return self.unpack(_SHORT)[0]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise struct.error("a varint is longer than five bytes")

    def ints(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f">{count}i", self.take(4 * count))

    def tags(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            found[tag] = self.take(self.uvarint())
        return found


def _decode_value(transactional_id: str, value: bytes) -> Transaction:
    reader = _Reader(value, 0)
    version = reader.short()
    if version not in (0, 1):
        raise NewerFormat(
            f"the state of transactional id {transactional_id!r} has version {version}; known are 0 and 1"
        )
    producer_id, epoch, timeout_ms, status = reader.unpack(_HEAD)
    partitions = _read_partitions(reader) if version == 0 else _read_compact_partitions(reader)
    updated_ms, started_ms = reader.unpack(_TIMES)
    tags = reader.tags() if version else {}
    client_version = _tagged(tags, _TAG_CLIENT_VERSION, _SHORT, 0)
    return Transaction(
        transactional_id,
        Producer(producer_id, epoch),
        timeout_ms,
        updated_ms,
        TransactionState(status),
        frozenset(partitions),
        started_ms,
        last_epoch=_tagged(tags, _TAG_LAST_EPOCH, _SHORT, NO_EPOCH),
        previous_producer_id=_tagged(tags, _TAG_PREVIOUS_ID, _LONG, NO_PRODUCER_ID),
        next_producer_id=_tagged(tags, _TAG_NEXT_ID, _LONG, NO_PRODUCER_ID),
        bumps_epoch=client_version >= CLIENT_VERSION_BUMPS_EPOCH,
    )


def _tagged(tags: dict[int, bytes], tag: int, form: struct.Struct, default: int) -> int:
    data = tags.get(tag)
    return default if data is None else int(form.unpack(data)[0])


def _read_partitions(reader: _Reader) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    (topics,) = reader.unpack(struct.Struct(">i"))
    for _ in range(max(topics, 0)):
        topic = reader.text(reader.short())
        (count,) = reader.unpack(struct.Struct(">i"))
        found += [(topic, index) for index in reader.ints(max(count, 0))]
    return found


def _read_compact_partitions(reader: _Reader) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for _ in range(reader.uvarint() - 1):
        topic = reader.text(reader.uvarint() - 1)
        found += [(topic, index) for index in reader.ints(max(reader.uvarint() - 1, 0))]
        reader.tags()
    return found
