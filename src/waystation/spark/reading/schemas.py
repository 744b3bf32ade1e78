"""The columns of the source, as Spark and as Arrow know them.

A schema that the user gives chooses columns: what is not in it is not made. Its types are the source's; only `value`
may be a struct, where it is decoded (valueFormat).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from itertools import islice

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from waystation.errors import Invalid, near_matches
from waystation.spark.options import SourceOptions
from waystation.spark.reading.fetching import cluster_at
from waystation.spark.reading.finding import check_topics, earliest, find_topics, latest, partitions_of
from waystation.spark.reading.planning import Range
from waystation.spark.reading.ranges import Task, read_range
from waystation.spark.spark_versions import to_arrow_schema
from waystation.spark.values.json_values import CORRUPT, infer_type
from waystation.spark.values.value_formats import codec_of

INFER_ROWS = 1000
"""Values that a schema is inferred from, of every topic."""

SOURCE_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        ),
        StructField("id", StringType()),
        StructField("priority", IntegerType()),
        StructField("contentType", StringType()),
    ]
)
"""Kafka's columns, and what Waystation's messages have besides."""


Infer = Callable[[SourceOptions], pa.StructType]


def source_schema(
    options: SourceOptions, columns: StructType = SOURCE_SCHEMA, infer: Infer | None = None
) -> StructType | str:
    """The schema where the user gives none: text where Spark itself has to read a part of it."""
    if options.value_format == "binary":
        if options.value_schema is not None:
            raise Invalid("valueSchema says what is in JSON values: set valueFormat=json with it")
        return columns
    if options.typed is not None:
        return _with_value(from_arrow_type(codec_of(options.typed).type), columns)
    given = options.value_schema
    if given is None:
        return _with_value(from_arrow_type((infer or _inferred)(options)), columns)
    if given.lstrip().startswith("{"):
        try:
            return _with_value(StructType.fromJson(json.loads(given)), columns)
        except (ValueError, KeyError, TypeError):
            raise Invalid("valueSchema: this is neither a schema's JSON nor text as 'id INT, name STRING'") from None
    texts = [f"{one.name} {one.dataType.simpleString()}" for one in columns]
    texts[columns.names.index("value")] = f"value STRUCT<{given}>"
    return ", ".join([*texts, f"{CORRUPT} BINARY"])


def _with_value(kind: DataType, columns: StructType) -> StructType:
    fields = [StructField("value", kind) if one.name == "value" else one for one in columns]
    return StructType([*fields, StructField(CORRUPT, BinaryType())])


def arrow_schema(schema: StructType, options: SourceOptions, columns: StructType = SOURCE_SCHEMA) -> pa.Schema:
    """The schema as Spark expects it from a reader; Invalid if the source has no such columns."""
    known = {one.name: one.dataType for one in columns}
    for field in schema:
        decoded = options.value_format != "binary"
        if field.name == CORRUPT and decoded and isinstance(field.dataType, BinaryType):
            continue
        if field.name == "value" and decoded and isinstance(field.dataType, StructType):
            continue
        if field.name not in known:
            near = near_matches(field.name, known) or f"; it has {', '.join(known)}"
            raise Invalid(
                f"the waystation source has no column {field.name!r}{near} (the fields of a decoded value are in value)"
            )
        if field.dataType != known[field.name]:
            raise Invalid(
                f"the column {field.name!r} of the waystation source is {known[field.name].simpleString()}, not"
                f" {field.dataType.simpleString()}; cast it after reading"
                + ("" if field.name != "value" else ", or set valueFormat=json and give value as a STRUCT")
            )
    return to_arrow_schema(schema)


def _inferred(options: SourceOptions) -> pa.StructType:
    cluster = cluster_at(options.servers, options.retry_s)
    topics = find_topics(cluster, options)
    check_topics(cluster, options, topics, streaming=False)
    partitions = partitions_of(options, topics)
    starts, ends = earliest(cluster, partitions), latest(cluster, options, partitions)
    task = Task(options, pa.schema([pa.field("value", pa.binary())]))
    samples: dict[str, list[bytes]] = {name: [] for name in topics}
    for one in partitions:
        values = samples[one[0]]
        with closing(read_range(cluster, task, Range(*one, starts[one], ends[one]))) as rows:
            found = (value for batch in rows for value in batch.column(0).to_pylist() if value is not None)
            values += islice(found, max(0, INFER_ROWS - len(values)))
    every = [value for values in samples.values() for value in values]
    if not every:
        raise Invalid(
            f"valueFormat=json: {', '.join(sorted(topics))} has no rows to infer a schema from; give the option"
            " valueSchema, for instance 'id INT, name STRING'"
        )
    return infer_type(every)
