"""Basic properties: what an AMQP content header says of a message ↔ a `Message`'s fields.

In: `template_of` (`template`). Out: `encode` writes a message's properties, from a cache where nothing in them is the
message's own. `docs/reference/crossing.md` has the table of what is where.

What must hold: what an AMQP sender said comes back to an AMQP receiver as it was; and every message can be written,
whatever protocol it came by. Pure: nothing here waits or has a connection's state.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

from waystation.message import AmqpDetails, Message
from waystation.wire.amqp.death_headers import LocalNames, death_headers_out
from waystation.wire.amqp.tables import Long, encode_headers, encode_table
from waystation.wire.amqp.template import (
    APP_ID,
    CLUSTER_ID,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    DELIVERY_MODE,
    EXPIRATION,
    HEADERS,
    MESSAGE_ID,
    PRIORITY,
    REPLY_TO,
    TIMESTAMP,
    TIMESTAMP_IN_MS,
    TYPE,
    USER_ID,
    X_DELAY,
    X_DELIVER_AT,
    X_KEY,
    X_MAX_DELIVERIES,
    Template,
    template_of,
)

__all__ = ["Template", "encode", "template_of"]

PLAIN_ONES = 1024
"""Kept: what plain messages say, of which there are as many as there are kinds of senders."""
MAX_KEPT_BYTES = 1024
"""Of each: senders of other protocols may say more than anybody wants to keep."""
MAX_SHORT_BYTES = 255

_moment = struct.Struct(">Q")
_flags = struct.Struct(">H")


def encode(message: Message, names: LocalNames, extra: dict[str, Any] | None = None) -> bytes:
    """A content header's payload from the property flags on. `extra`: headers of the delivery; they win over others."""
    details = message.amqp
    if (
        extra
        or message.headers
        or message.id is not None
        or message.correlation_id is not None
        or message.timestamp_ms is not None
        or message.reply_to is not None
        or message.key is not None
        or message.deliver_at_ms is not None
        or (details is not None and details.values)
    ):
        return _encode(message, names, extra)
    try:
        return _plain(
            message.content_type,
            message.content_encoding,
            message.delivery_mode,
            message.priority,
            message.ttl_ms,
            message.type,
            message.user_id,
            message.app_id,
            message.delay_ms,
            message.max_deliveries,
            details,
        )
    except _TooLong:
        return _encode(message, names, None)


class _AsTheyAre:
    """For properties without headers, which have no names in them."""

    def local(self, full: str) -> str:
        return full


class _TooLong(Exception):
    """What an error ends is not kept in the cache."""


@lru_cache(PLAIN_ONES)
def _plain(
    content_type: str | None,
    content_encoding: str | None,
    delivery_mode: int,
    priority: int,
    ttl_ms: int | None,
    type: str | None,
    user_id: str | None,
    app_id: str | None,
    delay_ms: int,
    max_deliveries: int,
    amqp: AmqpDetails | None,
) -> bytes:
    """Properties of which nothing is one message's own."""
    message = Message(
        b"",
        content_type=content_type,
        content_encoding=content_encoding,
        delivery_mode=delivery_mode,
        priority=priority,
        ttl_ms=ttl_ms,
        type=type,
        user_id=user_id,
        app_id=app_id,
        delay_ms=delay_ms,
        max_deliveries=max_deliveries,
        amqp=amqp,
    )
    encoded = _encode(message, _AsTheyAre(), None)
    if len(encoded) > MAX_KEPT_BYTES or (amqp is not None and len(amqp.cluster_id or "") > MAX_SHORT_BYTES):
        raise _TooLong
    return encoded


def _encode(message: Message, names: LocalNames, extra: dict[str, Any] | None) -> bytes:
    front: list[bytes] = []  # before the headers
    back: list[bytes] = []
    own = _own_headers(message)
    details = message.amqp or _NO_DETAILS
    present = details.present
    flags = 0
    if message.content_type is not None:
        flags |= _put(front, own, CONTENT_TYPE, message.content_type)
    if message.content_encoding is not None:
        flags |= _put(front, own, CONTENT_ENCODING, message.content_encoding)
    if message.delivery_mode or present & DELIVERY_MODE:
        flags |= DELIVERY_MODE
        back.append(_OCTETS[message.delivery_mode & 255])
    if message.priority or present & PRIORITY:
        flags |= PRIORITY
        back.append(_OCTETS[message.priority & 255])
    if message.correlation_id is not None:
        flags |= _put(back, own, CORRELATION_ID, message.correlation_id)
    if message.reply_to is not None:
        flags |= _put(back, own, REPLY_TO, message.reply_to)
    if message.ttl_ms is not None:
        flags |= _put(back, own, EXPIRATION, str(message.ttl_ms))
    if message.id is not None or present & MESSAGE_ID:
        flags |= _put(back, own, MESSAGE_ID, message.id or "")
    if message.timestamp_ms is not None and message.timestamp_ms >= 0:
        flags |= TIMESTAMP
        back.append(_moment.pack(message.timestamp_ms // 1000))
    if message.type is not None:
        flags |= _put(back, own, TYPE, message.type)
    if message.user_id is not None:
        flags |= _put(back, own, USER_ID, message.user_id)
    if message.app_id is not None:
        flags |= _put(back, own, APP_ID, message.app_id)
    if details.cluster_id is not None and len(details.cluster_id.encode()) <= MAX_SHORT_BYTES:
        flags |= _put(back, own, CLUSTER_ID, details.cluster_id)
    headers = death_headers_out(message.headers, names)
    if own or extra:
        headers = {**headers, **own, **_longs(extra or {})}
    if headers:
        table = encode_headers(headers, details.values) if details.values else encode_table(headers)
    elif present & HEADERS:
        table = _EMPTY_TABLE
    else:
        return b"".join((_flags.pack(flags), *front, *back))
    return b"".join((_flags.pack(flags | HEADERS), *front, table, *back))


_NO_DETAILS = AmqpDetails()
_EMPTY_TABLE = encode_table({})
_OCTETS = tuple(bytes((number,)) for number in range(256))


def _put(parts: list[bytes], own: dict[str, Any], flag: int, text: str) -> int:
    """Writes a short string; one that is too long for that becomes a header. The flag, if it is written."""
    encoded = text.encode()
    if len(encoded) > MAX_SHORT_BYTES:
        own[_LONG_NAMES[flag]] = text
        return 0
    parts += (_OCTETS[len(encoded)], encoded)
    return flag


_LONG_NAMES = {
    CONTENT_TYPE: "x-content-type",
    CONTENT_ENCODING: "x-content-encoding",
    CORRELATION_ID: "x-correlation-id",
    REPLY_TO: "x-reply-to",
    MESSAGE_ID: "x-message-id",
    TYPE: "x-type",
    USER_ID: "x-user-id",
    APP_ID: "x-app-id",
}
"""The headers of texts that other protocols' senders made longer than AMQP can say; the names are those in a topic."""


def _own_headers(message: Message) -> dict[str, Any]:
    """The fields that are headers in AMQP."""
    own: dict[str, Any] = {}
    if message.delay_ms:
        own[X_DELAY] = -message.delay_ms  # as it is over: who sends the message on does not delay it again
    if message.deliver_at_ms is not None:
        own[X_DELIVER_AT] = message.deliver_at_ms
    if message.max_deliveries:
        own[X_MAX_DELIVERIES] = message.max_deliveries
    if message.key is not None:
        try:
            own[X_KEY] = message.key.decode()
        except UnicodeDecodeError:
            own[X_KEY] = message.key
    if message.timestamp_ms is not None and (message.timestamp_ms % 1000 or message.timestamp_ms < 0):
        own[TIMESTAMP_IN_MS] = message.timestamp_ms
    return own


def _longs(extra: dict[str, Any]) -> dict[str, Any]:
    """Headers of the delivery: RabbitMQ's own whole numbers have 64 bits."""
    return {name: Long(value) if type(value) is int else value for name, value in extra.items()}
