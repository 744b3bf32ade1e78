"""What consumers of a classic group tell each other by way of the broker, with other names of topics in it. Pure.

A member's metadata (ConsumerProtocolSubscription) and assignment (ConsumerProtocolAssignment) are bytes to the
protocol, but the broker reads them: to show them, and when a group changes to the new protocol. So they have the full
names there that everything else has. Bytes that are something else, as those of Kafka Connect, stay as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

Translate = Callable[[str], str]

_HEAD = struct.Struct(">hi")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")


class _Other(Exception):
    """It is something else."""


def subscription(data: bytes, topic: Translate) -> bytes:
    """Version, names, the client's own data, and from version 1 on the partitions that it has."""
    try:
        version, count = _HEAD.unpack_from(data)
        names, at = _named(data, _HEAD.size, count, topic, partitions=False)
        begin = at
        if at < len(data):
            at += _I32.size + max(0, _I32.unpack_from(data, at)[0])
        own = data[begin:at]
        if version < 1 or at >= len(data):
            return b"".join((data[: _HEAD.size], names, data[begin:]))
        held = _I32.unpack_from(data, at)[0]
        owned, end = _named(data, at + _I32.size, held, topic, partitions=True)
        return b"".join((data[: _HEAD.size], names, own, data[at : at + _I32.size], owned, data[end:]))
    except (struct.error, UnicodeDecodeError, _Other):
        return data


def assignment(data: bytes, topic: Translate) -> bytes:
    """Version, names with partitions, and the client's own data."""
    try:
        _, count = _HEAD.unpack_from(data)
        named, end = _named(data, _HEAD.size, count, topic, partitions=True)
        return b"".join((data[: _HEAD.size], named, data[end:]))
    except (struct.error, UnicodeDecodeError, _Other):
        return data


def _named(data: bytes, at: int, count: int, topic: Translate, *, partitions: bool) -> tuple[bytes, int]:
    """(names, each perhaps with its partitions, translated; where they end)."""
    if count < 0 or count > len(data):
        raise _Other
    parts: list[bytes] = []
    for _ in range(count):
        (length,) = _I16.unpack_from(data, at)
        begin, at = at + _I16.size, at + _I16.size + length
        if length < 0 or at > len(data):
            raise _Other
        name = topic(data[begin:at].decode()).encode()
        parts += (_I16.pack(len(name)), name)
        if partitions:
            begin, (number,) = at, _I32.unpack_from(data, at)
            at += _I32.size + _I32.size * number
            if number < 0 or at > len(data):
                raise _Other
            parts.append(data[begin:at])
    return b"".join(parts), at
