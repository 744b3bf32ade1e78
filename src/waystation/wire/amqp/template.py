"""What an AMQP content header says of a message, read once into a `Template` that makes messages.

The same short bytes give the same template again, since most senders say the same of every message. Fields of a
message that AMQP has no property for are headers (`docs/reference/crossing.md` has the table).

What must hold: any bytes are properties or an `AmqpError`, and every message that a template makes is one that the
broker takes. Used by way of `properties`. Pure: nothing here waits or has a connection's state.
"""

from __future__ import annotations

import re
import struct
from datetime import datetime
from functools import lru_cache
from typing import Any

from waystation.message import LATEST_MS, MAX_HORIZON_MS, AmqpDetails, Message
from waystation.wire.amqp.death_headers import DEATH_HEADERS, death_headers_in
from waystation.wire.amqp.errors import PRECONDITION_FAILED, SYNTAX_ERROR, AmqpError
from waystation.wire.amqp.tables import Sent, decode_table

AT_ONCE_MS = 20
"""A time to live of 0 means: to a consumer that waits, or to nobody. This is how long reaching one may take; with a
single millisecond, two of five messages missed a consumer that had nothing else to do."""
MAX_EXPIRATION_MS = 315_360_000_000
"""Ten years, as RabbitMQ has it."""
MAX_CACHED_BYTES = 256
"""Longer ones have headers with something of the message's own, and would fill the cache in vain."""
TEMPLATES = 1024

X_DELAY = "x-delay"
X_DELIVER_AT = "x-deliver-at"
X_MAX_DELIVERIES = "x-max-deliveries"
X_KEY = "x-key"
CC = "CC"
BCC = "BCC"
TIMESTAMP_IN_MS = "timestamp_in_ms"

_READ = frozenset((X_DELAY, X_DELIVER_AT, X_MAX_DELIVERIES, X_KEY, CC, BCC, TIMESTAMP_IN_MS))
"""Headers that say something to the broker."""

_length = struct.Struct(">I")
_moment = struct.Struct(">Q")

# The flags, in the order in which the values follow them.
CONTENT_TYPE, CONTENT_ENCODING, HEADERS, DELIVERY_MODE = 0x8000, 0x4000, 0x2000, 0x1000
PRIORITY, CORRELATION_ID, REPLY_TO, EXPIRATION = 0x0800, 0x0400, 0x0200, 0x0100
MESSAGE_ID, TIMESTAMP, TYPE, USER_ID = 0x0080, 0x0040, 0x0020, 0x0010
APP_ID, CLUSTER_ID, UNKNOWN = 0x0008, 0x0004, 0x0003


class Template:
    """What the properties say; only the body, the exchange and the routing key are missing to a message.

    `keys` are the routing keys that the headers CC and BCC add to the one of the publish method.
    """

    __slots__ = (
        "_amqp",
        "_app_id",
        "_content_encoding",
        "_content_type",
        "_correlation_id",
        "_delay_ms",
        "_deliver_at_ms",
        "_delivery_mode",
        "_headers",
        "_id",
        "_key",
        "_max_deliveries",
        "_priority",
        "_reply_to",
        "_timestamp_ms",
        "_ttl_ms",
        "_type",
        "keys",
        "user_id",
    )

    def __init__(self) -> None:
        self.keys: tuple[str, ...] = ()
        self.user_id: str | None = None
        self._id: str | None = None
        self._key: bytes | None = None
        self._headers: dict[str, Any] = {}
        self._priority = 0
        self._delay_ms = 0
        self._deliver_at_ms: int | None = None
        self._ttl_ms: int | None = None
        self._correlation_id: str | None = None
        self._reply_to: str | None = None
        self._content_type: str | None = None
        self._type: str | None = None
        self._max_deliveries = 0
        self._timestamp_ms: int | None = None
        self._content_encoding: str | None = None
        self._delivery_mode = 0
        self._app_id: str | None = None
        self._amqp: AmqpDetails | None = None

    def make(self, body: bytes, exchange: str, routing_key: str) -> Message:
        """The message. Every one has headers of its own. Fields by place: 0.2 µs; by name it is three times that."""
        return Message(
            body,
            self._id,
            self._key,
            self._headers.copy(),
            self._priority,
            self._delay_ms,
            self._deliver_at_ms,
            self._ttl_ms,
            self._correlation_id,
            self._reply_to,
            self._content_type,
            self._type,
            self._max_deliveries,
            self._timestamp_ms,
            exchange,
            routing_key,
            self._content_encoding,
            self._delivery_mode,
            self.user_id,
            self._app_id,
            self._amqp,
        )

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, data: bytes) -> int:
        """Takes the properties from their bytes; where they end. IndexError and the like: they end too early."""
        flags = data[0] << 8 | data[1]
        present, cluster_id, sent = 0, None, Sent()
        position = 2
        if flags & UNKNOWN:
            raise AmqpError(SYNTAX_ERROR, "the content header has property flags that no basic property has")
        if flags & CONTENT_TYPE:
            self._content_type, position = _short(data, position)
        if flags & CONTENT_ENCODING:
            self._content_encoding, position = _short(data, position)
        headers: dict[str, Any] | None = None
        if flags & HEADERS:
            begin = position + 4
            position = begin + _length.unpack_from(data, position)[0]
            headers = decode_table(data, begin, position, sent)
        if flags & DELIVERY_MODE:
            self._delivery_mode = data[position]
            present |= 0 if self._delivery_mode else DELIVERY_MODE
            position += 1
        if flags & PRIORITY:
            self._priority = data[position]
            present |= 0 if self._priority else PRIORITY
            position += 1
        if flags & CORRELATION_ID:
            self._correlation_id, position = _short(data, position)
        if flags & REPLY_TO:
            self._reply_to, position = _short(data, position)
        if flags & EXPIRATION:
            text, position = _short(data, position)
            self._ttl_ms = _expiration(text)
        if flags & MESSAGE_ID:
            text, position = _short(data, position)
            self._id = text or None
            present |= 0 if text else MESSAGE_ID
        if flags & TIMESTAMP:
            at_ms = _moment.unpack_from(data, position)[0] * 1000
            self._timestamp_ms = at_ms if at_ms <= LATEST_MS else None
            position += 8
        if flags & TYPE:
            self._type, position = _short(data, position)
        if flags & USER_ID:
            self.user_id, position = _short(data, position)
        if flags & APP_ID:
            self._app_id, position = _short(data, position)
        if flags & CLUSTER_ID:
            cluster_id, position = _short(data, position)
        if headers:
            self._headers = self._fields_of(headers)
        if headers is not None and not self._headers:
            present |= HEADERS
        values = self._as_sent(sent) if sent.values else ()
        if present or values or cluster_id is not None:
            self._amqp = AmqpDetails(present, cluster_id, values)
        return position

    def _as_sent(self, sent: Sent) -> tuple[tuple[str, bytes], ...]:
        """Of the headers that are still headers, and that the broker does not write itself."""
        headers = self._headers
        return tuple([one for one in sent.values if one[0] in headers and one[0] not in DEATH_HEADERS])

    def _fields_of(self, headers: dict[str, Any]) -> dict[str, Any]:
        """Takes what is a field of the message out of the headers; the rest."""
        if not _READ.isdisjoint(headers):
            self._timestamp_ms = _to_the_ms(self._timestamp_ms, headers)
            self._delay_ms = _number(headers, X_DELAY, 1, MAX_HORIZON_MS) or 0
            self._deliver_at_ms = _number(headers, X_DELIVER_AT, 0, LATEST_MS)
            self._max_deliveries = _number(headers, X_MAX_DELIVERIES, 1, 2**31 - 1) or 0
            if isinstance(headers.get(X_KEY), str | bytes):
                key = headers.pop(X_KEY)
                self._key = key.encode() if isinstance(key, str) else key
            self.keys = (*_routing_keys(headers, CC), *_routing_keys(headers, BCC))
            headers.pop(BCC, None)
        return death_headers_in(headers)


def template_of(data: bytes) -> Template:
    """What a content header says of its message; `data` is its payload from the property flags on."""
    return _cached(data) if len(data) <= MAX_CACHED_BYTES else _template(data)


def _template(data: bytes) -> Template:
    template = Template()
    try:
        end = template.read(data)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise AmqpError(SYNTAX_ERROR, f"the properties of a content header cannot be read: {error}") from None
    if end != len(data):
        raise AmqpError(SYNTAX_ERROR, "the properties of a content header do not end where the header does")
    return template


_cached = lru_cache(TEMPLATES)(_template)


def _short(data: bytes, position: int) -> tuple[str, int]:
    """A short string, and where it ends; that may be beyond the data, which is found out at the end."""
    after = position + 1 + data[position]
    return data[position + 1 : after].decode(), after


def _expiration(text: str) -> int:
    """The time to live; RabbitMQ's words where it is none. Zero is `AT_ONCE_MS`."""
    found = re.match(r"[+-]?[0-9]+", text)
    if found is None:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{text}': no_integer")
    if found.end() < len(text):
        left = text[found.end() :]
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{text}': {{leftover_string,\"{left}\"}}")
    number = int(text)
    if number < 0:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{text}': {{value_negative,{number}}}")
    if number > MAX_EXPIRATION_MS:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{text}': {{value_too_large,{number}}}")
    return number or AT_ONCE_MS


def _number(headers: dict[str, Any], name: str, lowest: int, highest: int) -> int | None:
    """Takes a number that is within bounds out of the headers; anything else stays the header that it is."""
    value = headers.get(name)
    if type(value) is datetime and name == X_DELIVER_AT:
        value = int(value.timestamp()) * 1000
    if type(value) is str and value.isdecimal() and value.isascii() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not lowest <= value <= highest:
        return None
    del headers[name]
    return value


def _to_the_ms(timestamp_ms: int | None, headers: dict[str, Any]) -> int | None:
    """AMQP's timestamp counts seconds. A header says the rest, where there is one, and if they agree."""
    value = headers.get(TIMESTAMP_IN_MS)
    if timestamp_ms is None or type(value) is not int or not timestamp_ms < value < timestamp_ms + 1000:
        return timestamp_ms
    del headers[TIMESTAMP_IN_MS]
    return value


def _routing_keys(headers: dict[str, Any], name: str) -> list[str]:
    """What CC or BCC add; as with RabbitMQ, values in the list that are no text are passed over."""
    value = headers.get(name, [])
    if type(value) is not list:
        kind = _ERLANG.get(type(value), "longstr")
        text = f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}: a list of texts is needed'
        raise AmqpError(PRECONDITION_FAILED, text)
    return [one for one in value if type(one) is str]


_ERLANG: dict[type, str] = {
    str: "longstr",
    bytes: "binary",
    bool: "bool",
    int: "long",
    float: "double",
    dict: "table",
    datetime: "timestamp",
    type(None): "void",
}
