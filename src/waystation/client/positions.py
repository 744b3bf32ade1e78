"""Where to begin in a topic, as people say it, and the offsets that this means in each partition.

`earliest`, `latest`, an offset, `-N` (the last N of each partition), a time (ISO 8601, or `@` and epoch milliseconds)
or an age (`90s`, `15m`, `2h`, `7d` ago). What is before a partition's first record means its first, what is after its
last means its end. Used by `consume --from` and `groups reset --to`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from waystation.client.topics import EARLIEST, LATEST, NO_OFFSET, Found, Place, find_offsets
from waystation.client.wire import Connection
from waystation.errors import Invalid

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGE = re.compile(r"(\d+)(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class Start:
    """A place to begin. `value` is the offset, the count or the epoch milliseconds."""

    kind: Literal["earliest", "latest", "offset", "last", "time"]
    value: int = 0


def parse_start(text: str, now_ms: int) -> Start:
    """Reads what a person wrote; raises Invalid that lists what would do."""
    if text in ("earliest", "beginning"):
        return Start("earliest")
    if text in ("latest", "end"):
        return Start("latest")
    if text.isdecimal():
        return Start("offset", int(text))
    if text.startswith("-") and text[1:].isdecimal():
        return Start("last", int(text[1:]))
    if text.startswith("@") and text[1:].isdecimal():
        return Start("time", int(text[1:]))
    age = _AGE.fullmatch(text)
    if age is not None:
        return Start("time", now_ms - int(age[1]) * _UNITS_MS[age[2]])
    try:
        return Start("time", round(datetime.fromisoformat(text).timestamp() * 1000))
    except ValueError:
        raise Invalid(
            f"{text!r} is not a place to begin: write earliest, latest, an offset, -N (the last N), a time like"
            " 2026-03-01T12:00 or @1772366400000, or an age like 15m"
        ) from None


def resolve(connection: Connection, start: Start, places: Sequence[Place]) -> dict[Place, int]:
    """The offset in each partition."""
    if not places:
        return {}
    if start.kind == "earliest":
        return _offsets(_find(connection, places, EARLIEST))
    ends = _offsets(_find(connection, places, LATEST))
    if start.kind == "latest":
        return ends
    if start.kind == "time":
        found = _offsets(_find(connection, places, start.value))
        return {place: ends[place] if offset == NO_OFFSET else offset for place, offset in found.items()}
    begins = _offsets(_find(connection, places, EARLIEST))
    wanted = {place: start.value if start.kind == "offset" else ends[place] - start.value for place in places}
    return {place: min(max(offset, begins[place]), ends[place]) for place, offset in wanted.items()}


def _find(connection: Connection, places: Sequence[Place], timestamp: int) -> dict[Place, Found]:
    return find_offsets(connection, dict.fromkeys(places, timestamp))


def _offsets(found: dict[Place, Found]) -> dict[Place, int]:
    return {place: one.offset for place, one in found.items()}
