"""A queue's settings: what the one who declares it may choose, checked once."""

from __future__ import annotations

from typing import Literal

import msgspec

from waystation.errors import Invalid

DEFAULT_HOLD_MS = 30_000
MAX_NAME_BYTES = 255

Overflow = Literal["reject", "drop-oldest", "dead-letter"]


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Durations in milliseconds. 0 or None: no limit."""

    max_deliveries: int = 0  # then it is dead: to the dead-letter target, or gone
    retry_base_ms: int = 1_000  # a rejected message waits base * factor**(deliveries - 1), at most max, +/- jitter
    retry_factor: float = 2.0
    retry_max_ms: int = 3_600_000
    retry_jitter: float = 0.0  # 0.2: between 80 % and 120 % of it
    dead_letter: str | None = None  # a queue's name, or "topic:" and a topic's
    hold_ms: int = DEFAULT_HOLD_MS  # how long a consumer may keep a message without a word
    ttl_ms: int | None = None  # of every message that has no shorter one
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: Overflow = "reject"
    dedup_window_ms: int = 0
    single_active: bool = False
    expires_ms: int | None = None  # the queue goes when nobody used it for so long
    auto_delete: bool = False  # the queue goes with its last consumer
    exclusive: bool = False  # the queue is one connection's and goes with it


def check_settings(settings: QueueSettings) -> QueueSettings:
    """Raises Invalid, naming the field."""
    for field, lowest in _LOWEST.items():
        value = getattr(settings, field)
        if value is not None and value < lowest:
            raise Invalid(f"{field}: {value} is below {lowest}")
    if settings.retry_jitter > 1:
        raise Invalid(f"retry_jitter: {settings.retry_jitter} is above 1")
    if settings.overflow == "dead-letter" and not settings.dead_letter:
        raise Invalid("overflow: 'dead-letter' needs a dead_letter target")
    return settings


_LOWEST = {
    "max_deliveries": 0,
    "retry_base_ms": 0,
    "retry_factor": 1,
    "retry_max_ms": 1,
    "retry_jitter": 0,
    "hold_ms": 1,
    "ttl_ms": 1,
    "max_length": 1,
    "max_bytes": 1,
    "dedup_window_ms": 0,
    "expires_ms": 1,
}


def check_queue_name(name: str) -> None:
    size = len(name.encode())
    if not 0 < size <= MAX_NAME_BYTES or any(ord(char) < 32 for char in name):
        raise Invalid(f"queue: a name has 1 to {MAX_NAME_BYTES} bytes and no control characters, not {name[:60]!r}")
