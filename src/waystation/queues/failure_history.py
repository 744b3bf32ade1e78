"""The failure history of a message, which it carries with it: the header `x-death`, as RabbitMQ has it.

A list, the latest death first. A message that died in the same queue for the same reason before counts up instead.
Never in a cycle: `cycles` says whether a message would come back, by no consumer's doing, to where it died already.
Pure; whoever moves dead letters calls it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.message import Message
from waystation.queues.shard.upkeep import REJECTED

X_DEATH = "x-death"
FIRST_DEATH, LAST_DEATH = "x-first-death-", "x-last-death-"
TOPIC_TARGET = "topic:"
"""Before a topic's name, where a queue's might stand."""
EXCHANGE_TARGET = "exchange:"
MAX_FAILURES = 20
"""Deaths that a message remembers."""
_FIRST_TIME = ("exchange", "routing-keys", "original-expiration")
"""Of several deaths in one queue for one reason, the failure history tells how the message came there first, as
RabbitMQ's."""


def failure_history_of(message: Message) -> list[dict[str, Any]]:
    """The deaths of a message, the latest first."""
    history = message.headers.get(X_DEATH)
    if isinstance(history, str | bytes):
        try:
            history = msgspec.json.decode(history)
        except msgspec.DecodeError:
            return []
    return [death for death in history if isinstance(death, dict)] if isinstance(history, list) else []


def with_death(message: Message, source: str, reason: str, at_ms: int, deliveries: int, error: str | None) -> list[Any]:
    """The failure history with one more death."""
    history = failure_history_of(message)
    latest: dict[str, Any] = {"queue": source, "reason": reason, "time": at_ms, "count": 1, "deliveries": deliveries}
    if error is not None:
        latest["error"] = error
    if message.exchange is not None or message.routing_key is not None:
        latest["exchange"] = message.exchange or ""
        latest["routing-keys"] = [message.routing_key or "", *copied_to(message, "CC")]
    if message.ttl_ms is not None:
        latest["original-expiration"] = str(message.ttl_ms)  # which a dead letter has no more
    for i, death in enumerate(history):
        if death.get("queue") == source and death.get("reason") == reason:
            count = death.get("count")  # which a sender may have made up
            latest["count"] = count + 1 if type(count) is int and 0 < count < 2**31 else 2
            latest |= {field: death[field] for field in _FIRST_TIME if field in death}
            del history[i]
            break
    return [latest, *history][:MAX_FAILURES]


def copied_to(message: Message, *headers: str) -> list[str]:
    """Further routing keys that the sender named in a header (`CC`, `BCC`)."""
    found: list[str] = []
    for name in headers:
        keys = message.headers.get(name)
        if isinstance(keys, list):
            found += [key if isinstance(key, str) else str(key, "utf-8", "replace") for key in keys if _is_key(key)]
    return found


def _is_key(key: object) -> bool:
    return isinstance(key, str | bytes)


def brief(history: list[Any], before: Message) -> dict[str, str]:
    """The first and the last death of a failure history in headers of their own, as clients of RabbitMQ look for
    them."""
    latest = history[0]
    headers: dict[str, str] = {}
    for prefix in (LAST_DEATH,) if f"{FIRST_DEATH}queue" in before.headers else (LAST_DEATH, FIRST_DEATH):
        for field in ("queue", "reason", "exchange"):
            headers[prefix + field] = latest.get(field, "")
    return headers


def cycles(message: Message, source: str, target: str, reason: str) -> bool:
    """Whether it died in `target` before, and no consumer has rejected it since, nor now in `source`."""
    if reason == REJECTED:
        return False
    if source == target:
        return True
    history = failure_history_of(message)
    for death in history:
        if death.get("reason") == REJECTED:
            return False
        if death.get("queue") == target:
            return True
    return len(history) >= MAX_FAILURES  # what it forgot may have been there; nobody dies so often without a circle
