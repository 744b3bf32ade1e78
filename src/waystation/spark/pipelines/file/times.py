"""Durations, triggers, restarts and schedules in a pipeline file."""

from __future__ import annotations

from waystation.durations import UNITS_MS, parse_ms
from waystation.errors import Invalid
from waystation.spark.pipelines.file import keys
from waystation.spark.pipelines.file.cron import CronSchedule, parse
from waystation.spark.pipelines.file.declared import RestartPolicy, Trigger
from waystation.spark.pipelines.file.table_reading import TableReader

_SPARK = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
RESTARTS = ("never", "on-failure")


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


def read_ms(table: TableReader, key: str, default_ms: int) -> int:
    """A duration at a key, in milliseconds; more than none."""
    text = table.text(key)
    if text is None:
        return default_ms
    try:
        found = parse_ms(text)
    except Invalid as error:
        table.problem(key, f"{key}: {error}")
        return default_ms
    if found <= 0:
        table.problem(key, f"{key} has to be longer than nothing, and is {text!r}")
    return found


def read_restart(top: TableReader) -> RestartPolicy | None:
    """The key `restart`: a word, or a table."""
    default = RestartPolicy()
    if isinstance(top.value("restart"), str):
        return default if top.word("restart", RESTARTS) == "on-failure" else None
    table = top.table("restart", "[restart]")
    if table is None:
        return None
    table.refuse_others(keys.RESTART)
    found = RestartPolicy(
        table.number("max_restarts"),
        read_ms(table, "initial_backoff", default.initial_backoff_ms),
        read_ms(table, "max_backoff", default.max_backoff_ms),
        read_ms(table, "reset_after", default.reset_after_ms),
    )
    if found.max_backoff_ms < found.initial_backoff_ms:
        table.problem("max_backoff", "max_backoff is shorter than initial_backoff")
    return found


def read_schedule(top: TableReader, trigger: Trigger) -> CronSchedule | None:
    """When a pipeline runs, which then has to end by itself."""
    text, zone = top.text("schedule"), top.text("time_zone")
    if text is None:
        for key in ("time_zone", "catch_up"):
            if top.value(key) is not None:
                top.problem(key, f"{key} is for a pipeline with a `schedule`, and this one has none")
        return None
    if not trigger.bounded:
        top.problem("trigger", 'a pipeline with a `schedule` has to end: trigger = "available-now" or "once"')
    try:
        return parse(text, zone or "UTC")
    except Invalid as error:
        top.problem("time_zone" if "time zone" in str(error) else "schedule", str(error))
        return None


def read_trigger(top: TableReader) -> Trigger:
    """The trigger of a pipeline."""
    text = top.text("trigger")
    if text is None:
        return Trigger() if top.value("schedule") is None else Trigger("available-now")
    if text in ("once", "available-now"):
        return Trigger("once" if text == "once" else "available-now")
    try:
        return Trigger("interval", spark_interval(parse_ms(text)))
    except Invalid as error:
        top.problem("trigger", f'trigger: {error}, or "once" or "available-now"')
        return Trigger("interval", "0 seconds")
