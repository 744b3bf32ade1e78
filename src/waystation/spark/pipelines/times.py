"""Lengths of time in a pipeline file: `10s`, `5m`, `1h30m` as on the command line, or `10 minutes` as in Spark."""

from __future__ import annotations

import re

from waystation.spark.pipelines.declared import Trigger
from waystation.spark.pipelines.table_reading import TableReader

_UNITS = {
    "ms": "milliseconds",
    "s": "seconds",
    "m": "minutes",
    "min": "minutes",
    "h": "hours",
    "d": "days",
    "w": "weeks",
    "millisecond": "milliseconds",
    "second": "seconds",
    "minute": "minutes",
    "hour": "hours",
    "day": "days",
    "week": "weeks",
}
_PART = re.compile(r"\s*(\d+)\s*([a-z]+)\s*")
BOUNDED = ("once", "available-now")


def spark_interval(text: str) -> str | None:
    """How Spark writes this length of time; None if it is not one."""
    parts = []
    at = 0
    lowered = text.strip().lower()
    while at < len(lowered):
        part = _PART.match(lowered, at)
        if part is None:
            return None
        unit = part[2] if part[2] in _UNITS else part[2].removesuffix("s")
        if unit not in _UNITS:
            return None
        parts.append(f"{part[1]} {_UNITS[unit]}")
        at = part.end()
    return " ".join(parts) or None


def read_interval(table: TableReader, key: str, *, needed: bool = False) -> str | None:
    """A length of time at a key, as Spark writes it."""
    text = table.text(key, needed=needed)
    if text is None:
        return None
    interval = spark_interval(text)
    if interval is None:
        table.problem(key, f"{key} cannot be {text!r}: write a length of time, like 10s, 5m or 10 minutes")
    return interval


def read_trigger(top: TableReader) -> Trigger:
    """The trigger of a pipeline."""
    text = top.text("trigger")
    if text is None:
        return Trigger()
    if text in ("once", "available-now"):
        return Trigger("once" if text == "once" else "available-now")
    interval = spark_interval(text)
    if interval is None:
        top.problem("trigger", f'trigger cannot be {text!r}: write "once", "available-now" or an interval like "10s"')
    return Trigger("interval", interval or "0 seconds")
