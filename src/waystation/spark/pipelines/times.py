"""Durations and triggers in a pipeline file."""

from __future__ import annotations

from waystation.durations import UNITS_MS, parse_ms
from waystation.errors import Invalid
from waystation.spark.pipelines.declared import Trigger
from waystation.spark.pipelines.table_reading import TableReader

_SPARK = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
BOUNDED = ("once", "available-now")


def spark_interval(ms: int) -> str:
    """How Spark writes a duration."""
    parts = []
    for unit, name in _SPARK.items():
        count, ms = divmod(ms, UNITS_MS[unit])
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts) or "0 seconds"


def read_interval(table: TableReader, key: str, *, needed: bool = False) -> str | None:
    """A duration at a key, as Spark writes it."""
    text = table.text(key, needed=needed)
    if text is None:
        return None
    try:
        return spark_interval(parse_ms(text))
    except Invalid as error:
        table.problem(key, f"{key}: {error}")
        return None


def read_trigger(top: TableReader) -> Trigger:
    """The trigger of a pipeline."""
    text = top.text("trigger")
    if text is None:
        return Trigger()
    if text in ("once", "available-now"):
        return Trigger("once" if text == "once" else "available-now")
    try:
        return Trigger("interval", spark_interval(parse_ms(text)))
    except Invalid as error:
        top.problem("trigger", f'trigger: {error}, or "once" or "available-now"')
        return Trigger("interval", "0 seconds")
