"""What time does to messages of topics: some are no longer wanted, some not yet.

A topic is a log: it keeps what it has, and Kafka's consumers read all of it. Subscriptions of our own protocols deliver
nothing whose time to live is over, and shared ones nothing before its time. Both are counted from when the message came
into the topic, which is what its record says; a record without a time never grows old and never waits.

Pure; for live, stream and shared subscriptions, and for whoever reads topics by HTTP or the command line.
"""

from __future__ import annotations

from collections.abc import Iterable

from waystation.message import Delivered


def expired(delivered: Delivered, now_ms: int) -> bool:
    """Whether its time to live is over."""
    ttl_ms = delivered.message.ttl_ms
    return ttl_ms is not None and 0 < delivered.taken_ms <= now_ms - ttl_ms


def unexpired(messages: Iterable[Delivered], now_ms: int) -> list[Delivered]:
    """Those whose time is not over. Nearly all have no end: for these, no call is made."""
    return [one for one in messages if one.message.ttl_ms is None or not expired(one, now_ms)]


def early_ms(delivered: Delivered, now_ms: int) -> int:
    """How long it has to wait until it may be delivered; 0: it may."""
    due_ms = delivered.message.ready_at_ms(delivered.taken_ms) if delivered.taken_ms else None
    return 0 if due_ms is None else max(0, due_ms - now_ms)


def is_timed(delivered: Delivered) -> bool:
    """Whether time means anything to it."""
    message = delivered.message
    return message.ttl_ms is not None or message.delay_ms != 0 or message.deliver_at_ms is not None
