"""From what a caller says to a message, and back: options, seconds, times. Pure; every face of the client uses it.

What the payload is of a value is in `payloads.py`. Durations are seconds or `timedelta` outside and milliseconds
inside; a wrong one is refused here, by the name that the caller knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, TypedDict
from uuid import uuid4

import msgspec

from waystation.client.options.payloads import Value, encode_as, encode_text, encode_value, message_type
from waystation.errors import Invalid
from waystation.message import HIGHEST_PRIORITY, Message, check_message

Seconds = float | int | timedelta
Moment = datetime | float | int
"""A time: a datetime (one without a time zone is local time) or seconds since 1970."""


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
    """Options of a message beside its value.

    `key` decides the partition in a topic. `priority` is 0 (last) to 9 (first), or to 255 in a queue with a higher
    `max_priority`. `delay` is seconds from now until it may be delivered, `deliver_at` the time itself. After `ttl`
    seconds it is no longer delivered. `id` is used by deduplication, `find` and `cancel`. `type` is any text, or one of
    `MessageType`, by which the value is encoded and decoded, unless a `content_type` is given. `max_deliveries`
    overrides the queue's. `timestamp` is the event time, if that is not now."""

    key: str | bytes | None
    delay: Seconds | None
    deliver_at: Moment | None


def make_message(value: Value, options: MessageOptions) -> Message:
    """The message of a value and what is said of it; raises Invalid, naming the option. A value that is a message
    already stays as it is."""
    if not options and type(value) is bytes:  # first, since it is what fast senders send: 0.2 µs instead of 0.4 µs
        return Message(value)
    if isinstance(value, Message):
        if options:
            raise Invalid(f"{min(options)}: what is sent is a message already, which says so itself")
        return value
    said = _text("type", options.get("type"))
    kind = message_type(said) if said is not None and options.get("content_type") is None else None
    if kind is not None:
        payload, content_type = encode_as(kind, value)
    else:
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
        type=said if kind is None else kind.value,
        max_deliveries=whole_number("max_deliveries", options.get("max_deliveries") or 0),
        timestamp_ms=moment_ms("timestamp", options.get("timestamp")),
    )
    check_message(message)
    return message


def outgoing(values: Iterable[Value], options: MessageOptions) -> Iterator[Message]:
    """Messages of values; those that are messages already stay as they are."""
    for value in values:
        yield value if isinstance(value, Message) else make_message(value, options)


def message_defaults(priority: int | None, ttl: Seconds | None) -> MessageOptions:
    """What a client says of every message of which nothing else is said; raises Invalid, naming the option."""
    defaults: MessageOptions = {}
    if priority is not None:
        if not 0 <= whole_number("default_priority", priority) <= HIGHEST_PRIORITY:
            raise Invalid(f"default_priority: {priority} is not between 0 and {HIGHEST_PRIORITY}")
        defaults["priority"] = priority
    if ttl is not None:
        if not milliseconds("default_ttl", ttl):
            raise Invalid("default_ttl: a time to live of 0 seconds is none")
        defaults["ttl"] = ttl
    return defaults


def ordered(key: str | bytes, messages: Iterable[Message]) -> Iterator[Message]:
    """Messages that stay in order by their key; raises Invalid for one with another key, or with a delay."""
    wanted = encode_key(key)
    if wanted is None:
        raise Invalid("key: messages that stay in order need one")
    for message in messages:
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


def encode_key(key: str | bytes | None) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return encode_text("key", key)
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
            raise Invalid(f"headers: {name} is {_kind(value)}; use text, bytes, numbers, lists or dicts of them")
    return dict(headers)


def _kind(value: Any) -> str:
    if isinstance(value, float | list | tuple | dict):  # it, or something in it, cannot be one
        return f"{value!r:.60}"
    return f"a {type(value).__name__}"


def _can_be_header(value: Any) -> bool:
    if value is None or isinstance(value, str | bytes):
        return True
    if isinstance(value, float):
        return isfinite(value)  # JSON has no others: some receivers would read null
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
        raise Invalid(f"{name}: {seconds:g} is not a duration: give seconds from now, 0 or more")
    # 4.035 * 1000 is a hair above 4035: that is no millisecond more.
    return -int(-round(seconds * 1000, 2) // 1)


_LONGEST_WAIT_S = 3e9


def seconds(name: str, value: float | None) -> float | None:
    """How long to wait; raises Invalid, naming it."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value == value):
        return value
    raise Invalid(f"{name}: {value!r:.60} is not a number of seconds")


def wait_s(name: str, value: float | None) -> float | None:
    """The same for clocks that know no more than a lifetime; None: for ever."""
    value = seconds(name, value)
    return None if value is None or value > _LONGEST_WAIT_S else value


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
