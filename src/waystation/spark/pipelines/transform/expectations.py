"""The expectations of a table applied to its rows: counted, and kept, dropped, rejected or an error.

A row meets an expectation if its rule is true; one for which it is false or NULL fails. All rows are counted first.
That is a fence, too: Spark moves no later filter in front of what it observes, so no row is judged that an earlier part
of the step has filtered out. Of a row that fails several, the gravest counts: fail, then dead_letter, then drop.
Used by `frames.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from waystation.errors import Invalid
from waystation.spark.pipelines.file.declared import Expectation
from waystation.spark.pipelines.output.rejected import as_dead_letters

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SAMPLE = 300
"""Characters of a row that an error shows."""


class Expected(NamedTuple):
    """A table after its expectations."""

    kept: DataFrame
    rejected: DataFrame | None
    """The rows for its dead letter, if one of the expectations asks for it."""
    counts: DataFrame | None
    """Of a table that is no stream: one row with what Spark observes of a stream."""


def check_rule(frame: DataFrame, expectation: Expectation) -> None:
    """Raises what is wrong with a rule."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import BooleanType

    kind = frame.select(F.expr(expectation.rule)).schema[0].dataType
    if not isinstance(kind, BooleanType):
        raise Invalid(f"the rule {expectation.rule!r} is no condition: it is {kind.simpleString()}, not boolean")
    frame.filter(expectation.rule).schema  # noqa: B018  (an aggregate is no rule for a row)


def expect(frame: DataFrame, pipeline: str, table: str, expectations: Sequence[Expectation]) -> Expected:
    """All of them; each is known to be a condition."""
    from waystation.spark.progress import expected_metric

    counts = _counts(expectations)
    counted = frame.observe(expected_metric(table), *counts) if frame.isStreaming else frame
    judged = _failing(counted, table, [one for one in expectations if one.on_fail == "fail"])
    kept = judged
    for one in expectations:
        if one.on_fail in ("drop", "dead_letter"):
            kept = kept.filter(_meets(one))
    grave = [one for one in expectations if one.on_fail == "dead_letter"]
    rejected = _rejected(judged, pipeline, table, grave) if grave else None
    return Expected(kept, rejected, None if frame.isStreaming else frame.agg(*counts))


def _meets(expectation: Expectation) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.expr(expectation.rule), F.lit(False))


def _counts(expectations: Sequence[Expectation]) -> list[Column]:
    from pyspark.sql import functions as F

    from waystation.spark.progress import COUNT, failed_field

    failed = [F.count_if(~_meets(one)).alias(failed_field(one.name)) for one in expectations]
    return [F.count(F.lit(1)).alias(COUNT), *failed]


def _failing(frame: DataFrame, table: str, expectations: Sequence[Expectation]) -> DataFrame:
    """A row that fails ends the query; nothing of its batch is committed."""
    from pyspark.sql import functions as F

    for one in expectations:
        said = f"expectation {one.name!r} of {table!r} failed: {one.rule} is not true for the row "
        row = F.substring(_as_json(frame), 1, SAMPLE)
        error = F.raise_error(F.concat(F.lit(said), row)).cast("boolean")
        frame = frame.filter(F.when(_meets(one), F.lit(True)).otherwise(error))
    return frame


def _rejected(frame: DataFrame, pipeline: str, table: str, expectations: Sequence[Expectation]) -> DataFrame:
    from pyspark.sql import functions as F

    names = F.concat_ws(", ", *(F.when(~_meets(one), F.lit(f"{one.name}: {one.rule}")) for one in expectations))
    fails = reduce(lambda one, other: one | other, (~_meets(one) for one in expectations))
    bad = frame.filter(fails)
    value = F.col("value") if "value" in frame.columns else _as_json(frame)
    return as_dead_letters(bad, pipeline, table, "expectation", F.concat(F.lit("failed "), names), value)


def _as_json(frame: DataFrame) -> Column:
    from pyspark.sql import functions as F

    return F.to_json(F.struct(*(F.col(f"`{name}`") for name in frame.columns)))
