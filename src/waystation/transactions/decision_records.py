"""A decision as `__transaction_state` holds it: under a name, which staged transactions were committed together.

The key has a version of its own (`DECISION_KEY_VERSION`), far above Kafka's, like the reservation of producer ids in
`records.py`. The value is all there is to know: the sequence, when it was decided, and every transaction that it
commits. The next decision under the same name replaces it, so compaction by key keeps what fencing needs.

    key:   version i16 · length u16 · name
    value: version i16 (0) · sequence i64 · decided at i64 (epoch ms) · count i32 ·
           count x (length u16 · transactional id · producer id i64 · epoch i16)

Called by the coordinator's table and by `decisions.py`. Bytes that do not decode raise Corrupt.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from waystation.errors import Corrupt, NewerFormat
from waystation.transactions.machine import Producer

DECISION_KEY_VERSION = 0x5001

_KEY = struct.Struct(">hH")
_HEAD = struct.Struct(">hqqi")
_LENGTH = struct.Struct(">H")
_PRODUCER = struct.Struct(">qh")


class Staged(NamedTuple):
    """A transaction that waits, complete, for somebody to decide: whose it is and who wrote it."""

    transactional_id: str
    producer_id: int
    epoch: int

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.epoch)


class Decision(msgspec.Struct, frozen=True):
    """All of these commit. `sequence` only grows under one name."""

    name: str
    sequence: int
    decided_ms: int
    staged: tuple[Staged, ...]


def encode_decision_key(name: str) -> bytes:
    return encode_name_key(DECISION_KEY_VERSION, name)


def encode_name_key(version: int, name: str) -> bytes:
    """The key of a record of ours that is about a name."""
    text = name.encode()
    return _KEY.pack(version, len(text)) + text


def encode_decision(decision: Decision) -> tuple[bytes, bytes]:
    """The record: key and value."""
    parts = [_HEAD.pack(0, decision.sequence, decision.decided_ms, len(decision.staged))]
    for staged in decision.staged:
        text = staged.transactional_id.encode()
        parts += [_LENGTH.pack(len(text)), text, _PRODUCER.pack(staged.producer_id, staged.epoch)]
    return encode_decision_key(decision.name), b"".join(parts)


def decode_decision_key(key: bytes) -> str | None:
    """The name, or None if this is a key of another kind."""
    return decode_name_key(DECISION_KEY_VERSION, key, "decision")


def decode_name_key(version: int, key: bytes, what: str) -> str | None:
    """The name, or None if this is a key of another kind."""
    if len(key) < 2 or int.from_bytes(key[:2], "big") != version:
        return None
    try:
        _, length = _KEY.unpack_from(key)
        text = key[_KEY.size :]
        if len(text) != length:
            raise Corrupt(f"the key of a {what} says {length} bytes and has {len(text)}")
        return text.decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise Corrupt(f"the key of a {what} does not decode: {error}") from error


def decode_decision(name: str, value: bytes) -> Decision:
    try:
        version, sequence, decided_ms, count = _HEAD.unpack_from(value)
        if version != 0:
            raise NewerFormat(f"the decision of {name!r} has version {version}; known is 0")
        staged: list[Staged] = []
        at = _HEAD.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(value, at)
            at += _LENGTH.size
            text = value[at : at + length]
            at += length
            staged.append(Staged(text.decode(), *_PRODUCER.unpack_from(value, at)))
            at += _PRODUCER.size
    except (struct.error, UnicodeDecodeError) as error:
        raise Corrupt(f"the decision of {name!r} does not decode: {error}") from error
    if at != len(value):
        raise Corrupt(f"the decision of {name!r} has {len(value) - at} bytes after its end")
    return Decision(name, sequence, decided_ms, tuple(staged))
