"""Durations, moments and sizes as people write and read them: 30s, 1h30m, 2026-03-01T12:00, 64MiB.

The readers are types for argparse: a text that they cannot read is an error of the command line, which says what would
do.
"""

from __future__ import annotations

import argparse
import re
import time
from datetime import UTC, datetime

from waystation.durations import UNITS_MS, parse_ms
from waystation.errors import Invalid

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def duration(text: str) -> float:
    """Seconds, from what `waystation.durations` reads; a bare number is seconds."""
    try:
        return parse_ms(text, bare_seconds=True) / 1000
    except Invalid as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def size(text: str) -> int:
    """`parse_size` for argparse."""
    try:
        return parse_size(text)
    except Invalid as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_size(text: str) -> int:
    """Bytes, from `1000`, `64KiB`, `1.5MiB`, `10MB`; Invalid says how a size is written."""
    found = _SIZE.fullmatch(text)
    if found is None or (found[3] and not found[2]):
        raise Invalid(f"{text[:40]!r} is not a size: write bytes, or 64KiB, 10MB, 1.5GiB")
    power = " kmgt".index(found[2].lower() or " ")
    unit: int = (1024 if found[3] else 1000) ** power
    return round(float(found[1]) * unit)


def moment(text: str) -> float:
    """Seconds since 1970, from `2026-03-01T12:00` (local time unless it says otherwise) or `@` and milliseconds."""
    if text.startswith("@") and text[1:].isdecimal():
        return int(text[1:]) / 1000
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write 2026-03-01T12:00, 2026-03-01T12:00:00Z or @1772366400000 (ms since 1970)"
        ) from None


def fraction(text: str) -> float:
    """A number from 0 on, like 0.2 or 2."""
    if not _NUMBER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return float(text)


def rate(text: str) -> float:
    """Messages per second, from `50` or `50/s`."""
    try:
        found = float(text.removesuffix("/s"))
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of messages per second above 0")
    return found


def spell_age(since_ms: int) -> str:
    """How long ago, in the two largest units: `3d4h`, `12s`."""
    return spell_about(time.time_ns() // 1_000_000 - since_ms)


def spell_about(ms: int) -> str:
    """A duration, roughly; nothing below a second counts."""
    rest = max(0, ms) // 1000 * 1000
    parts: list[str] = []
    for unit, length in list(UNITS_MS.items())[1:-1]:
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts) or "0s"


def spell_moment(ms: int) -> str:
    """ISO 8601, in UTC, to the millisecond."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
