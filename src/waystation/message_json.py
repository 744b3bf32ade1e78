"""A message as a JSON object: one form for every protocol that speaks JSON (JSON lines, HTTP, WebSocket).

The fields are those of `Message` by name. Bytes have three spellings: `payload` is text; `payload` beside
`"encoding": "base64"`, or `payload_base64`, is anything; `json` is a JSON value, stored as its JSON. What comes out
always has `payload`, with `"encoding": "base64"` only where the bytes are not UTF-8. Keys and headers that are not
UTF-8 are in `key_base64` and `headers_base64`. So every message survives the way out and in again, byte for byte; only
moments in headers, which JSON does not have, become text.

Nothing here knows a protocol; whoever holds decoded JSON may call it.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from waystation.errors import Invalid, nearest_field
from waystation.message import Delivered, Message, check_message, check_sent

JSON_TYPE = "application/json"

_TEXTS = (
    "id",
    "correlation_id",
    "reply_to",
    "content_type",
    "type",
    "exchange",
    "routing_key",
    "content_encoding",
    "user_id",
    "app_id",
)
_NUMBERS = ("priority", "delay_ms", "deliver_at_ms", "ttl_ms", "max_deliveries", "timestamp_ms", "delivery_mode")
_ZERO_SAYS_NOTHING = ("priority", "delay_ms", "max_deliveries", "delivery_mode")
HIGHEST_DELIVERY_MODE = 255
_BYTES = ("payload", "payload_base64", "encoding", "json", "key", "key_base64", "headers", "headers_base64")
_OF_DELIVERY = frozenset(
    (
        "tag",
        "deliveries",
        "taken_ms",
        "source",
        "partition",
        "offset",
        "queue",
        "state",
        "place",
        "ready_at_ms",
        "deaths",
    )
)
"""What a receiver's object has beyond a sender's: taken and left aside, so that what came in can be sent on."""

FIELDS = frozenset(_TEXTS + _NUMBERS + _BYTES)

_encode_json = msgspec.json.Encoder().encode


def from_json_object(given: object) -> Message:
    """The message that a JSON object describes. Raises Invalid, naming the field, unless it makes sense."""
    if not isinstance(given, Mapping):
        raise Invalid(f"message: must be a JSON object, not {_kind(given)}")
    for name in given:
        if name not in FIELDS and name not in _OF_DELIVERY:
            raise Invalid(f"{str(name)[:60]}: a message has no such field{nearest_field(str(name)[:60], FIELDS)}")
    fields: dict[str, Any] = {name: _checked(given, name, _text) for name in _TEXTS if name in given}
    fields.update((name, _checked(given, name, _number)) for name in _NUMBERS if name in given)
    for name in _ZERO_SAYS_NOTHING:
        if fields.get(name, 0) is None:
            del fields[name]  # null says nothing
    if "json" in given and fields.get("content_type") is None:
        fields["content_type"] = JSON_TYPE
    message = Message(payload=_payload(given), key=_key(given), headers=_headers(given), **fields)
    check_message(message)
    if not 0 <= message.delivery_mode <= HIGHEST_DELIVERY_MODE:
        raise Invalid(f"delivery_mode: {message.delivery_mode} is not between 0 and {HIGHEST_DELIVERY_MODE}")
    return message


def from_sender(given: object) -> Message:
    """The message that a client sends: as `from_json_object`, but Invalid if it says one thing twice. What it received
    it may send on as it is."""
    message = from_json_object(given)
    if isinstance(given, Mapping) and _OF_DELIVERY.isdisjoint(given):
        check_sent(message)
    return message


def to_json_object(message: Message | Delivered, queue: str = "") -> dict[str, Any]:
    """The JSON object of a message, without what it leaves unsaid.

    A delivered one has its delivery's fields too, and always an id: its own, or the one that the broker knows it by
    (`QUEUE#TAG` where `queue` names the queue it came from, `TOPIC-PARTITION@OFFSET` where it came from a topic).
    """
    if isinstance(message, Delivered):
        return _delivered(message, queue)
    found: dict[str, Any] = {}
    if message.id is not None:
        found["id"] = message.id
    _put_bytes(found, message)
    for name in _TEXTS[1:]:
        value = getattr(message, name)
        if value is not None:
            found[name] = value
    for name in _NUMBERS:
        value = getattr(message, name)
        if value is not None and (value or name not in _ZERO_SAYS_NOTHING):
            found[name] = value
    return found


def _delivered(delivered: Delivered, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = {"id": id_of(delivered, queue)}
    found.update(to_json_object(delivered.message))
    if found["id"] is None:
        del found["id"]
    found["tag"] = delivered.tag
    found["deliveries"] = delivered.deliveries
    found["taken_ms"] = delivered.taken_ms
    if queue:
        found["queue"] = queue
    if delivered.source:
        found["source"] = delivered.source
    if delivered.offset >= 0:
        found["partition"] = delivered.partition
        found["offset"] = delivered.offset
    return found


def id_of(delivered: Delivered, queue: str = "") -> str | None:
    """What a message is known by: its own id, or where it is."""
    if delivered.message.id is not None:
        return delivered.message.id
    if delivered.offset >= 0:
        return f"{delivered.source}-{delivered.partition}@{delivered.offset}"
    return f"{queue}#{delivered.tag}" if queue else None


# -- out ---------------------------------------------------------------------------------------------------------------


def _put_bytes(found: dict[str, Any], message: Message) -> None:
    text = _as_text(message.payload)
    if text is None:
        found["payload"] = b64encode(message.payload).decode()
        found["encoding"] = "base64"
    else:
        found["payload"] = text
    if message.key is not None:
        text = _as_text(message.key)
        if text is None:
            found["key_base64"] = b64encode(message.key).decode()
        else:
            found["key"] = text
    if not message.headers:
        return
    plain: dict[str, Any] = {}
    encoded: dict[str, Any] = {}
    for name, value in message.headers.items():
        if type(value) in _SCALARS:
            plain[name] = value
        elif isinstance(value, bytes):
            encoded[name] = b64encode(value).decode()
        elif isinstance(value, list) and _has_bytes(value):
            encoded[name] = [None if each is None else b64encode(_as_bytes(each)).decode() for each in value]
        else:
            plain[name] = _as_json(value)
    if plain:
        found["headers"] = plain
    if encoded:
        found["headers_base64"] = encoded


def _has_bytes(values: list[Any]) -> bool:
    """Whether it is a list of bytes, as several headers of a Kafka record are, some of which may be text."""
    return any(isinstance(each, bytes) for each in values) and all(
        each is None or isinstance(each, str | bytes) for each in values
    )


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode(errors="replace") if isinstance(value, str) else value


_SCALARS = frozenset((str, int, float, bool, type(None)))


def _as_json(value: Any) -> Any:
    """What a header holds that JSON does not have: moments are text (ISO 8601), bytes deep inside base64."""
    return msgspec.json.decode(_encode_json_like(value))


def _spelled(value: object) -> str:
    return b64encode(value.data).decode() if isinstance(value, msgspec.msgpack.Ext) else str(value)


_encode_json_like = msgspec.json.Encoder(enc_hook=_spelled).encode


def _as_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


# -- in ----------------------------------------------------------------------------------------------------------------


def _payload(given: Mapping[str, Any]) -> bytes:
    spellings = [name for name in ("payload", "payload_base64", "json") if name in given]
    if len(spellings) != 1:
        raise Invalid(
            "payload: is missing; give payload (text), payload_base64 or json"
            if not spellings
            else f"payload: is given twice, as {' and '.join(spellings)}"
        )
    encoding = given.get("encoding")
    if encoding not in (None, "base64", "utf-8") or (encoding and spellings != ["payload"]):
        raise Invalid("encoding: is 'base64' or 'utf-8', and says how payload is written")
    if "json" in given:
        return _json(given["json"])
    if "payload_base64" in given:
        return _base64("payload_base64", given["payload_base64"])
    value = given["payload"]
    if not isinstance(value, str):
        raise Invalid(f"payload: must be text, not {_kind(value)}; give a JSON value as json, bytes as payload_base64")
    return _base64("payload", value) if encoding == "base64" else _utf8("payload", value)


def _json(value: Any) -> bytes:
    try:
        return _encode_json(value)
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise Invalid(f"json: cannot be written as JSON: {error}") from None


def _key(given: Mapping[str, Any]) -> bytes | None:
    if given.get("key_base64") is not None:
        if given.get("key") is not None:
            raise Invalid("key: is given twice, as key and key_base64")
        return _base64("key_base64", given["key_base64"])
    value = _checked(given, "key", _text)
    return None if value is None else _utf8("key", value)


def _headers(given: Mapping[str, Any]) -> dict[str, Any]:
    headers = dict(_checked(given, "headers", _object) or {})
    for name in headers:
        if not isinstance(name, str):
            raise Invalid(f"headers: a name must be text, not {_kind(name)}")
        _utf8("headers", name)
        _json_like(headers[name], name)
    for name, value in (_checked(given, "headers_base64", _object) or {}).items():
        field = f"headers_base64.{name}"
        if isinstance(value, list):
            headers[name] = [None if each is None else _base64(field, each) for each in value]
        else:
            headers[name] = _base64(field, value)
    return headers


def _json_like(value: Any, name: str) -> None:
    """A value that no encoder can write would be found out only when the message is stored."""
    if isinstance(value, str):
        _utf8(f"headers.{name}", value)
    elif value is not None and not isinstance(value, bool | float):
        try:
            msgspec.msgpack.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Invalid(f"headers.{name}: {error}") from None


def _checked(given: Mapping[str, Any], name: str, check: Callable[[str, Any], Any]) -> Any:
    value = given.get(name)
    return None if value is None else check(name, value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{name}: must be text, not {_kind(value)}")
    _utf8(name, value)
    return value


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{name}: must be a whole number, not {_kind(value)}")
    if isinstance(value, float) and not value.is_integer():
        raise Invalid(f"{name}: must be a whole number, not {value}")
    if not -(2**63) <= value < 2**63:
        raise Invalid(f"{name}: {value:.3g} is out of range")
    return int(value)


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Invalid(f"{name}: must be a JSON object, not {_kind(value)}")
    return value


def _utf8(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{name}: has half of a surrogate pair, which no text can have") from None


def _base64(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise Invalid(f"{name}: must be base64 text, not {_kind(value)}")
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"{name}: is not base64: {error}") from None


def _kind(value: object) -> str:
    """What JSON calls it."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "an array", dict: "an object"}
    return names.get(type(value), type(value).__name__)
