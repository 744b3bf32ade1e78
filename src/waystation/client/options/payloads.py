"""What the payload is of a value, and the value of a payload. Pure; every face of the client uses it.

A value is bytes (sent as they are), text (UTF-8) or anything that JSON can say; the content type remembers which, so
that `value_of` gives the receiver the same thing back; what JSON would make something else is refused. A message that
has one of the types of `MessageType` is encoded and decoded by it, unless it has a content type of its own. Nothing is
ever pickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from waystation.errors import Invalid

JSON = "application/json"
TEXT = "text/plain"
TYPE_HEADER = "message_type"
"""Where programs say a message's type that know headers and nothing else."""

Value = Any
"""bytes, bytearray, memoryview, str, or anything that JSON can say."""

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode


class MessageType(StrEnum):
    """Types of messages that say what the payload is: UTF-8, bytes, or JSON."""

    TEXT = "text"
    JSON = "json"
    BINARY = "binary"
    COMMAND = "command"
    EVENT = "event"


_TYPES = {kind.value: kind for kind in MessageType}


def message_type(name: Any) -> MessageType | None:
    """The type of that name; None if it is the sender's own."""
    return _TYPES.get(name) if isinstance(name, str) else None


def encode_value(value: Value) -> tuple[bytes, str | None]:
    """The payload and its content type; bytes have none."""
    if isinstance(value, bytes):
        return value, None
    if isinstance(value, str):
        return encode_text("payload", value), TEXT
    if isinstance(value, bytearray | memoryview):
        return bytes(value), None
    try:
        payload = _encode_json(value)
    except (TypeError, ValueError) as error:
        raise Invalid(f"payload: {_of_type(value)} is not bytes, text or JSON ({error}); encode it yourself") from None
    _check_unchanged(value, payload)
    return payload, JSON


_SCALARS: frozenset[type] = frozenset((str, int, bool, type(None)))
_PLAIN: frozenset[type] = _SCALARS | {float}


def _check_unchanged(value: Any, payload: bytes) -> None:
    """Raises Invalid for what JSON says as something that nobody would know again: NaN and infinity (null), sets
    (lists), bytes (base64), keys that are not text.

    What became of it says much: a float matters only if there is a null, and where no bracket is inside of another and
    no text, there is no set and no bytes in a list. So a flat dict is one loop over its items, and a long list of
    numbers no loop at all.
    """
    plain = _SCALARS if b"null" in payload else _PLAIN
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or type(item) not in plain:
                break
        else:
            return
    elif kind in plain or (
        kind is list and plain is _PLAIN and b'"' not in payload and b"{" not in payload and payload.count(b"[") == 1
    ):
        return
    _check_each(value, plain)


def _check_each(value: Any, plain: frozenset[type]) -> None:
    """Looks into everything but what is only of the types `plain`; containers as wholes, by the types in them."""
    left: list[Iterable[Any]] = [(value,)]
    while left:
        for item in left.pop():
            if type(item) in plain:
                continue
            if isinstance(item, float):
                if not math.isfinite(item):
                    raise Invalid(f"payload: JSON has no {item}; send a text, or None")
            elif isinstance(item, dict):
                for key in item:
                    if not isinstance(key, str):
                        raise Invalid(f"payload: the key {key!r:.60} would become text in JSON; use text as keys")
                if not plain.issuperset(map(type, item.values())):
                    left.append(item.values())
            elif isinstance(item, list | tuple):
                if not plain.issuperset(map(type, item)):
                    left.append(item)
            elif isinstance(item, set | frozenset):
                raise Invalid(f"payload: {_of_type(item)} would become a list in JSON; send a list")
            elif isinstance(item, bytes | bytearray | memoryview):
                raise Invalid("payload: bytes inside of JSON would become text; encode them yourself")


def encode_text(name: str, text: str) -> bytes:
    """UTF-8; raises Invalid for what it cannot say, which names of files may have."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{name}: {text[error.start]!a} is no character of UTF-8 ({error.reason}); send bytes") from None


def encode_json(value: Any) -> bytes:
    """JSON, also of a text or of bytes (base64)."""
    try:
        payload = _encode_json(value)
    except (TypeError, ValueError) as error:
        raise Invalid(f"payload: {_of_type(value)} is not JSON ({error})") from None
    if not isinstance(value, bytes | bytearray | memoryview):
        _check_unchanged(value, payload)
    return payload


def encode_as(kind: MessageType, value: Value) -> tuple[bytes, str | None]:
    """The payload of a value, as its type wants it, and the content type. Bytes are encoded already.

    Raises Invalid for a value that the type cannot say, and for bytes that are not what it says.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return _checked_bytes(kind, bytes(value))
    if kind is MessageType.BINARY or (kind is MessageType.TEXT and not isinstance(value, str)):
        what = "bytes" if kind is MessageType.BINARY else "text"
        raise Invalid(f"payload: {_of_type(value)} is not {what}, which a message of the type {kind} has")
    return (encode_text("payload", value), TEXT) if kind is MessageType.TEXT else (encode_json(value), JSON)


def _checked_bytes(kind: MessageType, payload: bytes) -> tuple[bytes, str | None]:
    """A command or an event may be in a format of its own."""
    if kind is MessageType.TEXT:
        decode_text(payload)
        return payload, TEXT
    if kind is MessageType.JSON:
        decode_json(payload)
        return payload, JSON
    return payload, None


def value_of(payload: bytes, content_type: str | None, type: str | None = None) -> Value:
    """The payload as its content type says, or else its type: JSON decoded, text as str, everything else as bytes."""
    if content_type is None:
        return _value_as(message_type(type), payload)
    base = content_type.partition(";")[0].strip().lower()
    if base == JSON or base.endswith("+json"):
        return decode_json(payload)
    if base.startswith("text/"):
        return decode_text(payload)
    return payload


def _value_as(kind: MessageType | None, payload: bytes) -> Value:
    if kind is MessageType.TEXT:
        return decode_text(payload)
    if kind is MessageType.JSON:
        return decode_json(payload)
    if kind is MessageType.COMMAND or kind is MessageType.EVENT:
        try:
            return _decode_json(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return payload  # it is in a format of its own
    return payload


def decode_json(payload: bytes) -> Any:
    try:
        return _decode_json(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"payload: {len(payload)} bytes that are no JSON ({error}); use .payload or .text()") from None


def decode_text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"payload: {len(payload)} bytes that are no UTF-8 ({error.reason}); use .payload") from None


def _of_type(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
