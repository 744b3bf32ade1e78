"""The failure history in a message's headers (`x-death`), as RabbitMQ spells it and as the broker does.

The broker's `x-death` has times in epoch ms, full names and its own words for the reasons; in a topic it is JSON. What
AMQP clients read is RabbitMQ's: a list of tables, times as AMQP timestamps, counts of 64 bits, the names of their own
virtual host. A client may send what it got on: then the broker reads its own spelling again. Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from waystation.wire.amqp.tables import Long

X_DEATH = "x-death"
OUR_REASONS = {"maxlen": "overflow", "delivery_limit": "delivery-limit"}
RABBIT_REASONS = {ours: theirs for theirs, ours in OUR_REASONS.items()}

_REASONS = ("x-first-death-reason", "x-last-death-reason")
_NAMES = ("x-first-death-queue", "x-first-death-exchange", "x-last-death-queue", "x-last-death-exchange")
DEATH_HEADERS = frozenset((X_DEATH, *_REASONS, *_NAMES))


class LocalNames(Protocol):
    """A virtual host's names: what its clients call what the broker knows by a full name."""

    def local(self, full: str) -> str: ...


def death_headers_in(headers: dict[str, Any]) -> dict[str, Any]:
    """A sender's headers with the history in the broker's words."""
    if DEATH_HEADERS.isdisjoint(headers):
        return headers
    found = dict(headers)
    history = found.get(X_DEATH)
    if isinstance(history, list):
        found[X_DEATH] = [_death_in(death) if isinstance(death, dict) else death for death in history]
    for name in _REASONS:
        if name in found:
            found[name] = _word(found[name], OUR_REASONS)
    return found


def _death_in(death: dict[str, Any]) -> dict[str, Any]:
    found = dict(death)
    if isinstance(found.get("time"), datetime):
        found["time"] = int(found["time"].timestamp()) * 1000
    if "reason" in found:
        found["reason"] = _word(found["reason"], OUR_REASONS)
    return found


def death_headers_out(headers: dict[str, Any], names: LocalNames) -> dict[str, Any]:
    """A message's headers with the history in RabbitMQ's words."""
    if not headers or DEATH_HEADERS.isdisjoint(headers):
        return headers
    found = dict(headers)
    history = _listed(found.get(X_DEATH))
    if isinstance(history, list):
        found[X_DEATH] = [_death_out(death, names) if isinstance(death, dict) else death for death in history]
    for name in _REASONS:
        if name in found:
            found[name] = _word(found[name], RABBIT_REASONS)
    for name in _NAMES:
        if isinstance(found.get(name), str):
            found[name] = names.local(found[name])
    return found


def _listed(history: Any) -> Any:
    """In a topic, where headers are text, the history is JSON."""
    if not isinstance(history, str) or not history.startswith("["):
        return history
    try:
        return msgspec.json.decode(history)
    except msgspec.DecodeError:
        return history


def _death_out(death: dict[str, Any], names: LocalNames) -> dict[str, Any]:
    found = dict(death)
    found.pop("deliveries", None)  # ours; RabbitMQ's readers do not expect it
    at_ms = found.get("time")
    if type(at_ms) is int and 0 <= at_ms < _LAST_MS:
        found["time"] = datetime.fromtimestamp(at_ms // 1000, UTC)
    if type(found.get("count")) is int:
        found["count"] = Long(found["count"])
    if "reason" in found:
        found["reason"] = _word(found["reason"], RABBIT_REASONS)
    for name in ("queue", "exchange"):
        if isinstance(found.get(name), str):
            found[name] = names.local(found[name])
    return found


_LAST_MS = 253_402_300_800_000
"""The year 10000, which a datetime cannot be in."""


def _word(reason: Any, words: dict[str, str]) -> Any:
    return words.get(reason, reason) if isinstance(reason, str) else reason
