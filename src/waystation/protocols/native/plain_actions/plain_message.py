"""Messages as the plain actions write them: their field names and units, and ours beside them.

In: `expiry` and `timestamp` in epoch seconds, `max_retries`, `retry_count`; any other field as in `message_json.py`.
Out: the same fields, always all of them, since their readers look for all.
"""

from __future__ import annotations

from typing import Any

from waystation.errors import Expired, Invalid
from waystation.message import Delivered, Message, Priority
from waystation.message_json import from_sender, id_of, to_json_object

_OUR_TIMES = ("ttl_ms", "timestamp_ms", "max_deliveries", "taken_ms", "deliveries", "source", "tag")

_SAME = {"expiry": "ttl_ms", "timestamp": "timestamp_ms", "max_retries": "max_deliveries"}


def from_plain(given: Any, now_ms: int) -> tuple[str, Message]:
    """(topic, message). Raises Invalid, naming the field, or Expired."""
    if not isinstance(given, dict):
        raise Invalid("message: must be a JSON object")
    fields = dict(given)
    topic = fields.pop("topic", None)
    if not isinstance(topic, str) or not topic:
        raise Invalid("Missing required field: 'topic'" if topic is None else "topic: must be text")
    fields.pop("retry_count", None)  # the broker counts
    for theirs, ours in _SAME.items():
        if fields.get(theirs) is not None and fields.get(ours) is not None:
            raise Invalid(f"{theirs}: give either {theirs} or {ours}, not both")
    expiry = _number(fields.pop("expiry", None), "expiry")
    if expiry is not None:
        if expiry * 1000 <= now_ms:
            raise Expired("expiry: the message has expired already")
        fields["ttl_ms"] = max(1, int(expiry * 1000) - now_ms)
    timestamp = _number(fields.pop("timestamp", None), "timestamp")
    if timestamp is not None:
        fields["timestamp_ms"] = int(timestamp * 1000)
    retries = _number(fields.pop("max_retries", None), "max_retries")
    if retries is not None:
        if not retries.is_integer():
            raise Invalid(f"max_retries: must be a whole number, not {retries}")
        fields["max_deliveries"] = int(retries) + 1
    return topic, from_sender(fields)


def to_plain(delivered: Delivered) -> dict[str, Any]:
    """A message with all fields that a client of the plain actions reads."""
    message = delivered.message
    found = to_json_object(delivered)
    for name in _OUR_TIMES:
        found.pop(name, None)
    found["id"] = id_of(delivered)
    found["topic"] = delivered.source
    found.setdefault("headers", {})
    found["timestamp"] = (delivered.taken_ms if message.timestamp_ms is None else message.timestamp_ms) / 1000
    found["priority"] = plain_priority(message.priority)
    found["expiry"] = None if message.ttl_ms is None else (delivered.taken_ms + message.ttl_ms) / 1000
    found["retry_count"] = max(0, delivered.deliveries - 1)
    if message.max_deliveries:
        found["max_retries"] = message.max_deliveries - 1
    return found


def plain_priority(priority: int) -> int:
    """Their clients know 1 to 4 and cannot read another number. A message that says nothing is a normal one."""
    if not priority:
        return int(Priority.NORMAL)
    return min(priority, int(Priority.CRITICAL))


def _number(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**40:
        raise Invalid(f"{name}: must be a number, not below zero")
    return float(value)
