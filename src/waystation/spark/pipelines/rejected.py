"""The rows of a table that are not fit for it, as messages for its `dead_letter`.

A dead letter has what the row had of a message: its key, its value and its headers, and headers that say why it is here
and where it was. It keeps neither its time, by which retention would delete it early, nor a delay or a time to live.
Used by `frames.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PREFIX = "x-dead-letter-"
ORIGIN = ("topic", "partition", "offset", "queue", "tag")
"""Columns that say where a row was; each is a header, if the table still has it."""
KEPT = ("id", "priority", "contentType")

HEADERS = "array<struct<key:string,value:binary>>"


def malformed_rows(frame: DataFrame, pipeline: str, table: str) -> DataFrame:
    """The values of a source that do not fit its schema, as they came."""
    from pyspark.sql import functions as F

    from waystation.spark.json_values import CORRUPT

    kind = frame.schema["value"].dataType.simpleString().removeprefix("struct<").removesuffix(">")
    why = F.lit(f"the value does not fit the schema: {kind}"[:500])
    bad = frame.filter(F.col(CORRUPT).isNotNull())
    return as_dead_letters(bad, pipeline, table, "malformed", why, F.col(CORRUPT))


def as_dead_letters(rows: DataFrame, pipeline: str, table: str, reason: str, error: Column, value: Column) -> DataFrame:
    """`reason` is one word for programs, `error` says it to people."""
    from pyspark.sql import functions as F

    told = {"reason": F.lit(reason), "error": error, "pipeline": F.lit(pipeline), "table": F.lit(table)}
    told |= {name: F.col(name) for name in ORIGIN if name in rows.columns}
    added = F.array(
        *(
            F.struct(F.lit(f"{PREFIX}{name}").alias("key"), column.cast("string").cast("binary").alias("value"))
            for name, column in told.items()
        )
    )
    columns = [F.col("key").cast("binary").alias("key")] if "key" in rows.columns else []
    columns += [value.cast("binary").alias("value"), F.concat(_headers(rows), added).alias("headers")]
    columns += [F.col(name) for name in KEPT if name in rows.columns]
    return rows.select(*columns)


def _headers(rows: DataFrame) -> Column:
    """Those that the row has, if it has any."""
    from pyspark.sql import functions as F

    own = F.col("headers") if "headers" in rows.columns else F.lit(None)
    return F.coalesce(own.cast(HEADERS), F.array().cast(HEADERS))
