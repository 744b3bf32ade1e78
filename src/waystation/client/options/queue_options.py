"""A queue's settings as a caller says them, in seconds, and as the broker keeps them, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, get_args

from waystation.client.options.values import Seconds, milliseconds, whole_number
from waystation.errors import Invalid
from waystation.queues.settings import Overflow, QueueSettings, check_bounds, check_settings


@dataclass(frozen=True, slots=True)
class Retry:
    """The backoff of a queue: how long a rejected message waits for its retry.

    `base` seconds at first, then `factor` times longer each time, at most `max` seconds; `jitter` 0.2 spreads that
    between 80 % and 120 %. `Retry(0)` retries at once.
    """

    base: Seconds = 1.0
    factor: float = 2.0
    max: Seconds = 3600.0
    jitter: float = 0.0


class QueueOptions(TypedDict, total=False):
    """A queue's settings. Those that are left out have the broker's defaults; durations are in seconds.

    `max_deliveries`: the number of failed deliveries after which a message is dead (0: never). `dead_letter`: the
    dead-letter queue, or `"topic:NAME"`. `hold`: the visibility timeout. `ttl`: the time to live of every message that
    has no shorter one. `max_length`, `max_bytes`, `overflow` (`"reject"`, `"drop-oldest"`, `"dead-letter"`,
    `"reject-dead-letter"`): limits, and what happens when they are reached. `dedup_window`: how long an id is
    remembered. `single_active`: one consumer at a time gets messages. `max_priority`: the highest priority that counts.
    The queue is deleted: `expires`: when it was not used for this time; `auto_delete`: with its last consumer;
    `exclusive`: with this connection; `durable=False`: when the broker restarts. `dead_letter_exchange`,
    `dead_letter_key`: instead of `dead_letter`, the exchange that dead messages are published to, and the routing key
    (else their own)."""

    max_deliveries: int
    retry: Retry | None
    dead_letter: str | None
    dead_letter_exchange: str | None
    dead_letter_key: str | None
    hold: Seconds
    ttl: Seconds | None
    max_length: int | None
    max_bytes: int | None
    overflow: Overflow
    dedup_window: Seconds
    single_active: bool
    max_priority: int
    expires: Seconds | None
    auto_delete: bool
    exclusive: bool
    durable: bool


_COUNTS = ("max_deliveries", "max_length", "max_bytes", "max_priority")
_SWITCHES = ("single_active", "auto_delete", "exclusive", "durable")
_OVERFLOWS: tuple[str, ...] = get_args(Overflow)
_MAY_BE_NONE = (
    "dead_letter", "dead_letter_exchange", "dead_letter_key", "ttl", "max_length", "max_bytes", "expires",
)  # fmt: skip
_IN_MS = {"hold": "hold_ms", "ttl": "ttl_ms", "dedup_window": "dedup_window_ms", "expires": "expires_ms"}


def queue_settings(options: QueueOptions) -> QueueSettings | None:
    """The settings that the options mean; None where nothing was said. Raises Invalid, naming the option."""
    return check_settings(QueueSettings(**_values(options))) if options else None


def changed_settings(options: QueueOptions) -> tuple[QueueSettings, list[str]]:
    """The same for a queue that has settings: what the options mean, and which fields of it they say."""
    values = _values(options)
    settings = QueueSettings(**values)
    check_bounds(settings)  # whether they fit to the others is the broker's to say
    return settings, list(values)


def _values(options: QueueOptions) -> dict[str, Any]:
    unknown = options.keys() - QueueOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"a queue has no option {min(unknown)!r}; there are {', '.join(QueueOptions.__annotations__)}")
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name == "retry":
            values |= _retry(value)
        elif name in _IN_MS:
            values[_IN_MS[name]] = _duration_ms(name, value, none=name in _MAY_BE_NONE)
        else:
            _check(name, value)
            values[name] = value
    return values


def _check(name: str, value: object) -> None:
    """Raises Invalid, naming the option, for what is not of its type."""
    if value is None and name in _MAY_BE_NONE:
        return
    if name in _COUNTS:
        whole_number(name, value)
    elif name in _SWITCHES:
        if not isinstance(value, bool):
            raise Invalid(f"{name}: {value!r:.60} is neither True nor False")
    elif name == "overflow":
        if value not in _OVERFLOWS:
            raise Invalid(f"overflow: {value!r:.60} is not one of {', '.join(_OVERFLOWS)}")
    elif not isinstance(value, str):
        raise Invalid(f"{name}: {value!r:.60} is not text")


def _retry(retry: object) -> dict[str, Any]:
    if retry is None:
        retry = Retry()
    if not isinstance(retry, Retry):
        raise Invalid(
            f"retry: {retry!r:.60} is not a Retry: write Retry({retry!r:.60}), with the seconds before the first retry"
        )
    for part in ("factor", "jitter"):
        value = getattr(retry, part)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Invalid(f"retry.{part}: {value!r:.60} is not a number")
    return {
        "retry_base_ms": _duration_ms("retry.base", retry.base),
        "retry_factor": retry.factor,
        "retry_max_ms": _duration_ms("retry.max", retry.max),
        "retry_jitter": retry.jitter,
    }


def _duration_ms(name: str, value: Any, *, none: bool = False) -> int | None:
    if value is None and not none:
        raise Invalid(f"{name}: None is neither seconds nor a timedelta")
    return milliseconds(name, value)
