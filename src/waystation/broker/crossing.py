"""How a message crosses into a topic and back: `Message` ↔ Kafka record, as one table and two tight loops.

The table (`CROSSINGS`) is the law; `docs/reference/crossing.md` is checked against it by a test. What must hold:

- A message that goes into a topic and comes out is the same message, but that header values come back as text (bytes
  where they are not UTF-8): a Kafka header has no other types.
- A record that a Kafka client wrote comes out with everything in it. A header with the name of a field *is* that field
  where its text is what we would have written; otherwise it stays a header, untouched. Of headers with the same name
  the last one counts.
- A record without a value (a tombstone) is an empty message of the type `tombstone`, and the other way round.

Pure; for the parts of the broker that put messages into topics or read them there, whatever the door.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from waystation.errors import Invalid, InvalidRecord
from waystation.log.batch import LOG_APPEND_TIME, Header, read_varint, write_varint
from waystation.message import HIGHEST_PRIORITY, LATEST_MS, MAX_HORIZON_MS, Delivered, Message, check_message

TOMBSTONE = "tombstone"
"""The type of a message that stands for a record without a value: on a compacted topic it deletes its key."""

HeaderPair = tuple[str, bytes | None]


class Crossing(NamedTuple):
    """Where one field of a message is found behind each door. AMQP's column follows with its door."""

    field: str
    kafka: str  # in a Kafka record
    json: str  # in JSON lines and HTTP
    msgpack: str  # in the native protocol's msgpack frames: its place in the message's array


CROSSINGS: tuple[Crossing, ...] = (
    Crossing("payload", "value", "`payload`; not UTF-8: base64, and `encoding` is `base64`", "0, bin"),
    Crossing("id", "header `x-message-id`", "`id`", "1, str"),
    Crossing("key", "key", "`key`; not UTF-8: `key_base64`", "2, bin"),
    Crossing("headers", "headers, values as text", "`headers`; bytes: `headers_base64`", "3, map"),
    Crossing("priority", "header `x-priority`", "`priority`", "4, int"),
    Crossing("delay_ms", "header `x-delay`", "`delay_ms`", "5, int"),
    Crossing("deliver_at_ms", "header `x-deliver-at`", "`deliver_at_ms`", "6, int"),
    Crossing("ttl_ms", "header `x-ttl`", "`ttl_ms`", "7, int"),
    Crossing("correlation_id", "header `x-correlation-id`", "`correlation_id`", "8, str"),
    Crossing("reply_to", "header `x-reply-to`", "`reply_to`", "9, str"),
    Crossing("content_type", "header `x-content-type`", "`content_type`", "10, str"),
    Crossing("type", "header `x-type`; `tombstone`: no value", "`type`", "11, str"),
    Crossing("max_deliveries", "header `x-max-deliveries`", "`max_deliveries`", "12, int"),
    Crossing("timestamp_ms", "timestamp", "`timestamp_ms`", "13, int"),
)

TEXT_FIELDS = {
    "x-message-id": "id",
    "x-correlation-id": "correlation_id",
    "x-reply-to": "reply_to",
    "x-content-type": "content_type",
    "x-type": "type",
}
NUMBER_FIELDS = {
    "x-priority": ("priority", 0, HIGHEST_PRIORITY),
    "x-delay": ("delay_ms", 0, MAX_HORIZON_MS),
    "x-deliver-at": ("deliver_at_ms", 0, LATEST_MS),
    "x-ttl": ("ttl_ms", 1, MAX_HORIZON_MS),
    "x-max-deliveries": ("max_deliveries", 0, 2**31 - 1),
}
"""Header → (field, lowest, highest). A number outside of that is no field: it stays the header it was."""

TAKEN_AT = "x-taken-at"
"""Epoch ms, written by the broker into a record that has a time to live and a timestamp of its sender's own: its time
to live is counted from when it was taken in. For receivers it is `taken_ms`, no header."""
OF_TIME = frozenset(("x-delay", "x-deliver-at", "x-ttl", TAKEN_AT))
"""What a dead letter loses: it is not to wait, and not to expire again."""

MAX_ID_CHARACTERS = 255
MAX_TIMESTAMP_MS = 2**63


# -- message → record --------------------------------------------------------------------------------------------------


def headers_of(message: Message) -> list[HeaderPair]:
    """The Kafka headers of a message: its fields first, then its own. A field wins over a header of its name."""
    pairs: list[HeaderPair] = []  # one line for each field: a loop over the table takes twice as long
    if message.id is not None:
        pairs.append(("x-message-id", _utf8(message.id, "id")))
    if message.correlation_id is not None:
        pairs.append(("x-correlation-id", _utf8(message.correlation_id, "correlation_id")))
    if message.reply_to is not None:
        pairs.append(("x-reply-to", _utf8(message.reply_to, "reply_to")))
    if message.content_type is not None:
        pairs.append(("x-content-type", _utf8(message.content_type, "content_type")))
    if message.type is not None and (message.payload or message.type != TOMBSTONE):
        pairs.append(("x-type", _utf8(message.type, "type")))
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
    if message.headers:
        fields = [name for name, _ in pairs]
        pairs += [(name, header_value(name, value)) for name, value in message.headers.items() if name not in fields]
    return pairs


def taken_in(message: Message, now_ms: int) -> Message:
    """The message as it is written, if it is taken in now."""
    if message.ttl_ms is None or message.timestamp_ms in (None, now_ms):
        return message
    return msgspec.structs.replace(message, headers={**message.headers, TAKEN_AT: now_ms})


def header_value(name: str, value: Any) -> bytes | None:
    """A header's value as Kafka has it."""
    if type(value) is str:
        return value.encode() if value.isascii() else _utf8(value, f"headers: {name}")
    if value is None or type(value) is bytes:
        return value
    if type(value) is int:
        return b"%d" % value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(f"headers: {name!r} cannot be written as JSON: {error}") from None


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{what}: the text has half a surrogate pair, which is no character") from None


# The numbers that occur in records as the bytes of their varints: lengths and deltas are nearly always below 8192.
_VARINTS = tuple(
    bytes((number << 1,)) if number < 64 else bytes((number << 1 & 0x7F | 0x80, number >> 6)) for number in range(8192)
)


def _varint(number: int) -> bytes:
    if 0 <= number < 8192:
        return _VARINTS[number]
    out = bytearray()
    write_varint(out, number)
    return bytes(out)


def is_bare(message: Message) -> bool:
    """Whether it has nothing but a payload, a key and a time: no header, so nothing to check either."""
    return (
        message.id is None
        and message.type is None
        and not message.headers
        and message.content_type is None
        and message.correlation_id is None
        and message.reply_to is None
        and message.ttl_ms is None
        and message.deliver_at_ms is None
        and not message.priority
        and not message.delay_ms
        and not message.max_deliveries
    )


def record_parts(message: Message, delta: int, timestamp_delta: int, out: list[bytes]) -> int:
    """Appends the bytes of one record to `out`, its length first; returns how many there are. Invalid: see there.

    A record is: length, attributes (0), timestamp delta, offset delta, key, value, count of headers, headers; every
    number a zigzag varint. Measured, with `build_batches` around it: 0.5 µs for a message of 100 bytes, 1.4 µs with an
    id; by way of `batches.encode_records` the first is 1.5 µs.
    """
    payload = message.payload
    key = message.key
    size = len(payload)
    value_size = _VARINTS[size] if size < 8192 else _varint(size)
    number = _VARINTS[delta] if delta < 8192 else _varint(delta)
    at = b"\0\0" if timestamp_delta == 0 else b"\0" + _varint(timestamp_delta)  # the attributes are in front of it
    if is_bare(message):
        if key is None:
            total = len(at) + len(number) + 2 + len(value_size) + size
            length = _VARINTS[total] if total < 8192 else _varint(total)
            out += (length, at, number, b"\x01", value_size, payload, b"\0")
        else:
            key_size = _varint(len(key))
            total = len(at) + len(number) + 1 + len(key_size) + len(key) + len(value_size) + size
            length = _VARINTS[total] if total < 8192 else _varint(total)
            out += (length, at, number, key_size, key, value_size, payload, b"\0")
        return len(length) + total
    return _full_record(message, number, at, out)


def _full_record(message: Message, number: bytes, at: bytes, out: list[bytes]) -> int:
    check_message(message)
    parts = [at, number]
    parts += (b"\x01",) if message.key is None else (_varint(len(message.key)), message.key)
    if message.type == TOMBSTONE and not message.payload:
        parts.append(b"\x01")
    else:
        parts += (_varint(len(message.payload)), message.payload)
    pairs = headers_of(message)
    parts.append(_varint(len(pairs)))
    for name, content in pairs:
        parts.append(_FIELD_NAMES.get(name) or _encoded_name(name))
        parts += (b"\x01",) if content is None else (_varint(len(content)), content)
    body = b"".join(parts)
    length = _varint(len(body))
    out += (length, body)
    return len(length) + len(body)


def _encoded_name(name: str) -> bytes:
    encoded = _utf8(name, "headers")
    return _varint(len(encoded)) + encoded


_FIELD_NAMES = {name: _encoded_name(name) for name in (*TEXT_FIELDS, *NUMBER_FIELDS)}


# -- record → message --------------------------------------------------------------------------------------------------


def message_of(
    key: bytes | None, value: bytes | None, pairs: Sequence[HeaderPair], timestamp_ms: int | None
) -> Message:
    """The message that a Kafka record is."""
    headers: dict[str, Any] = {}
    values: list[Any] = [value or b"", None, key, headers, *_UNSET, timestamp_ms]  # in the order of the fields
    for name, content in pairs:
        place = _PLACES.get(name)
        if place is not None:
            found = _field(name, content, value)
            headers.pop(name, None)  # of repeated headers the last one counts, whether it is a field or not
            values[place] = _UNSET[place - _FIRST] if found is None and place >= _FIRST else found
            if found is not None:
                continue
        try:
            headers[name] = content if content is None else content.decode()
        except UnicodeDecodeError:
            headers[name] = content
    if value is None:
        values[_PLACES["x-type"]] = TOMBSTONE
    return Message(*values)


_NAMES = Message.__struct_fields__
_FIRST = _NAMES.index("priority")
_UNSET = (0, 0, None, None, None, None, None, None, 0)  # from the priority to the retry limit
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


def delivered_of(body: bytes, header: Header, topic: str, partition: int, first: int) -> list[Delivered]:
    """The messages of one batch (its records uncompressed), from offset `first` on, tagged with their offsets.

    InvalidRecord if the records do not parse. One loop, long because it makes no calls for what records usually are:
    1.1 µs for a record of 100 bytes, where `batches.records_of` takes 1.8 µs for no more than the records.
    """
    fixed = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    base_offset, base_timestamp, last_delta = header.base_offset, header.base_timestamp, header.last_offset_delta
    out: list[Delivered] = []
    position = 0
    room = len(body)
    try:
        for _ in range(header.record_count):
            number = body[position]
            if number < 0x80:
                position += 1
                size = (number >> 1) ^ -(number & 1)
            elif body[position + 1] < 0x80:
                number = number & 0x7F | body[position + 1] << 7
                position += 2
                size = (number >> 1) ^ -(number & 1)
            else:
                size, position = read_varint(body, position)
            end = position + size
            if size < 0 or end > room:
                raise InvalidRecord("a record is longer than its batch")
            position += 1
            number = body[position]
            if number < 0x80:
                position += 1
                timestamp = (number >> 1) ^ -(number & 1)
            else:
                timestamp, position = read_varint(body, position)
            number = body[position]
            if number < 0x80:
                position += 1
                delta = (number >> 1) ^ -(number & 1)
            elif body[position + 1] < 0x80:
                number = number & 0x7F | body[position + 1] << 7
                position += 2
                delta = (number >> 1) ^ -(number & 1)
            else:
                delta, position = read_varint(body, position)
            if not 0 <= delta <= last_delta:
                raise InvalidRecord("a record's offset is outside of its batch")
            timestamp = timestamp + base_timestamp if fixed is None else fixed
            if timestamp >= MAX_TIMESTAMP_MS:
                raise InvalidRecord("a record's timestamp has more than 63 bits")
            stamp = timestamp if timestamp >= 0 else None  # Kafka's -1: it has none
            number = body[position]
            key: bytes | None = None
            if number == 1:
                position += 1
            else:
                size, position = read_varint(body, position)
                if size >= 0:
                    key = body[position : position + size]
                    position += size
            number = body[position]
            if number < 0x80:
                position += 1
                size = (number >> 1) ^ -(number & 1)
            elif body[position + 1] < 0x80:
                number = number & 0x7F | body[position + 1] << 7
                position += 2
                size = (number >> 1) ^ -(number & 1)
            else:
                size, position = read_varint(body, position)
            value: bytes | None = None
            if size >= 0:
                value = body[position : position + size]
                position += size
            taken = stamp or 0
            if position + 1 == end and not body[position] and value is not None:
                position = end
                message = Message(value, None, key, {}, 0, 0, None, None, None, None, None, None, 0, stamp)
            else:
                pairs, position = _pairs(body, position, end)
                message = message_of(key, value, pairs, stamp)
                if message.ttl_ms is not None:
                    taken = _taken_at(message.headers) or taken
            if position != end:
                raise InvalidRecord("a record's length does not match its content")
            offset = base_offset + delta
            if offset >= first:
                out.append(Delivered(offset, 1, taken, message, topic, partition, offset))
    except (IndexError, UnicodeDecodeError) as error:
        raise InvalidRecord("a record ends in the middle or has a header name that is not text") from error
    if position != room:
        raise InvalidRecord("the batch has bytes after its last record")
    return out


def _taken_at(headers: dict[str, Any]) -> int:
    """Takes the time out of a message's headers; 0 if they have none."""
    found = headers.get(TAKEN_AT)
    if not isinstance(found, str) or not (found.isdecimal() and found.isascii() and len(found) < 17):
        return 0
    del headers[TAKEN_AT]
    return int(found)


def _pairs(body: bytes, position: int, end: int) -> tuple[list[HeaderPair], int]:
    count, position = read_varint(body, position)
    if not 0 <= count <= end - position:
        raise InvalidRecord("a record has an impossible number of headers")
    pairs: list[HeaderPair] = []
    for _ in range(count):
        size = body[position]
        if size < 0x80 and not size & 1:  # short, which is nearly every header
            position += 1
            size >>= 1
        else:
            size, position = read_varint(body, position)
        after = position + size
        if size < 0 or after > end:
            raise InvalidRecord("a record header has no name")
        name = body[position:after].decode()
        size = body[after]
        if size < 0x80:
            position = after + 1
            size = (size >> 1) ^ -(size & 1)
        else:
            size, position = read_varint(body, after)
        if size < 0:
            pairs.append((name, None))
            continue
        after = position + size
        if after > end:
            raise InvalidRecord("a record's field is longer than the record")
        pairs.append((name, body[position:after]))
        position = after
    return pairs, position
