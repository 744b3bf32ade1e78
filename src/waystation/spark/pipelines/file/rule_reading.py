"""What a pipeline file says about rows that are not fit for a table: expectations, and where such rows are written.

Used by `reading.py` and `step_reading.py`; imports no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from waystation.spark.pipelines.file import keys
from waystation.spark.pipelines.file.declared import (
    DeadLetter,
    Expectation,
    OnFail,
    Pipeline,
    Sink,
    Source,
    Step,
    dead_letters,
)
from waystation.spark.pipelines.file.problems import FileProblem
from waystation.spark.pipelines.file.table_reading import TableReader
from waystation.toml_file import TomlFile

ON_FAIL: dict[str, OnFail] = {"warn": "warn", "drop": "drop", "dead_letter": "dead_letter", "fail": "fail"}
MOST = 100
"""Expectations of a pipeline: each is a number in every report, and a label of the broker's metrics."""


def read_expectations(table: TableReader) -> tuple[Expectation, ...]:
    """`expect = { NAME = "RULE" }`, or with what happens to a row: `{ NAME = { rule = "…", on_fail = "drop" } }`."""
    inner = table.table("expect", "expect")
    if inner is None:
        return ()
    found = [_expectation(name, inner) for name in inner.names()]
    return tuple(one for one in found if one is not None)


def _expectation(name: str, table: TableReader) -> Expectation | None:
    if not name.isidentifier() or not name.isascii():
        table.problem(
            name, f"{name!r} cannot be the name of an expectation: write it like a column's, `{_plain(name)}`"
        )
    if isinstance(table.value(name), str):
        rule = table.text(name)
        return Expectation(name, rule) if rule is not None else None
    inner = table.table(name, f"expectation {name!r}")
    if inner is None:
        return None
    inner.refuse_others(keys.EXPECTATION)
    rule, on_fail = inner.text("rule", needed=True), inner.word("on_fail", tuple(ON_FAIL)) or "warn"
    return Expectation(name, rule, ON_FAIL[on_fail]) if rule is not None else None


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "positive"


def read_dead_letter(table: TableReader) -> DeadLetter | None:
    """`dead_letter = "TOPIC"`, `{ topic = "…" }` or `{ queue = "…" }`."""
    if isinstance(table.value("dead_letter"), str):
        topic = table.text("dead_letter")
        return DeadLetter("topic", topic) if topic is not None else None
    inner = table.table("dead_letter", "a dead_letter")
    if inner is None:
        return None
    kind = inner.one_of(keys.DEAD_LETTER)
    inner.refuse_others(keys.DEAD_LETTER)
    place = inner.text(kind) if kind is not None else None
    if place is None:
        return None
    return DeadLetter("queue" if kind == "queue" else "topic", place)


def dead_letter_sinks(kind: str, tables: Iterable[Source | Step | None]) -> Iterator[Sink]:
    """The sinks that get the dead letters of these tables."""
    for table in tables:
        if table is not None and (wanted := table.dead_letter) is not None:
            name = dead_letters(table.name)
            where = (kind, table.name, "dead_letter")
            yield Sink(name, wanted.kind, name, wanted.place, dead_letters_of=where)


def expectation_problems(pipeline: Pipeline, toml: TomlFile) -> Iterator[FileProblem]:
    """Dead letters without a place, places without dead letters, and too many expectations."""
    for kind, tables in (("source", pipeline.sources), ("step", pipeline.steps)):
        for table in tables.values():
            rejecting = [one for one in table.expect if one.on_fail == "dead_letter"]
            where = (kind, table.name)
            if rejecting and table.dead_letter is None:
                name = rejecting[0].name
                text = f"[{kind}.{table.name}] needs `dead_letter`, a topic or queue for the rows that fail {name!r}"
                yield FileProblem(toml.line((*where, "expect", name)), text)
            if kind == "step" and table.dead_letter is not None and not rejecting:
                text = 'no row gets to this dead_letter: give an expectation of the step on_fail = "dead_letter"'
                yield FileProblem(toml.line((*where, "dead_letter")), text)
    count = sum(len(found) for found in pipeline.expectations.values())
    if count > MOST:
        yield FileProblem(
            1, f"a pipeline has at most {MOST} expectations, and this one has {count}: put some into one rule"
        )
