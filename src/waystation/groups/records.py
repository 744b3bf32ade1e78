"""How groups are written in `__consumer_offsets`.

Offsets and classic groups use Kafka's own formats, so that tools that read the topic understand it. All integers are
big-endian; a *string* is an int16 length (-1: null) and UTF-8; *bytes* are an int32 length and the bytes.

    key    int16 1, string group, string topic, int32 partition
    value  int16 3, int64 offset, int32 leader epoch, string metadata, int64 commit timestamp
           int16 1, int64 offset, string metadata, int64 commit timestamp, int64 expire timestamp  (explicit expiry)

    key    int16 2, string group
    value  int16 3, string protocol type, int32 generation, string? protocol, string? leader, int64 state timestamp,
           int32 n, n × (string member, string? instance, string client id, string client host, int32 rebalance timeout,
           int32 session timeout, bytes subscription, bytes assignment)

KIP-848 groups are ours alone. Their key versions are far above Kafka's, whose readers skip versions they do not know;
values are an int16 version (0) and a MessagePack array, the fields in the order of `_GroupBody` and `_MemberBody`.

    key    int16 22355, string group                 the group: epochs, the topics it saw
    key    int16 22356, string group, string member  one member: subscription, epoch, partitions, target; of one of
                                                     the classic protocol also its session timeout and protocols
    key    int16 22357, string group                 the group's own settings, whether it exists or not: {name: value}

A null value deletes. A key that this module does not know is left alone (`Unknown`), a value that does not parse is
`Corrupt`: recovery stops rather than forget a group.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeVar
from uuid import UUID

import msgspec

from waystation.errors import Corrupt
from waystation.groups.machines.classic import ClassicGroup
from waystation.groups.machines.classic_member import ClassicMember
from waystation.groups.machines.consumer import ConsumerGroup
from waystation.groups.machines.consumer_member import ClassicSide, ConsumerMember
from waystation.groups.machines.offsets import Committed
from waystation.groups.machines.reconcile import Holding, Partitions, ReconcilePhase

OFFSET_KEY = 1
CLASSIC_KEY = 2
CONSUMER_KEY = 0x5753  # "WS"
CONSUMER_MEMBER_KEY = 0x5754
CONSUMER_SETTINGS_KEY = 0x5755

Record = tuple[bytes, bytes | None]
Body = TypeVar("Body", bound=msgspec.Struct)


class OffsetKey(msgspec.Struct, frozen=True):
    group_id: str
    topic: str
    partition: int


class ClassicKey(msgspec.Struct, frozen=True):
    group_id: str


class ConsumerKey(msgspec.Struct, frozen=True):
    group_id: str


class ConsumerMemberKey(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class ConsumerSettingsKey(msgspec.Struct, frozen=True):
    group_id: str


class Unknown(msgspec.Struct, frozen=True):
    version: int


RecordKey = OffsetKey | ClassicKey | ConsumerKey | ConsumerMemberKey | ConsumerSettingsKey | Unknown


def partition_for(group_id: str, partitions: int) -> int:
    """The partition a group lives on: Java's String.hashCode, made positive, modulo the count, as in Kafka."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", group_id.encode("utf-16-be", "surrogatepass")):
        code = (31 * code + unit) & 0xFFFFFFFF
    if code == 0x80000000:
        return 0  # Java's abs(Integer.MIN_VALUE) is still negative; Kafka takes 0 for it
    return (code if code < 0x80000000 else 0x100000000 - code) % partitions


# -- offsets -----------------------------------------------------------------------------------------------------


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return struct.pack(">h", OFFSET_KEY) + _string(group_id) + _string(topic) + struct.pack(">i", partition)


def offset_record(group_id: str, topic: str, partition: int, entry: Committed) -> Record:
    if entry.expires_at_ms >= 0:
        head = struct.pack(">hq", 1, entry.offset)
        tail = struct.pack(">qq", entry.committed_at_ms, entry.expires_at_ms)
    else:
        head = struct.pack(">hqi", 3, entry.offset, entry.leader_epoch)
        tail = struct.pack(">q", entry.committed_at_ms)
    return offset_key(group_id, topic, partition), head + _string(entry.metadata) + tail


def read_offset(value: bytes) -> Committed:
    read = _Reader(value)
    version = read.number("h")
    if not 0 <= version <= 3:
        raise Corrupt(f"an offset in __consumer_offsets has value version {version}, we read up to 3")
    offset = read.number("q")
    epoch = read.number("i") if version >= 3 else -1
    metadata = read.string() or ""
    committed_at_ms = read.number("q")
    return Committed(offset, epoch, metadata, committed_at_ms, read.number("q") if version == 1 else -1)


# -- classic groups ----------------------------------------------------------------------------------------------


def classic_key(group_id: str) -> bytes:
    return struct.pack(">h", CLASSIC_KEY) + _string(group_id)


def classic_record(group: ClassicGroup, now_ms: int) -> Record:
    """The group as it is; `now_ms` (wall time) is when it came into this state."""
    members = group.roster.members.values()
    parts = [
        struct.pack(">h", 3),
        _string(group.protocol_type or ""),
        struct.pack(">i", group.generation_id),
        _string(group.protocol_name),
        _string(group.roster.leader if members else None),
        struct.pack(">qi", now_ms, len(members)),
    ]
    for member in members:
        parts += (
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.metadata(group.protocol_name)),
            _bytes(member.assignment),
        )
    return classic_key(group.group_id), b"".join(parts)


def read_classic(value: bytes, group: ClassicGroup) -> None:
    """Puts a record's state into a fresh group."""
    read = _Reader(value)
    version = read.number("h")
    if not 0 <= version <= 3:
        raise Corrupt(f"group {group.group_id!r} in __consumer_offsets has value version {version}, we read up to 3")
    protocol_type = read.string() or ""
    generation_id = read.number("i")
    protocol_name = read.string()
    leader = read.string()
    at_ms = read.number("q") if version >= 2 else -1
    members = [_read_member(read, version, protocol_name) for _ in range(read.number("i"))]
    group.restore(
        generation_id=generation_id,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        leader=leader,
        members=members,
    )
    group.emptied_at_ms = None if members or at_ms < 0 else at_ms


def _read_member(read: _Reader, version: int, protocol_name: str | None) -> ClassicMember:
    member_id = read.string() or ""
    instance_id = read.string() if version >= 3 else None
    client_id, client_host = read.string() or "", read.string() or ""
    rebalance_timeout_ms = read.number("i") if version >= 1 else -1
    session_timeout_ms = read.number("i")
    subscription, assignment = read.blob(), read.blob()
    return ClassicMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_timeout_ms,
        rebalance_timeout_ms if rebalance_timeout_ms >= 0 else session_timeout_ms,
        ((protocol_name or "", subscription),),
        assignment,
    )


# -- KIP-848 groups ----------------------------------------------------------------------------------------------

_Flat = list[tuple[bytes, list[int]]]  # topic id and its partitions


class _GroupBody(msgspec.Struct, array_like=True):
    epoch: int
    assignment_epoch: int
    emptied_at_ms: int
    seen: list[tuple[bytes, int]]


class _MemberBody(msgspec.Struct, array_like=True):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: list[str]
    pattern: str | None
    assignor: str | None
    epoch: int
    previous_epoch: int
    phase: str
    assigned: _Flat
    revoking: _Flat
    target: _Flat
    classic: tuple[int, list[tuple[str, bytes]]] | None = None  # session timeout, protocols


class _SettingsBody(msgspec.Struct, array_like=True):
    own: dict[str, str]


def consumer_key(group_id: str) -> bytes:
    return struct.pack(">H", CONSUMER_KEY) + _string(group_id)


def consumer_member_key(group_id: str, member_id: str) -> bytes:
    return struct.pack(">H", CONSUMER_MEMBER_KEY) + _string(group_id) + _string(member_id)


def consumer_record(group: ConsumerGroup) -> Record:
    body = _GroupBody(
        group.epoch,
        group.assignment_epoch,
        -1 if group.emptied_at_ms is None else group.emptied_at_ms,
        [(topic.bytes, count) for topic, count in sorted(group.seen.items())],
    )
    return consumer_key(group.group_id), struct.pack(">h", 0) + msgspec.msgpack.encode(body)


def consumer_member_record(group_id: str, member: ConsumerMember) -> Record:
    body = _MemberBody(
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        list(member.topics),
        member.pattern,
        member.assignor,
        member.epoch,
        member.previous_epoch,
        member.holding.phase.value,
        _flat(member.holding.assigned),
        _flat(member.holding.revoking),
        _flat(member.target),
        None if member.classic is None else (member.classic.session_timeout_ms, list(member.classic.protocols)),
    )
    return consumer_member_key(group_id, member.member_id), struct.pack(">h", 0) + msgspec.msgpack.encode(body)


def consumer_settings_record(group_id: str, own: Mapping[str, str]) -> Record:
    """None of its own: a tombstone."""
    key = struct.pack(">H", CONSUMER_SETTINGS_KEY) + _string(group_id)
    return key, struct.pack(">h", 0) + msgspec.msgpack.encode(_SettingsBody(dict(own))) if own else None


def read_consumer_settings(value: bytes) -> dict[str, str]:
    return _body(value, _SettingsBody).own


def read_consumer(value: bytes, group: ConsumerGroup) -> None:
    body = _body(value, _GroupBody)
    seen = {UUID(bytes=topic): count for topic, count in body.seen}
    group.restore(epoch=body.epoch, assignment_epoch=body.assignment_epoch, seen=seen)
    group.emptied_at_ms = None if body.emptied_at_ms < 0 else body.emptied_at_ms


def read_consumer_member(value: bytes, member_id: str) -> ConsumerMember:
    body = _body(value, _MemberBody)
    return ConsumerMember(
        member_id,
        body.instance_id,
        body.rack_id,
        body.client_id,
        body.client_host,
        body.rebalance_timeout_ms,
        tuple(body.topics),
        body.pattern,
        body.assignor,
        body.previous_epoch,
        Holding(body.epoch, ReconcilePhase(body.phase), _unflat(body.assigned), _unflat(body.revoking)),
        _unflat(body.target),
        None if body.classic is None else ClassicSide(body.classic[0], tuple(body.classic[1])),
    )


# -- small parts -------------------------------------------------------------------------------------------------


def read_key(key: bytes) -> RecordKey:
    read = _Reader(key)
    version = read.number("h")
    if version in (0, OFFSET_KEY):
        return OffsetKey(read.string() or "", read.string() or "", read.number("i"))
    if version == CLASSIC_KEY:
        return ClassicKey(read.string() or "")
    if version == CONSUMER_KEY:
        return ConsumerKey(read.string() or "")
    if version == CONSUMER_MEMBER_KEY:
        return ConsumerMemberKey(read.string() or "", read.string() or "")
    if version == CONSUMER_SETTINGS_KEY:
        return ConsumerSettingsKey(read.string() or "")
    return Unknown(version)


class _Reader:
    """A cursor over bytes; running off the end is Corrupt."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, kind: str) -> int:
        try:
            (value,) = struct.unpack_from(">" + kind, self._data, self._at)
        except struct.error as error:
            raise Corrupt(f"a record in __consumer_offsets ends too early: {error}") from error
        self._at += struct.calcsize(">" + kind)
        return int(value)

    def string(self) -> str | None:
        length = self.number("h")
        if length < 0:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise Corrupt(f"a record in __consumer_offsets has a string that is not UTF-8: {error}") from error

    def blob(self) -> bytes:
        return self._take(max(self.number("i"), 0))

    def _take(self, length: int) -> bytes:
        taken = self._data[self._at : self._at + length]
        if len(taken) != length:
            raise Corrupt("a record in __consumer_offsets ends too early")
        self._at += length
        return taken


def _string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _flat(partitions: Partitions) -> _Flat:
    topics: dict[bytes, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic.bytes, []).append(partition)
    return list(topics.items())


def _unflat(flat: _Flat) -> Partitions:
    return frozenset((UUID(bytes=topic), partition) for topic, partitions in flat for partition in partitions)


def _body(value: bytes, kind: type[Body]) -> Body:
    version = _Reader(value).number("h")
    if version != 0:
        raise Corrupt(f"a KIP-848 group in __consumer_offsets has value version {version}, we read 0")
    try:
        return msgspec.msgpack.decode(value[2:], type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a KIP-848 group in __consumer_offsets does not parse: {error}") from error
