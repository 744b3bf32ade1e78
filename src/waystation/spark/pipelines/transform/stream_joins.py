"""Joins of two streams that would keep their rows forever. Spark runs an inner one without a warning.

Spark forgets a row of one stream when the other's watermark says that nothing can match it any more. For that both need
a watermark, and the condition has to bound the two times by each other, or be equal in one of them. Whether it does is
asked of the code with which Spark itself decides. Used by `checking.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from waystation.errors import Invalid
from waystation.spark.pipelines.file.declared import Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARKED = "spark.watermarkDelayMs"
"""What Spark notes of a column that has a watermark."""
SOME_TIME = 2**40
"""Any time: only whether a bound follows from it counts. Too large for an int of Java, so that it is a long there."""


def check_stream_joins(frame: DataFrame, step: Step) -> None:
    """Invalid, with what to add, if the step joins streams without a bound."""
    plan: Any = frame._jdf.queryExecution().analyzed()
    for join in _joins(plan):
        _check(join, frame, step)


def _joins(plan: Any) -> Iterator[Any]:
    """The joins of two streams in a plan."""
    if plan.nodeName() == "Join" and plan.left().isStreaming() and plan.right().isStreaming():
        yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _joins(children.apply(number))


def _check(join: Any, frame: DataFrame, step: Step) -> None:
    sides = {_name(step, "left"): join.left(), _name(step, "right"): join.right()}
    marks = {name: _marked(side) for name, side in sides.items()}
    kept = "this joins two streams, so Spark keeps the rows of both until their watermarks pass"
    if without := [name for name, columns in marks.items() if not columns]:
        raise Invalid(
            f"{kept}, and {' and '.join(without)} {'have' if without[1:] else 'has'} none: add watermark ="
            ' { column = "timestamp", delay = "10 minutes" } there, keep that column in its `select`, and add a time'
            " range to the condition of the join"
        )
    if not _bounded(join, frame):
        (left, left_columns), (right, right_columns) = marks.items()
        one, other = f"{left}.{left_columns[0]}", f"{right}.{right_columns[0]}"
        raise Invalid(
            f"{kept}, and the condition does not say how far apart their times may be: add a time range, like"
            f" {other} BETWEEN {one} AND {one} + INTERVAL 1 HOUR"
        )


def _name(step: Step, side: str) -> str:
    if step.join is None or not step.inputs:
        return f"{side}_table"
    return step.inputs[0] if side == "left" else step.join.table


def _marked(plan: Any) -> list[str]:
    """The columns of a side that have a watermark."""
    columns = plan.output()
    every = (columns.apply(number) for number in range(columns.size()))
    return [str(column.name()) for column in every if column.metadata().contains(MARKED)]


def _bounded(join: Any, frame: DataFrame) -> bool:
    jvm: Any = frame.sparkSession._jvm
    spark = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    if spark.isWatermarkInJoinKeys(join):
        return True
    left, right, some = join.left().outputSet(), join.right().outputSet(), jvm.scala.Some(SOME_TIME)
    return all(
        spark.getStateValueWatermark(one, other, join.condition(), some).isDefined()
        for one, other in ((left, right), (right, left))
    )
