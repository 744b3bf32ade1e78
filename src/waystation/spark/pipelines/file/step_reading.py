"""The steps of a pipeline file, read. Used by `reading.py` alone."""

from __future__ import annotations

from waystation.spark.pipelines.file import keys
from waystation.spark.pipelines.file.declared import Dedup, Join, Stateful, Step, Watermark, Window
from waystation.spark.pipelines.file.rule_reading import read_dead_letter, read_expectations
from waystation.spark.pipelines.file.table_reading import TableReader
from waystation.spark.pipelines.file.times import read_interval

JOINS = ("inner", "left", "right", "full", "semi", "anti", "cross")


def read_step(name: str, table: TableReader) -> Step | None:
    """A step; None where it says too little to go on with."""
    table.refuse_others(keys.STEP)
    inputs = table.texts("from")
    sql = table.text("sql")
    does = [key for key in keys.STEP if key != "from" and table.value(key) is not None]
    if not does and table.knows_all(keys.STEP):
        table.problem((), f"[step.{name}] does nothing: add one of {', '.join(k for k in keys.STEP if k != 'from')}")
    if not does:
        return None
    if sql is None and not inputs and table.value("sql") is None:
        table.problem((), f"[step.{name}] needs `from`, the table that it is made of")
    if len(inputs) > 1 and table.value("python") is None:
        table.problem("from", "only `python` takes several tables; use `join`, or `sql`")
    if sql is not None and inputs:
        table.problem("from", "a step with `sql` names its tables in the query: leave `from` out")
    if table.value("python") is not None and table.value("stateful") is not None:
        table.problem("stateful", "python and stateful are two steps: write them one after the other")
    aggregate = table.options("aggregate")
    window, group = _window(table), table.texts("group")
    if (window or group) and not aggregate:
        key = "window" if window else "group"
        table.problem(key, f'{key} gathers rows for `aggregate`: add it, like aggregate = {{ n = "count(*)" }}')
    return Step(
        name=name,
        inputs=inputs,
        sql=sql,
        watermark=read_watermark(table),
        filter=table.text("filter"),
        join=_join(table),
        dedup=_dedup(table),
        window=window,
        group=group,
        aggregate=aggregate,
        python=_reference(table, "python"),
        stateful=_stateful(table),
        select=table.texts("select"),
        expect=read_expectations(table),
        dead_letter=read_dead_letter(table),
    )


def read_watermark(table: TableReader) -> Watermark | None:
    inner = table.table("watermark", "a watermark")
    if inner is None:
        return None
    inner.refuse_others(keys.WATERMARK)
    column, delay = inner.text("column", needed=True), read_interval(inner, "delay", needed=True)
    return Watermark(column, delay) if column and delay else None


def _join(table: TableReader) -> Join | None:
    inner = table.table("join", "a join")
    if inner is None:
        return None
    inner.refuse_others(keys.JOIN)
    other, how = inner.text("with", needed=True), inner.word("how", JOINS) or "inner"
    on = inner.value("on")
    if on is None and how != "cross":
        inner.problem((), "a join needs `on`: columns that both tables have, or a SQL condition")
    condition = on if isinstance(on, str) and not on.strip().isidentifier() else inner.texts("on")
    return Join(other, condition, how) if other else None


def _dedup(table: TableReader) -> Dedup | None:
    if not isinstance(table.value("dedup"), dict):
        columns = table.texts("dedup")
        return Dedup(columns) if columns else None
    inner = table.table("dedup", "dedup")
    if inner is None:
        return None
    inner.refuse_others(keys.DEDUP)
    columns = inner.texts("columns")
    if not columns:
        inner.problem((), "dedup needs `columns`")
    return Dedup(columns, bool(inner.flag("within_watermark")))


def _window(table: TableReader) -> Window | None:
    inner = table.table("window", "a window")
    if inner is None:
        return None
    inner.refuse_others(keys.WINDOW)
    column = inner.text("column", needed=True)
    size, slide = read_interval(inner, "size"), read_interval(inner, "slide")
    gap = read_interval(inner, "gap")
    if (inner.value("size") is None) == (inner.value("gap") is None):
        inner.problem((), "a window needs either `size` or `gap`")
    if column is None or (size or gap) is None:
        return None
    return Window(column, size or gap or "", slide, gap=size is None)


def _stateful(table: TableReader) -> Stateful | None:
    inner = table.table("stateful", "stateful")
    if inner is None:
        return None
    inner.refuse_others(keys.STATEFUL)
    processor = _reference(inner, "processor", needed=True)
    group, output = inner.texts("group"), inner.text("output", needed=True)
    if not group:
        inner.problem((), "stateful needs `group`: the columns that have a state together")
    mode = inner.word("mode", ("append", "update")) or "append"
    time = inner.word("time", ("none", "processing", "event")) or "none"
    return Stateful(processor, group, output, mode, time) if processor and output and group else None


def _reference(table: TableReader, key: str, *, needed: bool = False) -> str | None:
    """`FILE:NAME` or `MODULE:NAME`."""
    text = table.text(key, needed=needed)
    if text is not None:
        module, colon, name = text.rpartition(":")
        if not colon or not module or not name.isidentifier():
            table.problem(key, f"{key} cannot be {text!r}: write FILE.py:NAME, or MODULE:NAME")
            return None
    return text
