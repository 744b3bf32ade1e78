"""Messages of a queue as Arrow columns. Pure; for the queue's reader.

The columns are the topic source's where they make sense: headers are those that the message would have in a topic, so a
row that is moved on looks the same wherever it came from. `id` is the message's own, or where it is: QUEUE#TAG.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from waystation.message import Delivered, Message
from waystation.spark.reading.schemas import SOURCE_SCHEMA
from waystation.topics.records.crossing import TOMBSTONE, headers_of

QUEUE_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("queue", StringType()),
        StructField("tag", LongType()),
        StructField("deliveries", IntegerType()),
        StructField("timestamp", TimestampType()),
        SOURCE_SCHEMA["headers"],
        StructField("id", StringType()),
        StructField("priority", IntegerType()),
        StructField("contentType", StringType()),
    ]
)

_MAKERS: dict[str, Callable[[Sequence[Delivered], str], list[Any]]] = {
    "key": lambda rows, queue: [row.message.key for row in rows],
    "value": lambda rows, queue: [_value(row.message) for row in rows],
    "queue": lambda rows, queue: [queue] * len(rows),
    "tag": lambda rows, queue: [row.tag for row in rows],
    "deliveries": lambda rows, queue: [row.deliveries for row in rows],
    "headers": lambda rows, queue: [_headers(row.message) for row in rows],
    "id": lambda rows, queue: [row.message.id or f"{queue}#{row.tag}" for row in rows],
    "priority": lambda rows, queue: [row.message.priority for row in rows],
    "contentType": lambda rows, queue: [row.message.content_type for row in rows],
}


def record_batch(rows: Sequence[Delivered], queue: str, schema: pa.Schema) -> pa.RecordBatch:
    """One batch with the columns of the schema."""
    return pa.RecordBatch.from_arrays([_column(rows, queue, field) for field in schema], schema=schema)


def _column(rows: Sequence[Delivered], queue: str, field: pa.Field) -> pa.Array:
    if field.name == "timestamp":
        times = [row.taken_ms if row.message.timestamp_ms is None else row.message.timestamp_ms for row in rows]
        return pa.array(times, pa.timestamp("ms", field.type.tz)).cast(field.type)
    return pa.array(_MAKERS[field.name](rows, queue), field.type)


def _value(message: Message) -> bytes | None:
    return message.payload if message.payload or message.type != TOMBSTONE else None


def _headers(message: Message) -> list[dict[str, Any]] | None:
    pairs = headers_of(message)
    return [{"key": name, "value": value} for name, value in pairs] or None
