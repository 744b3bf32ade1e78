"""How share groups are written in `__share_group_state`.

Keys begin with an int16 that says what they are of; a *string* is an int16 length and UTF-8; all integers are
big-endian. Values are an int16 version (0) and a MessagePack array, the fields in the order of the structs.

    key    int16 1, string group                                    `GroupBody`: the group is there
    key    int16 2, string group                                    `SettingsBody`: the group's own settings
    key    int16 3, string group, 16 bytes topic id, int32 index    `share_partition.Saved`: one partition of it

A null value deletes. Settings are kept apart from the group, because they may be there before it and outlive it.
"""

from __future__ import annotations

import struct
from typing import TypeVar
from uuid import UUID

import msgspec

from waystation.errors import Corrupt
from waystation.share.machines.delivery import Saved

GROUP, SETTINGS, PARTITION = 1, 2, 3

_HEAD = struct.Struct(">hh")
_INDEX = struct.Struct(">i")
_VERSION = struct.pack(">h", 0)

Body = TypeVar("Body", bound=msgspec.Struct)

_encoder = msgspec.msgpack.Encoder()


class GroupBody(msgspec.Struct, array_like=True):
    """`epoch`: the group's epoch when this was written; it goes on above it after a restart. `ours`: protocols other
    than Kafka's have had members in it."""

    epoch: int
    ours: bool = False


class SettingsBody(msgspec.Struct, array_like=True):
    own: dict[str, str]


class ShareKey(msgspec.Struct, frozen=True):
    """What a record is about. `topic_id` and `index` of partitions only."""

    kind: int
    group_id: str
    topic_id: UUID | None = None
    index: int = -1

    def encode(self) -> bytes:
        name = self.group_id.encode()
        head = _HEAD.pack(self.kind, len(name)) + name
        return head if self.topic_id is None else head + self.topic_id.bytes + _INDEX.pack(self.index)


def read_key(key: bytes) -> ShareKey | None:
    """None for a kind that a later version has written."""
    try:
        kind, length = _HEAD.unpack_from(key)
        end = _HEAD.size + length
        group_id = key[_HEAD.size : end].decode()
        if kind in (GROUP, SETTINGS):
            return ShareKey(kind, group_id)
        if kind != PARTITION:
            return None
        return ShareKey(kind, group_id, UUID(bytes=key[end : end + 16]), int(_INDEX.unpack_from(key, end + 16)[0]))
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise Corrupt(f"a key in __share_group_state does not parse: {error}") from error


def write_value(body: GroupBody | SettingsBody | Saved) -> bytes:
    return _VERSION + _encoder.encode(body)


def read_value(value: bytes, kind: type[Body]) -> Body:
    if value[:2] != _VERSION:
        raise Corrupt(f"a value in __share_group_state has version {value[:2].hex()}, we read 0")
    try:
        return msgspec.msgpack.decode(value[2:], type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a value in __share_group_state does not parse: {error}") from error
