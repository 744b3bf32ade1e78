"""A policy: settings for all queues, streams and exchanges of a namespace whose names match a pattern. What one may
say, and what becomes of declared settings under it.

The words are RabbitMQ's (`message-ttl`, `max-length`, …), and so is the way they meet what was declared: of two limits
the smaller one counts, and of anything else what was declared. What was declared is remembered beside what is in force
(`QueueSettings.own`), so a policy that goes leaves nothing behind. Pure; used by `policies.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from waystation.errors import Invalid, InvalidPattern, near_matches
from waystation.message import MAX_HORIZON_MS
from waystation.observe.events import event_logger
from waystation.queues.settings import Overflow, QueueSettings
from waystation.routing.matching.regex import Regex
from waystation.routing.table import MAX_NAME_BYTES
from waystation.wire.amqp.stream_age import age_ms
from waystation.wire.amqp.template import AT_ONCE_MS

logger = event_logger("waystation.policies")

APPLY_TO = ("queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all")

NO_DELIVERY_LIMIT = -1
"""As RabbitMQ 4 has it, whose quorum queues have a limit otherwise. It takes away none that was declared."""
_COUNT = 2**53
_LIMITS: dict[str, tuple[str, int, int]] = {
    "message-ttl": ("ttl_ms", 0, MAX_HORIZON_MS),
    "expires": ("expires_ms", 1, MAX_HORIZON_MS),
    "max-length": ("max_length", 0, _COUNT),
    "max-length-bytes": ("max_bytes", 0, _COUNT),
    "consumer-timeout": ("hold_ms", 1, MAX_HORIZON_MS),
    "delivery-limit": ("max_deliveries", NO_DELIVERY_LIMIT, 2**31 - 2),
}
"""The field of the queue's settings, the lowest and the highest value."""

_OVERFLOWS: dict[str, Overflow] = {
    "drop-head": "drop-oldest",
    "reject-publish": "reject",
    "reject-publish-dlx": "reject-dead-letter",
}
_TEXTS = ("dead-letter-exchange", "dead-letter-routing-key", "alternate-exchange")
MAX_AGE, MAX_BYTES, SEGMENT_BYTES = "max-age", "max-length-bytes", "stream-max-segment-size-bytes"
LARGEST_SEGMENT = 3_000_000_000
"""RabbitMQ's limit."""

WITHOUT_EFFECT = frozenset(
    {
        *("ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown"),
        *("ha-promote-on-failure", "queue-mode", "queue-version", "queue-master-locator", "queue-leader-locator"),
        *("max-in-memory-length", "max-in-memory-bytes", "dead-letter-strategy"),
        *("initial-cluster-size", "target-group-size", "max-segment-size", "stream-filter-size-bytes"),
        *("federation-upstream", "federation-upstream-set", "federation-upstream-pattern"),
    }
)
"""Where and how RabbitMQ keeps a queue, and with whom it shares it. Taken and shown, so that its definitions can be
imported; they mean nothing."""
_SIZES = {
    SEGMENT_BYTES: (0, LARGEST_SEGMENT),
    "initial-cluster-size": (0, _COUNT),
    "target-group-size": (1, _COUNT),
    "max-segment-size": (0, _COUNT),
    "stream-filter-size-bytes": (16, 255),
}
"""Numbers that are checked, and are no limit of a queue."""
NO_LIMIT = -1
_OF_STREAMS = {
    MAX_AGE: ("retention.ms", 0, MAX_HORIZON_MS),
    MAX_BYTES: ("retention.bytes", 0, _COUNT),
    SEGMENT_BYTES: ("segment.bytes", 1024, 2**31 - 1),
}
"""The topic's setting, the lowest and the highest value that it has."""


class Policy(msgspec.Struct, frozen=True, dict=True):
    """One policy of one namespace."""

    namespace: str
    name: str
    pattern: str
    definition: dict[str, Any]
    priority: int = 0
    apply_to: str = "all"

    @cached_property
    def _regex(self) -> Regex:
        return Regex(anywhere(self.pattern))

    def matches(self, name: str) -> bool:
        """Whether it is about things of this (local) name."""
        try:
            return self._regex.matches(name)
        except InvalidPattern as error:  # too many alternatives at once, which only a name can show
            logger.warning(
                "policy.not_applied", "policy {policy} does not apply: {error}", policy=self.name, error=error
            )
            return False

    def for_queues(self, queue_type: str | None) -> bool:
        kind = f"{queue_type or 'classic'}_queues"
        return self.apply_to in ("all", "queues", kind)

    @property
    def for_streams(self) -> bool:
        return self.apply_to in ("all", "queues", "streams")

    @property
    def for_exchanges(self) -> bool:
        return self.apply_to in ("all", "exchanges")


def anywhere(pattern: str) -> str:
    """The pattern of a whole name in which this one occurs somewhere, as RabbitMQ takes patterns."""
    flag = "(?i)" if pattern.startswith("(?i)") else ""
    return f"{flag}.*(?:{pattern.removeprefix(flag)}).*"


def check_policy(policy: Policy) -> Policy:
    """Raises Invalid, saying what is wrong with it. Settings that are unknown here are passed over (`check_known`)."""
    size = len(policy.name.encode(errors="replace"))
    if not 0 < size <= MAX_NAME_BYTES or not policy.name.isprintable():
        raise Invalid(f"name: a policy's has 1 to {MAX_NAME_BYTES} printable bytes, not {policy.name[:60]!r}")
    Regex(policy.pattern)  # by itself, or a parenthesis too many would go unseen
    Regex(anywhere(policy.pattern))
    if policy.apply_to not in APPLY_TO:
        raise Invalid(f"apply-to: {policy.apply_to[:60]!r} is unrecognised; should be one of {', '.join(APPLY_TO)}")
    if not -(2**31) <= policy.priority < 2**31:
        raise Invalid(f"priority: {policy.priority} is no 32-bit number")
    if not policy.definition:
        raise Invalid("definition: no policy provided")
    for key, value in policy.definition.items():
        _check_entry(key, value)
    return policy


def check_known(policy: Policy) -> None:
    """Raises Invalid if it has a setting that is none of RabbitMQ's: most likely it is misspelt."""
    for key in policy.definition:
        if key not in _KNOWN:
            known = [*_LIMITS, "overflow", *_TEXTS, MAX_AGE, SEGMENT_BYTES]
            hint = near_matches(key[:60], known) or f"; there are {', '.join(known)}"
            raise Invalid(f"definition: {key[:60]!r} is not a recognised policy setting{hint}")


def without_effect(policy: Policy) -> list[str]:
    """Its settings that change nothing, be they RabbitMQ's own or those of a plugin."""
    return [key for key in policy.definition if key in WITHOUT_EFFECT or key not in _KNOWN]


_KNOWN = frozenset({*_LIMITS, "overflow", *_TEXTS, MAX_AGE, *_SIZES, *WITHOUT_EFFECT})


def _check_entry(key: str, value: object) -> None:
    if key in _LIMITS:
        _check_number(key, value, *_LIMITS[key][1:])
    elif key in _SIZES:
        _check_number(key, value, *_SIZES[key])
    elif key == MAX_AGE:
        if not isinstance(value, str) or age_ms(value) is None:
            raise Invalid(f"{key}: {value!r} is no age such as 7D; the units are Y, M, D, h, m and s")
    elif key == "overflow":
        if value not in _OVERFLOWS:
            raise Invalid(f"overflow: {value!r} is none; it is one of {', '.join(_OVERFLOWS)}")
    elif key in _TEXTS and (not isinstance(value, str) or len(value.encode(errors="replace")) > MAX_NAME_BYTES):
        raise Invalid(f"{key}: {value!r} is not a text of at most {MAX_NAME_BYTES} bytes")


def _check_number(key: str, value: object, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise Invalid(f"{key}: {value!r} is not a number between {lowest} and {highest}")


def under(policy: Policy, settings: QueueSettings, prefix: str) -> QueueSettings:
    """Declared settings under a policy. `prefix` is its namespace's, of the full names of exchanges."""
    found: dict[str, Any] = {}
    for key, value in policy.definition.items():
        if key in _LIMITS:
            _limit(settings, _LIMITS[key][0], value, found)
    _overflow(settings, policy.definition.get("overflow"), found)
    exchange = policy.definition.get("dead-letter-exchange")
    if exchange is not None and not settings.keeps_dead:
        found["dead_letter_exchange"] = prefix + exchange if exchange else ""
    routing_key = policy.definition.get("dead-letter-routing-key")
    if routing_key is not None and settings.dead_letter_key is None:
        found["dead_letter_key"] = routing_key
    own = tuple((field, getattr(settings, field)) for field in sorted(found))
    return msgspec.structs.replace(settings, policy=policy.name, own=own, **found)


def under_stream(policy: Policy, own: Mapping[str, str]) -> dict[str, str]:
    """What a policy puts in the place of a stream's own settings: of two limits the smaller one counts here, too."""
    found: dict[str, str] = {}
    for key, (setting, lowest, highest) in _OF_STREAMS.items():
        value = policy.definition.get(key)
        if value is None:
            continue
        wanted = min(max(age_ms(value) or 0 if key == MAX_AGE else value, lowest), highest)
        present = int(own.get(setting, NO_LIMIT))
        if present == NO_LIMIT or wanted < present:
            found[setting] = str(wanted)
    return found


def _limit(settings: QueueSettings, field: str, value: int, found: dict[str, Any]) -> None:
    if field == "max_deliveries":
        if settings.queue_type == "classic" or value == NO_DELIVERY_LIMIT:
            return  # RabbitMQ has no such limit on classic queues
        value += 1  # the first delivery is not a redelivery
    if not value:  # there is no limit of nothing; what comes nearest to it is one, or time to reach who waits
        value = AT_ONCE_MS if field == "ttl_ms" else 1
    present = getattr(settings, field)
    if not present or value < present:
        found[field] = value


def _overflow(settings: QueueSettings, wanted: str | None, found: dict[str, Any]) -> None:
    """It wins over what every queue of its protocol is declared with; what differs from that was somebody's wish."""
    usual = "reject" if settings.queue_type is None else "drop-oldest"
    if wanted is not None and settings.overflow == usual and _OVERFLOWS[wanted] != usual:
        found["overflow"] = _OVERFLOWS[wanted]
