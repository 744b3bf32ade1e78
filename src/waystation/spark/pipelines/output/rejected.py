"""The rows of a table that are not fit for it, as messages for its `dead_letter`.

A dead letter has what the row had of a message: its key, its value and its headers, and headers that say why it is here
and where it was. It keeps neither its time, by which retention would delete it early, nor a delay or a time to live.
Used by frames and expectations (`transform/`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.spark.pipelines.file.declared import DEAD_LETTER_HEADERS, Sink
from waystation.spark.pipelines.output.sinks import as_messages, uniform

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORIGIN = ("topic", "partition", "offset", "queue", "tag")
"""Columns that say where a row was; each is a header, if the table still has it."""
KEPT = {"id": "string", "priority": "int", "contentType": "string"}
"""Columns of a message, with their types: a table may mean something else by these names."""
HEADERS = ("array<struct<key:string,value:", "map<string,")
"""How the types of headers begin."""


def malformed_rows(frame: DataFrame, pipeline: str, table: str) -> DataFrame:
    """The values of a source that do not fit its schema, as they came."""
    from pyspark.sql import functions as F

    from waystation.spark.values.json_values import CORRUPT

    kind = frame.schema["value"].dataType.simpleString().removeprefix("struct<").removesuffix(">")
    why = F.lit(f"the value does not fit the schema: {kind}"[:500])
    bad = frame.filter(F.col(CORRUPT).isNotNull())
    return as_dead_letters(bad, pipeline, table, "malformed", why, F.col(CORRUPT))


def as_dead_letters(rows: DataFrame, pipeline: str, table: str, reason: str, error: Column, value: Column) -> DataFrame:
    """`reason` is one word for programs, `error` says it to people."""
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
    told = {"reason": F.lit(reason), "error": error, "pipeline": F.lit(pipeline), "table": F.lit(table)}
    told |= {name: F.col(name) for name in ORIGIN if kinds.get(name) in ("string", "int", "bigint")}
    added = F.array(
        *(
            F.struct(
                F.lit(f"{DEAD_LETTER_HEADERS}{name}").alias("key"), column.cast("string").cast("binary").alias("value")
            )
            for name, column in told.items()
        )
    )
    columns = [F.col("key")] if "key" in kinds else []
    columns.append(value.alias("value"))
    if kinds.get("headers", "").startswith(HEADERS):
        own = uniform(rows, "headers")
        added = F.concat(F.coalesce(own, F.array().cast(rows.select(own).schema[0].dataType)), added)
    columns.append(added.alias("headers"))
    if "value" in kinds:
        columns += [F.col(name) for name, kind in KEPT.items() if kinds.get(name) == kind]
    letters = as_messages(rows.select(*columns), Sink("", "topic", ""))
    return letters.select(*(uniform(letters, name).alias(name) for name in letters.columns))
