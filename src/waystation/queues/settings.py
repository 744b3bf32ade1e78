"""A queue's settings: what the one who declares it may choose, checked once."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Literal

import msgspec

from waystation.errors import Invalid
from waystation.message import HIGHEST_PRIORITY, MAX_HORIZON_MS

DEFAULT_VISIBILITY_TIMEOUT_MS = 30_000
MAX_NAME_BYTES = 255

Overflow = Literal["reject", "drop-oldest", "dead-letter", "reject-dead-letter"]


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Durations in milliseconds. 0 or None: no limit."""

    max_deliveries: int = 0  # then it is dead: to the dead-letter target, or gone
    retry_base_ms: int = 1_000  # a rejected message waits base * factor**(deliveries - 1), at most max, +/- jitter
    retry_factor: float = 2.0
    retry_max_ms: int = 3_600_000
    retry_jitter: float = 0.0  # 0.2: between 80 % and 120 % of it
    dead_letter: str | None = None  # a queue's name, or "topic:" and a topic's
    hold_ms: int = DEFAULT_VISIBILITY_TIMEOUT_MS  # the visibility timeout
    ttl_ms: int | None = None  # of every message that has no shorter one
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: Overflow = "reject"
    dedup_window_ms: int = 0
    single_active: bool = False
    expires_ms: int | None = None  # the queue goes when nobody used it for so long
    auto_delete: bool = False  # the queue goes with its last consumer
    exclusive: bool = False  # the queue is one connection's and goes with it
    durable: bool = True  # False: the queue goes when the broker stops
    max_priority: int = 9  # messages of higher ones are all alike; 0: priorities mean nothing here
    dead_letter_exchange: str | None = None  # instead of `dead_letter`: the dead are published there
    dead_letter_key: str | None = None  # with this routing key, instead of their own
    queue_type: str | None = None  # what an AMQP client declared it as: classic, quorum; None: another protocol did
    policy: str | None = None  # the policy in force
    own: tuple[tuple[str, Any], ...] = ()  # what was declared (field, value) where the policy says something else

    @property
    def keeps_dead(self) -> bool:
        """Whether the dead go somewhere."""
        return self.dead_letter is not None or self.dead_letter_exchange is not None

    @property
    def refuses(self) -> bool:
        """Whether a full queue refuses what comes; else the oldest gives way."""
        return self.overflow in ("reject", "reject-dead-letter")

    @property
    def buries_oldest(self) -> bool:
        """Whether what gives way in a full queue is a dead letter: in a queue of AMQP always, if the dead go somewhere
        (also when a policy says where), in others if it was asked for."""
        return self.overflow == "dead-letter" or (self.queue_type is not None and self.keeps_dead)


DEAD_LETTER_FIELDS = frozenset({"dead_letter", "dead_letter_exchange", "dead_letter_key"})
"""They say where the dead go."""


def declared(settings: QueueSettings) -> QueueSettings:
    """As they were declared: without what a policy has put in their place."""
    if settings.policy is None and not settings.own:
        return settings
    return msgspec.structs.replace(settings, policy=None, own=(), **dict(settings.own))


def undecided(settings: QueueSettings) -> QueueSettings:
    """What somebody declares: which policy is in force, and over what, is not theirs to say."""
    if settings.policy is None and not settings.own:
        return settings
    return msgspec.structs.replace(settings, policy=None, own=())


def kept_declared(present: QueueSettings, wanted: QueueSettings) -> QueueSettings:
    """What is declared after a change: whoever reads the settings, changes one and writes them back does not make a
    policy's values the queue's own."""
    kept = {field: value for field, value in present.own if getattr(wanted, field) == getattr(present, field)}
    return msgspec.structs.replace(wanted, policy=None, own=(), **kept)


def with_changes(present: QueueSettings, wanted: QueueSettings, only: Collection[str]) -> QueueSettings:
    """The present settings with these fields of others; raises Invalid for a name that is none. What the broker notes
    beside them is no setting: whoever sends back what it was shown changes nothing by that."""
    for name in only:
        if name not in _FIELDS and name not in _NOTED:
            raise Invalid(f"settings: there is no {name[:60]!r}; there are {', '.join(sorted(_FIELDS))}")
    return msgspec.structs.replace(present, **{name: getattr(wanted, name) for name in only if name in _FIELDS})


def check_settings(settings: QueueSettings) -> QueueSettings:
    """Raises Invalid, naming the field."""
    check_bounds(settings)
    if settings.dead_letter is not None and settings.dead_letter_exchange is not None:
        raise Invalid("dead_letter_exchange: there is a dead_letter already; set only one of the two")
    if settings.dead_letter_key is not None and settings.dead_letter_exchange is None:
        raise Invalid("dead_letter_key: there is no dead_letter_exchange that could use it")
    if settings.overflow == "dead-letter" and not settings.keeps_dead:
        raise Invalid("overflow: 'dead-letter' needs a dead_letter target, or a dead_letter_exchange")
    return settings


def check_bounds(settings: QueueSettings) -> None:
    """What can be said of each field alone."""
    for field, (lowest, highest) in _BOUNDS.items():
        value = getattr(settings, field)
        if value is None:
            continue
        if value < lowest:
            raise Invalid(f"{field}: {value} is below {lowest}")
        if not value <= highest or not math.isfinite(value):
            raise Invalid(f"{field}: {value} is above {highest}")


_NOTED = frozenset(("queue_type", "policy", "own"))
_FIELDS = frozenset(QueueSettings.__struct_fields__) - _NOTED
"""What one who declares a queue may choose."""
_COUNT = 2**53
_BOUNDS: dict[str, tuple[float, float]] = {
    "max_deliveries": (0, 2**31 - 1),
    "retry_base_ms": (0, MAX_HORIZON_MS),
    "retry_factor": (1, 1_000_000),
    "retry_max_ms": (1, MAX_HORIZON_MS),
    "retry_jitter": (0, 1),
    "hold_ms": (1, MAX_HORIZON_MS),
    "ttl_ms": (1, MAX_HORIZON_MS),
    "max_length": (1, _COUNT),
    "max_bytes": (1, _COUNT),
    "dedup_window_ms": (0, MAX_HORIZON_MS),
    "expires_ms": (1, MAX_HORIZON_MS),
    "max_priority": (0, HIGHEST_PRIORITY),
}
"""Lowest and highest. A duration of more than a century is a mistake in the unit."""


def check_visibility_timeout(visibility_timeout_ms: int | None) -> None:
    """The visibility timeout that somebody wants; None: the queue's own."""
    if visibility_timeout_ms is not None and not 0 < visibility_timeout_ms <= MAX_HORIZON_MS:
        raise Invalid(f"hold_ms: {visibility_timeout_ms} is not above zero and below a century")


def check_delay(delay_ms: int | None) -> None:
    if delay_ms is not None and not 0 <= delay_ms <= MAX_HORIZON_MS:
        raise Invalid(f"delay_ms: {delay_ms} is not between 0 and a century")


def check_queue_name(name: str, field: str = "queue") -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_NAME_BYTES or any(ord(char) < 32 for char in name):
        raise Invalid(f"{field}: a name has 1 to {MAX_NAME_BYTES} bytes and no control characters, not {name[:60]!r}")
