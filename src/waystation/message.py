"""A message, as every protocol and the heart see it: what a sender gives, and what a receiver gets.

Times in a `Message` are what the sender said (a delay, a time to live, a time of delivery); when it was taken in is
known to whoever stores it. So the same bytes are sent, stored and delivered, and nobody rewrites them on the way.

Structs are arrays on the wire and on the disk: fields may be added at the end, never moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from operator import attrgetter
from typing import Any

import msgspec

from waystation.errors import Invalid

HIGHEST_PRIORITY = 255
"""A queue tells some of them apart: 0 to 9 unless it says otherwise, and what is above is as its highest."""
MAX_HORIZON_MS = 100 * 365 * 24 * 3600 * 1000
"""A delay or a time to live of more than a century is a mistake in the unit."""
LATEST_MS = 2**60
"""The last moment that there is: beyond it, times do not fit where they are stored."""

Run = tuple[int, int]
"""Neighbours, of a queue's entries or a log's offsets: the first, and how many."""


class Priority(IntEnum):
    """Names for some of the everyday priorities, 0 to 9. A message that says nothing has 0 and comes last."""

    LOW = 1
    NORMAL = 2
    HIGH = 3
    CRITICAL = 4


class AmqpDetails(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What an AMQP sender said that no field of a message says: AMQP receivers get it as it was sent. Nobody else looks
    at it, and whoever writes it for AMQP trusts nothing in it: a native client may have sent anything."""

    present: int = 0  # flags of properties that were there and say nothing: a priority of 0, headers without any
    cluster_id: str | None = None
    values: tuple[tuple[str, bytes], ...] = ()  # headers whose AMQP type the value does not tell: name, type and bytes


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a sender gives. Headers: text names; values are text, bytes, numbers, booleans, None, or JSON-like."""

    payload: bytes
    id: str | None = None
    key: bytes | None = None
    headers: dict[str, Any] = {}
    priority: int = 0
    delay_ms: int = 0
    deliver_at_ms: int | None = None  # wins over delay_ms
    ttl_ms: int | None = None  # counted from when it is taken in
    correlation_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    type: str | None = None  # text, json, binary, command, event, or the sender's own
    max_deliveries: int = 0  # 0: the queue's
    timestamp_ms: int | None = None  # when it happened, if the sender says so
    exchange: str | None = None  # what it was published to, if to an exchange
    routing_key: str | None = None
    content_encoding: str | None = None
    delivery_mode: int = 0  # 1: need not survive a restart; 2: must; 0: not said
    user_id: str | None = None
    app_id: str | None = None
    amqp: AmqpDetails | None = None

    @property
    def plain(self) -> bool:
        """Ready at once, no expiry, nothing of its own to remember."""
        return not (
            self.priority
            or self.delay_ms
            or self.deliver_at_ms is not None
            or self.ttl_ms is not None
            or self.max_deliveries
        )

    def ready_at_ms(self, taken_ms: int) -> int | None:
        """When it may be delivered; None: at once."""
        if self.deliver_at_ms is not None:
            return self.deliver_at_ms if self.deliver_at_ms > taken_ms else None
        # The time it was taken in is cut to a whole millisecond: one more, so that it is never early.
        return taken_ms + self.delay_ms + 1 if self.delay_ms else None

    def expires_at_ms(self, taken_ms: int) -> int | None:
        return None if self.ttl_ms is None else taken_ms + self.ttl_ms


class Delivered(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a receiver gets. `tag` is what it acknowledges; it means something to the feed that gave it only."""

    tag: int
    deliveries: int  # this one included; 0 where it is only looked at
    taken_ms: int  # when the broker took it in
    message: Message
    source: str = ""  # the topic, where a subscription spans many; a queue's consumer knows its queue
    partition: int = -1
    offset: int = -1


Terms = tuple[int, int, int | None, int | None, int]
terms_of: Callable[[Message], Terms] = attrgetter("priority", "delay_ms", "deliver_at_ms", "ttl_ms", "max_deliveries")
"""What a message asks of a queue. Many messages are told apart by it at once, which is quicker than one by one."""
PLAIN: Terms = (0, 0, None, None, 0)


def check_message(message: Message) -> None:
    """Raises Invalid, naming the field, unless the message makes sense."""
    check_terms(terms_of(message))
    if message.id is not None:
        check_id(message.id)


def check_sent(message: Message) -> None:
    """As `check_message`, and nothing is said twice. Not for what is stored or crosses over: there the time wins."""
    check_message(message)
    if message.delay_ms and message.deliver_at_ms is not None:
        raise Invalid("delay_ms: give either delay_ms or deliver_at_ms, not both")


def check_terms(terms: Terms) -> None:
    priority, delay_ms, deliver_at_ms, ttl_ms, max_deliveries = terms
    if not 0 <= priority <= HIGHEST_PRIORITY:
        raise Invalid(f"priority: {priority} is not between 0 and {HIGHEST_PRIORITY}")
    if not 0 <= delay_ms <= MAX_HORIZON_MS:
        raise Invalid(f"delay_ms: {delay_ms} is not between 0 and a century")
    if deliver_at_ms is not None and not 0 <= deliver_at_ms <= LATEST_MS:
        raise Invalid(f"deliver_at_ms: {deliver_at_ms} is no time")
    if ttl_ms is not None and not 0 < ttl_ms <= MAX_HORIZON_MS:
        raise Invalid(f"ttl_ms: {ttl_ms} is not above zero and below a century")
    if not 0 <= max_deliveries < 2**31:
        raise Invalid(f"max_deliveries: {max_deliveries} is not between 0 and 2147483647")


def check_id(message_id: str) -> None:
    if not 0 < len(message_id) <= 255:
        raise Invalid("id: must have 1 to 255 characters")


def size_of(message: Message) -> int:
    """About as many bytes as it has, headers too: what an answer that shows it is bounded by."""
    size = len(message.payload) + len(message.key or b"")
    for name, value in message.headers.items():
        size += len(name) + (len(value) if isinstance(value, str | bytes) else len(repr(value)))
    if message.amqp is not None:
        size += sum(len(name) + len(sent) for name, sent in message.amqp.values)
    return size


def size_of_all(messages: Iterable[Message]) -> int:
    return sum(map(size_of, messages))
