"""From what a caller says to a message, and back: values, seconds, times. Pure; every face of the client uses it.

A value is bytes (sent as they are), text (UTF-8) or anything that JSON can say; the content type remembers which, so
that `value_of` gives the receiver the same thing back; what JSON would make something else is refused. Nothing is ever
pickled. Durations are seconds or `timedelta`
outside and milliseconds inside; a wrong one is refused here, by the name that the caller knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, cast
from uuid import uuid4

import msgspec

from waystation.errors import Invalid
from waystation.message import Message, check_message

JSON = "application/json"
TEXT = "text/plain"

Value = Any
"""bytes, bytearray, memoryview, str, or anything that JSON can say."""
Seconds = float | int | timedelta
Moment = datetime | float | int
"""A time: a datetime (one without a time zone is local time) or seconds since 1970."""

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode


class OrderedOptions(TypedDict, total=False):
    """What may be said of messages that stay in order: all of `MessageOptions` but the key and delays."""

    headers: Mapping[str, Any] | None
    priority: int
    ttl: Seconds | None
    id: str | None
    type: str | None
    content_type: str | None
    correlation_id: str | None
    reply_to: str | None
    max_deliveries: int
    timestamp: Moment | None


class MessageOptions(OrderedOptions, total=False):
    """What may be said of a message beside its value.

    `key` decides the partition in a topic. `priority` is 0 (last) to 9 (first), or to 255 in a queue that tells more
    apart. `delay` is seconds from now until it may be delivered, `deliver_at` the time itself. After `ttl` seconds it
    is no longer delivered. `id` is what deduplication, `find` and `cancel` go by. `type` is free (`"event"`,
    `"command"`…); `max_deliveries` wins over the queue's. `timestamp` is when it happened, if that is not now.
    """

    key: str | bytes | None
    delay: Seconds | None
    deliver_at: Moment | None


def encode_value(value: Value) -> tuple[bytes, str | None]:
    """The payload and its content type; bytes have none."""
    if isinstance(value, bytes):
        return value, None
    if isinstance(value, str):
        return value.encode(), TEXT
    if isinstance(value, bytearray | memoryview):
        return bytes(value), None
    try:
        payload = _encode_json(value)
    except (TypeError, ValueError) as error:
        raise Invalid(
            f"payload: a {type(value).__name__} is neither bytes nor text nor JSON ({error}); encode it yourself"
        ) from None
    _check_unchanged(value, payload)
    return payload, JSON


_SCALARS: frozenset[type] = frozenset((str, int, bool, type(None)))
_PLAIN: frozenset[type] = _SCALARS | {float}


def _check_unchanged(value: Any, payload: bytes) -> None:
    """Raises Invalid for what JSON says as something else: NaN and infinity (null), sets (lists), keys that are not
    text.

    What became of it says much: a float matters only if there is a null, and where no bracket is inside of another,
    there is no set in a list. So a flat dict is one loop over its items, and a long list of numbers no loop at all.
    """
    plain = _SCALARS if b"null" in payload else _PLAIN
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or type(item) not in plain:
                break
        else:
            return
    elif kind in plain or (kind is list and plain is _PLAIN and b"{" not in payload and payload.count(b"[") == 1):
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
                raise Invalid(f"payload: a {type(item).__name__} would become a list in JSON; send a list")


def value_of(payload: bytes, content_type: str | None) -> Value:
    """The payload as its content type says: JSON decoded, text as str, everything else as bytes."""
    if content_type is None:
        return payload
    base = content_type.partition(";")[0].strip().lower()
    if base == JSON or base.endswith("+json"):
        return decode_json(payload)
    if base.startswith("text/"):
        return decode_text(payload)
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


def make_message(value: Value, options: MessageOptions) -> Message:
    """The message of a value and what is said of it; raises Invalid, naming the option."""
    payload, content_type = (value, None) if type(value) is bytes else encode_value(value)
    if not options:
        return Message(payload, content_type=content_type)
    unknown = options.keys() - MessageOptions.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"a message has no option {min(unknown)!r}; there are {', '.join(MessageOptions.__annotations__)}"
        )
    if options.get("delay") and options.get("deliver_at") is not None:
        raise Invalid("delay: give either delay or deliver_at, not both")
    message = Message(
        payload,
        id=_text("id", options.get("id")),
        key=encode_key(options.get("key")),
        headers=_headers(options.get("headers")),
        priority=whole_number("priority", options.get("priority") or 0),
        delay_ms=milliseconds("delay", options.get("delay")) or 0,
        deliver_at_ms=moment_ms("deliver_at", options.get("deliver_at")),
        ttl_ms=milliseconds("ttl", options.get("ttl")),
        correlation_id=_text("correlation_id", options.get("correlation_id")),
        reply_to=_text("reply_to", options.get("reply_to")),
        content_type=_text("content_type", options.get("content_type")) or content_type,
        type=_text("type", options.get("type")),
        max_deliveries=whole_number("max_deliveries", options.get("max_deliveries") or 0),
        timestamp_ms=moment_ms("timestamp", options.get("timestamp")),
    )
    check_message(message)
    return message


def outgoing(values: Iterable[Value], options: MessageOptions) -> Iterator[Message]:
    """Messages of values; those that are messages already stay as they are."""
    for value in values:
        yield value if isinstance(value, Message) else make_message(value, options)


def ordered(key: str | bytes, values: Iterable[Value], options: OrderedOptions) -> Iterator[Message]:
    """Messages that stay in order by their key; raises Invalid for one with another key, or with a delay."""
    wanted = encode_key(key)
    if wanted is None:
        raise Invalid("key: messages that stay in order need one")
    for message in outgoing(values, cast(MessageOptions, options)):
        if message.delay_ms or message.deliver_at_ms is not None:
            raise Invalid("delay: messages that stay in order cannot be delayed")
        if message.key is None:
            message = msgspec.structs.replace(message, key=wanted)
        elif message.key != wanted:
            raise Invalid(f"key: {message.key!r:.60} is not {wanted!r:.60}, the key that keeps these messages in order")
        yield message


def with_id(message: Message, guarantee: str) -> Message:
    """Exactly once needs an id by which the broker knows a message that it gets again."""
    if guarantee != "exactly-once" or message.id is not None:
        return message
    return msgspec.structs.replace(message, id=uuid4().hex)


def encode_json(value: Any) -> bytes:
    """JSON, also of a text or of bytes (base64)."""
    try:
        payload = _encode_json(value)
    except (TypeError, ValueError) as error:
        raise Invalid(f"payload: a {type(value).__name__} is not JSON ({error})") from None
    _check_unchanged(value, payload)
    return payload


def encode_key(key: str | bytes | None) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    raise Invalid(f"key: a {type(key).__name__} is neither text nor bytes")


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise Invalid(f"{name}: {value!r:.60} is not text")


def whole_number(name: str, value: Any) -> int:
    """What was given as a count; raises Invalid, naming it. A truth value is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise Invalid(f"{name}: {value!r:.60} is not a whole number")


def _headers(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    if not headers:
        return {}
    if not isinstance(headers, Mapping):
        raise Invalid(f"headers: {headers!r:.60} is not a mapping of names to values")
    for name, value in headers.items():
        if not isinstance(name, str):
            raise Invalid(f"headers: the name {name!r} is not text")
        if not _can_be_header(value):
            raise Invalid(
                f"headers: {name} is a {type(value).__name__}; use text, bytes, numbers, lists or dicts of them"
            )
    return dict(headers)


def _can_be_header(value: Any) -> bool:
    if value is None or isinstance(value, str | bytes | float):
        return True
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    if isinstance(value, list | tuple):
        return all(map(_can_be_header, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _can_be_header(inner) for name, inner in value.items())
    return False


def milliseconds(name: str, value: Seconds | None) -> int | None:
    """Seconds as milliseconds, rounded up so that nothing is early; raises Invalid for what is below zero."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise Invalid(f"{name}: {value!r} is neither seconds nor a timedelta")
    if not 0 <= seconds < 1e12:
        raise Invalid(f"{name}: {seconds:g} seconds is no duration; it counts from now, in seconds")
    # 4.035 * 1000 is a hair above 4035: that is no millisecond more.
    return -int(-round(seconds * 1000, 2) // 1)


def moment_ms(name: str, value: Moment | None) -> int | None:
    """A time as milliseconds since 1970."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e13:
        return round(value * 1000)
    raise Invalid(f"{name}: {value!r} is neither a datetime nor seconds since 1970")


def moment(ms: int) -> datetime:
    """Milliseconds since 1970 as a datetime in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
