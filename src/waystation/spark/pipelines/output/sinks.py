"""The sinks of a pipeline as Spark queries: each query has a checkpoint of its own below the pipeline's.

A frame that is a stream becomes a streaming query; one that is not (all its sources are static) is written once. What a
topic or queue gets is made here: a key, a value, and the message columns that the frame has. Used by `running.py` and,
for what a message is made of, by `checking.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from waystation.errors import Invalid
from waystation.spark.pipelines.file.declared import DEAD_LETTER_HEADERS, DeadLetter, Pipeline, Sink
from waystation.spark.pipelines.file.queries import Query
from waystation.spark.pipelines.output.encoding import encoded
from waystation.spark.pipelines.output.tables import table_writer
from waystation.spark.pipelines.status.registry import connect_any
from waystation.spark.values.value_formats import ValueFormat
from waystation.spark.writing.sink_options import TXN_NAMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.streaming.query import StreamingQuery

MESSAGE_COLUMNS = ("headers", "timestamp", "priority", "delayMs", "ttlMs", "id", "contentType")
"""Columns that are handed on with a value. The partition is the key's."""


def query_name(pipeline: Pipeline, query: Query) -> str:
    """What Spark calls the query; a memory sink's table has the query's name."""
    first = query.sinks[0]
    return first.place if first.kind == "memory" else f"{pipeline.name}/{query.name}"


def as_messages(frame: DataFrame, sink: Sink) -> DataFrame:
    """The columns that the sink `waystation` takes.

    Without a value, given or as a column, the whole row is the value, as JSON; then no column of it means anything
    else, but for the destinations: a count by `partition` must not choose one.
    """
    from pyspark.sql import functions as F

    check_key(frame, sink)
    columns: list[Column] = [F.col(name) for name in sink.destinations]
    if sink.key is not None:
        columns.append(_text(F.expr(sink.key), frame, sink.key).alias("key"))
    elif "key" in frame.columns:
        columns.append(_text(F.col("key"), frame, "key").alias("key"))
    if sink.format is not None:
        return frame.select(*columns, _unless_deleted(_typed(frame, sink.format, sink), sink).alias("value"))
    if sink.value is None and "value" not in frame.columns:
        row = frame.drop(*sink.destinations).columns if sink.destinations else ["*"]
        return frame.select(*columns, _unless_deleted(F.to_json(F.struct(*row)), sink).alias("value"))
    expression = sink.value or "value"
    columns.append(_unless_deleted(_text(F.expr(expression), frame, expression), sink).alias("value"))
    columns += [F.col(name) for name in MESSAGE_COLUMNS if name in frame.columns]
    return frame.select(*columns)


def _typed(frame: DataFrame, wanted: ValueFormat, sink: Sink) -> Column:
    """In a format with a schema the value is the row, but for a column `key` that is the message's."""
    without = ("key",) if sink.key is None else ()
    return encoded(frame, wanted, sink.value, without=without)


def check_key(frame: DataFrame, sink: Sink) -> None:
    """Raises Invalid for an upsert of rows that have no key."""
    if sink.upserts and sink.key is None and "key" not in frame.columns:
        raise Invalid(
            'an upsert replaces the row that has the same key, and this has none: add key = "…", a SQL expression'
        )


def _unless_deleted(value: Column, sink: Sink) -> Column:
    """No value where the row deletes its key. A condition that is null does not hold."""
    from pyspark.sql import functions as F

    return value if sink.delete_when is None else F.when(F.expr(sink.delete_when), F.lit(None)).otherwise(value)


def _text(column: Column, frame: DataFrame, expression: str) -> Column:
    """Text and bytes as they are, structures as JSON, the rest as text."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType, VariantType

    kind = frame.selectExpr(expression).schema[0].dataType
    if isinstance(kind, StringType | BinaryType):
        return column
    return (
        F.to_json(column) if isinstance(kind, StructType | MapType | ArrayType | VariantType) else column.cast("string")
    )


def rows_of(pipeline: Pipeline, frame: DataFrame, sink: Sink, observed: str | Observation) -> DataFrame:
    """What a sink gets of its table. Spark tells under `observed` how many rows that were."""
    from pyspark.sql import functions as F

    from waystation.spark.progress import COUNT, DEAD_LETTERS
    from waystation.spark.writing.destinations import DEAD

    rows = as_messages(frame, sink) if sink.messages else frame
    counts = [F.count(F.lit(1)).alias(COUNT)]
    if sink.dead_letters_of:
        counts.append(F.count(F.lit(1)).alias(DEAD_LETTERS))
    if sink.dead_letter is None:
        return rows.observe(observed, *counts)
    counts.append(F.count_if(DEAD).alias(DEAD_LETTERS))
    return _with_dead_letters(pipeline, rows, sink, sink.dead_letter).observe(observed, *counts).drop(DEAD)


def _with_dead_letters(pipeline: Pipeline, rows: DataFrame, sink: Sink, letters: DeadLetter) -> DataFrame:
    """Rows that cannot go where they say go to the dead letter; a column says which."""
    from pyspark.sql import functions as F

    from waystation.spark.writing.destinations import DEAD, with_dead_letters

    headers = F.array().cast(HEADERS)
    added = {name: F.lit(None).cast("string") for name in ("topic", "queue") if name not in rows.columns}
    added |= {"headers": F.coalesce(uniform(rows, "headers"), headers) if "headers" in rows.columns else headers}
    rows = rows.withColumns({**added, DEAD: F.lit(False)})
    told = {"reason": "destination", "pipeline": pipeline.name, "table": sink.table}
    named = {f"{DEAD_LETTER_HEADERS}{name}": text for name, text in told.items()}
    return rows.mapInArrow(with_dead_letters(pipeline.servers, letters.kind, letters.place, named), rows.schema)


HEADERS = "array<struct<key:string,value:binary>>"
UNIFORM = {
    "topic": "string",
    "queue": "string",
    "key": "binary",
    "value": "binary",
    "priority": "bigint",
    "delayMs": "bigint",
    "ttlMs": "bigint",
    "id": "string",
    "contentType": "string",
}


def all_messages(pipeline: Pipeline, query: Query, frames: Mapping[str, DataFrame]) -> DataFrame:
    """The messages of several sinks, each with its destination: written together, they are committed together. Their
    common source is read as one, so all of them see the same messages in a batch."""
    from pyspark.sql import functions as F

    from waystation.spark.progress import written_metric

    parts = []
    for sink in query.sinks:
        part = rows_of(pipeline, frames[sink.table], sink, written_metric(sink.name))
        part = part.select(*(uniform(part, name).alias(name) for name in part.columns))
        if not sink.destinations:
            part = part.withColumn(sink.kind, F.lit(sink.place))
        parts.append(part)
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def uniform(frame: DataFrame, name: str) -> Column:
    """A column in the one type in which all sinks have it."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType, MapType

    column, kind = F.col(name), frame.schema[name].dataType
    if name == "timestamp":
        return F.timestamp_millis(column) if isinstance(kind, LongType) else column.cast("timestamp")
    if name == "headers":
        entries = F.map_entries(column) if isinstance(kind, MapType) else column
        return entries.cast(HEADERS)
    return column.cast(UNIFORM[name])


def start_query(
    pipeline: Pipeline, query: Query, frames: Mapping[str, DataFrame], checkpoint: str, identity: str
) -> StreamingQuery:
    """Starts a streaming query. `identity` is the checkpoint's: it changes when that is reset."""
    from waystation.spark.progress import written_metric

    sink, trigger = query.sinks[0], pipeline.trigger
    together = len(query.sinks) > 1
    if together:
        rows = all_messages(pipeline, query, frames)
    else:
        rows = rows_of(pipeline, frames[sink.table], sink, written_metric(sink.name))
    writer: Any = rows.writeStream
    writer = writer.outputMode(sink.output_mode).queryName(query_name(pipeline, query)).options(**_options(sink))
    if sink.kind != "memory":  # what is in memory is lost at a restart, so it starts over
        writer = writer.option("checkpointLocation", checkpoint)
    if sink.partition_by and sink.kind == "parquet":
        writer = writer.partitionBy(*sink.partition_by)
    if sink.kind in ("delta", "iceberg"):
        writer = writer.foreachBatch(table_writer(sink, f"{pipeline.name}/{sink.name}/{identity}"))
    elif sink.messages and sink.mode != "append":
        writer = writer.foreachBatch(message_writer(pipeline, sink, f"{sink.name}/{identity}"))
    elif together:
        writer = writer.format("waystation").options(**pipeline.broker)
    else:
        writer = _formatted(writer, pipeline, sink)
    if trigger.kind == "once":
        writer = writer.trigger(once=True)
    elif trigger.kind == "available-now":
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=trigger.interval)
    return writer.start()  # type: ignore[no-any-return]


def message_writer(pipeline: Pipeline, sink: Sink, query: str) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` calls for rows that change: Spark lets a sink of Python only append, so each batch is a write
    of its own, which the broker knows by the query's and the batch's number when it comes again."""

    def work(frame: DataFrame, batch: int) -> None:
        writer: Any = frame.write.mode("append").options(**_options(sink))
        if sink.options.get("guarantee") != "at-least-once":
            writer = writer.option("txnId", query).option("txnVersion", str(batch))
        _formatted(writer, pipeline, sink).save()

    return work


class WrittenRows(NamedTuple):
    """How many rows, and how many of them are dead letters."""

    rows: int
    dead_letters: int = 0


NOTHING = WrittenRows(0)


def write_sink(pipeline: Pipeline, sink: Sink, frame: DataFrame) -> WrittenRows:
    """Writes a frame that is no stream, once; returns what was written, and not only shown."""
    from pyspark.sql import Observation

    from waystation.spark.progress import COUNT, DEAD_LETTERS

    if sink.kind == "console":
        frame.show(int(sink.options.get("numRows", "20")), truncate=False)
        return NOTHING
    if sink.kind == "memory":
        frame.cache().createOrReplaceTempView(sink.place)
        return WrittenRows(frame.count())
    again = _written_before(pipeline, sink)
    observation = Observation(sink.name)
    rows = rows_of(pipeline, frame, sink, observation)
    if sink.kind in ("delta", "iceberg"):
        table_writer(sink, "")(rows, 0)
    else:
        writer: Any = rows.write
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        _formatted(writer.mode("append").options(**_options(sink)), pipeline, sink).save()
    if again:
        return NOTHING
    counts = observation.get
    return WrittenRows(int(counts[COUNT]), int(counts.get(DEAD_LETTERS, 0)))


def _written_before(pipeline: Pipeline, sink: Sink) -> bool:
    """Whether the broker will leave it out, since it has it under its `txnId`."""
    name = sink.options.get("txnId")
    if name is None:
        return False
    with connect_any(pipeline.servers) as mq:
        return mq.staged_position(f"{TXN_NAMES}{name}") is not None


def _formatted(writer: Any, pipeline: Pipeline, sink: Sink) -> Any:
    if sink.messages:
        writer = writer.format("waystation").options(**pipeline.broker)
        return writer if sink.destinations else writer.option(sink.kind, sink.place)
    if sink.kind == "parquet":
        return writer.format("parquet").option("path", sink.place)
    return writer.format(sink.kind)


def _options(sink: Sink) -> dict[str, str]:
    defaults = {"truncate": "false"} if sink.kind == "console" else {}
    return {**defaults, **sink.options}
