"""Durations as people write them, wherever they write them: the command line, a pipeline file, the age of a position.

One or more numbers, each with its unit: `250ms`, `30s`, `1h30m`, `1.5m`, `10 minutes`. Units are ms, s, m (or min), h,
d and w, in small letters, or their English names. A bare number is seconds on the command line, and no duration
elsewhere. RabbitMQ's `7D` and Kafka's `PT1H` are theirs: the protocols that have them read them.
"""

from __future__ import annotations

import re

from waystation.errors import Invalid

UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
"""From the longest to the shortest."""
_LETTERS = {"min": "m", **{letter: letter for letter in UNITS_MS}}
_WORDS = {"week": "w", "day": "d", "hour": "h", "minute": "m", "second": "s", "millisecond": "ms"}
_NUMBER = r"(\d{1,15}(?:\.\d{1,9})?|\.\d{1,9})"
_BARE = re.compile(_NUMBER)
_PART = re.compile(rf"\s*{_NUMBER}\s*([A-Za-z]+)\s*")


def parse_ms(text: str, *, bare_seconds: bool = False) -> int:
    """Milliseconds; Invalid says how a duration is written. `bare_seconds`: a number without a unit is one too."""
    stripped = text.strip()
    if bare_seconds and _BARE.fullmatch(stripped):
        return round(float(stripped) * 1000)
    total = 0.0
    at = 0
    while (part := _PART.match(stripped, at)) is not None:
        unit = _LETTERS.get(part[2]) or _WORDS.get(part[2].lower().removesuffix("s"))
        if unit is None:
            break
        total += float(part[1]) * UNITS_MS[unit]
        at = part.end()
    if not stripped or at < len(stripped):
        also = " (a bare number is seconds)" if bare_seconds else ""
        raise Invalid(f"{text[:40]!r} is not a duration: write 250ms, 30s, 5m, 2h, 7d, 1h30m or 10 minutes{also}")
    return round(total)


def spell_ms(ms: int) -> str:
    """Exactly, as `parse_ms` reads it: `1h30m`, `1s500ms`."""
    parts = []
    for unit, length in list(UNITS_MS.items())[1:]:
        count, ms = divmod(ms, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
