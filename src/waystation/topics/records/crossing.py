"""How a message crosses into a topic and back: `Message` ↔ Kafka record, as one table.

The table (`CROSSINGS`) is the law; `docs/reference/crossing.md` is checked against it by a test. What must hold:

- A message that goes into a topic and comes out is the same message, but that header values come back as text (bytes
  where they are not UTF-8): a Kafka header has no other types.
- A record that a Kafka client wrote comes out with everything in it. A header with the name of a field *is* that field
  where its text is what we would have written; otherwise it stays a header, untouched. Headers with the same name are
  one header with a list, and such a list is written as several headers; of fields, and of what the broker itself writes
  as a header (`ONE_VALUE`), the last one counts.
- A record without a value (a tombstone) is an empty message of the type `tombstone`, and the other way round.

Pure; for the parts of the broker that put messages into topics or read them there, whatever the protocol. The tight
loops that do so for many are in `record_writing` and `record_reading`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from waystation.errors import Invalid
from waystation.message import HIGHEST_PRIORITY, LATEST_MS, MAX_HORIZON_MS, Message

TOMBSTONE = "tombstone"
"""The type of a message that stands for a record without a value: on a compacted topic it deletes its key."""

HeaderPair = tuple[str, bytes | None]


class Crossing(NamedTuple):
    """Where one field of a message is found in each protocol."""

    field: str
    kafka: str  # in a Kafka record
    amqp: str  # in an AMQP 0-9-1 message
    json: str  # in JSON lines and HTTP
    msgpack: str  # in the native protocol's msgpack frames: its place in the message's array


CROSSINGS: tuple[Crossing, ...] = (
    Crossing("payload", "value", "body", "`payload`; not UTF-8: base64, and `encoding` is `base64`", "0, bin"),
    Crossing("id", "header `x-message-id`", "property `message_id`", "`id`", "1, str"),
    Crossing("key", "key", "header `x-key`", "`key`; not UTF-8: `key_base64`", "2, bin"),
    Crossing(
        "headers",
        "headers, values as text; a list of texts: one each",
        "property `headers`",
        "`headers`; bytes: `headers_base64`",
        "3, map",
    ),
    Crossing("priority", "header `x-priority`", "property `priority`", "`priority`", "4, int"),
    Crossing("delay_ms", "header `x-delay`", "header `x-delay`; received: negative", "`delay_ms`", "5, int"),
    Crossing("deliver_at_ms", "header `x-deliver-at`", "header `x-deliver-at`", "`deliver_at_ms`", "6, int"),
    Crossing("ttl_ms", "header `x-ttl`", "property `expiration`", "`ttl_ms`", "7, int"),
    Crossing("correlation_id", "header `x-correlation-id`", "property `correlation_id`", "`correlation_id`", "8, str"),
    Crossing("reply_to", "header `x-reply-to`", "property `reply_to`", "`reply_to`", "9, str"),
    Crossing("content_type", "header `x-content-type`", "property `content_type`", "`content_type`", "10, str"),
    Crossing("type", "header `x-type`; `tombstone`: no value", "property `type`", "`type`", "11, str"),
    Crossing("max_deliveries", "header `x-max-deliveries`", "header `x-max-deliveries`", "`max_deliveries`", "12, int"),
    Crossing(
        "timestamp_ms", "timestamp", "property `timestamp`; ms: header `timestamp_in_ms`", "`timestamp_ms`", "13, int"
    ),
    Crossing("exchange", "header `x-exchange`", "method `exchange`", "`exchange`", "14, str"),
    Crossing("routing_key", "header `x-routing-key`", "method `routing_key`", "`routing_key`", "15, str"),
    Crossing(
        "content_encoding",
        "header `x-content-encoding`",
        "property `content_encoding`",
        "`content_encoding`",
        "16, str",
    ),
    Crossing("delivery_mode", "header `x-delivery-mode`", "property `delivery_mode`", "`delivery_mode`", "17, int"),
    Crossing("user_id", "header `x-user-id`", "property `user_id`", "`user_id`", "18, str"),
    Crossing("app_id", "header `x-app-id`", "property `app_id`", "`app_id`", "19, str"),
)

TEXT_FIELDS = {
    "x-message-id": "id",
    "x-correlation-id": "correlation_id",
    "x-reply-to": "reply_to",
    "x-content-type": "content_type",
    "x-type": "type",
    "x-exchange": "exchange",
    "x-routing-key": "routing_key",
    "x-content-encoding": "content_encoding",
    "x-user-id": "user_id",
    "x-app-id": "app_id",
}
NUMBER_FIELDS = {
    "x-priority": ("priority", 0, HIGHEST_PRIORITY),
    "x-delay": ("delay_ms", 0, MAX_HORIZON_MS),
    "x-deliver-at": ("deliver_at_ms", 0, LATEST_MS),
    "x-ttl": ("ttl_ms", 1, MAX_HORIZON_MS),
    "x-max-deliveries": ("max_deliveries", 0, 2**31 - 1),
    "x-delivery-mode": ("delivery_mode", 0, 255),
}
"""Header → (field, lowest, highest). A number outside of that is no field: it stays the header it was."""

TAKEN_AT = "x-taken-at"
"""Epoch ms, written by the broker into a record that has a time to live and a timestamp of its sender's own: its time
to live is counted from when it was taken in. For receivers it is `taken_ms`, no header."""
ONE_VALUE = frozenset((TAKEN_AT, "x-death"))
"""Headers that the broker writes: of several with such a name the last one counts."""
OF_TIME = frozenset(("x-delay", "x-deliver-at", "x-ttl", TAKEN_AT))
"""What a dead letter loses: it is not to wait, and not to expire again."""

MAX_ID_CHARACTERS = 255
MAX_TIMESTAMP_MS = 2**63


# -- message → record --------------------------------------------------------------------------------------------------


def headers_of(message: Message) -> list[HeaderPair]:
    """The Kafka headers of a message: its fields first, then its own. A field wins over a header of its name."""
    pairs: list[HeaderPair] = []  # one line for each field: a loop over the table takes twice as long
    if message.id is not None:
        pairs.append(("x-message-id", utf8(message.id, "id")))
    if message.correlation_id is not None:
        pairs.append(("x-correlation-id", utf8(message.correlation_id, "correlation_id")))
    if message.reply_to is not None:
        pairs.append(("x-reply-to", utf8(message.reply_to, "reply_to")))
    if message.content_type is not None:
        pairs.append(("x-content-type", utf8(message.content_type, "content_type")))
    if message.type is not None and (message.payload or message.type != TOMBSTONE):
        pairs.append(("x-type", utf8(message.type, "type")))
    if message.priority:
        pairs.append(("x-priority", b"%d" % message.priority))
    if message.delay_ms:
        pairs.append(("x-delay", b"%d" % message.delay_ms))
    if message.deliver_at_ms is not None:
        pairs.append(("x-deliver-at", b"%d" % message.deliver_at_ms))
    if message.ttl_ms is not None:
        pairs.append(("x-ttl", b"%d" % message.ttl_ms))
    if message.max_deliveries:
        pairs.append(("x-max-deliveries", b"%d" % message.max_deliveries))
    if message.exchange is not None:
        pairs.append(("x-exchange", utf8(message.exchange, "exchange")))
    if message.routing_key is not None:
        pairs.append(("x-routing-key", utf8(message.routing_key, "routing_key")))
    if message.content_encoding is not None:
        pairs.append(("x-content-encoding", utf8(message.content_encoding, "content_encoding")))
    if message.delivery_mode:
        pairs.append(("x-delivery-mode", b"%d" % message.delivery_mode))
    if message.user_id is not None:
        pairs.append(("x-user-id", utf8(message.user_id, "user_id")))
    if message.app_id is not None:
        pairs.append(("x-app-id", utf8(message.app_id, "app_id")))
    if message.headers:
        fields = [name for name, _ in pairs]
        for name, value in message.headers.items():
            if name in fields:
                continue
            if type(value) is list and _are_several(value):
                pairs += [(name, header_value(name, each)) for each in value]
            else:
                pairs.append((name, header_value(name, value)))
    return pairs


def _are_several(values: list[Any]) -> bool:
    """Whether a list can be headers with one name, and be found again as what it was."""
    return len(values) > 1 and all(each is None or type(each) is str or type(each) is bytes for each in values)


def taken_in(message: Message, now_ms: int) -> Message:
    """The message as it is written, if it is taken in now."""
    if message.ttl_ms is None or message.timestamp_ms in (None, now_ms):
        return message
    return msgspec.structs.replace(message, headers={**message.headers, TAKEN_AT: now_ms})


def header_value(name: str, value: Any) -> bytes | None:
    """A header's value as Kafka has it."""
    if type(value) is str:
        return value.encode() if value.isascii() else utf8(value, f"headers: {name}")
    if value is None or type(value) is bytes:
        return value
    if type(value) is int:
        return b"%d" % value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, datetime):
        return msgspec.json.encode(value)[1:-1]  # text without its quotes
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(f"headers: {name!r} cannot be written as JSON: {error}") from None


def utf8(text: str, what: str) -> bytes:
    """The bytes of a text. Invalid, naming `what` it is, if it is none."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{what}: the text has half a surrogate pair, which is no character") from None


# -- record → message --------------------------------------------------------------------------------------------------


def message_of(
    key: bytes | None, value: bytes | None, pairs: Sequence[HeaderPair], timestamp_ms: int | None
) -> Message:
    """The message that a Kafka record is."""
    headers: dict[str, Any] = {}
    values: list[Any] = [value or b"", None, key, headers, *_UNSET]  # in the order of the fields
    values[_TIMESTAMP] = timestamp_ms
    for name, content in pairs:
        place = _PLACES.get(name)
        if place is not None:
            found = _field(name, content, value)
            headers.pop(name, None)  # the last one counts, whether it is a field or not
            values[place] = _UNSET[place - _FIRST] if found is None and place >= _FIRST else found
            if found is not None:
                continue
        try:
            said: Any = content if content is None else content.decode()
        except UnicodeDecodeError:
            said = content
        if name not in headers or name in ONE_VALUE:
            headers[name] = said
        elif type(headers[name]) is list:
            headers[name].append(said)
        else:
            headers[name] = [headers[name], said]
    if value is None:
        values[_PLACES["x-type"]] = TOMBSTONE
    return Message(*values)


_NAMES = Message.__struct_fields__
_FIRST = _NAMES.index("priority")
_TIMESTAMP = _NAMES.index("timestamp_ms")
_UNSET = Message.__struct_defaults__[3:]  # from the priority on
_PLACES = {name: _NAMES.index(field) for name, field in TEXT_FIELDS.items()} | {
    name: _NAMES.index(field) for name, (field, _, _) in NUMBER_FIELDS.items()
}


def _field(name: str, content: bytes | None, value: bytes | None) -> str | int | None:
    """What the header says of a message's field; None if it is a header like any other."""
    if content is None:
        return None
    if name in NUMBER_FIELDS:
        _, lowest, highest = NUMBER_FIELDS[name]
        number = int(content) if content.isdigit() and len(content) < 20 else -1
        return number if lowest <= number <= highest and content == b"%d" % number else None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    if name == "x-message-id" and not 0 < len(text) <= MAX_ID_CHARACTERS:
        return None
    if name == "x-type" and (value is None or (not value and text == TOMBSTONE)):
        return None  # a record without a value has its type from that; an empty one must not become one without
    return text
