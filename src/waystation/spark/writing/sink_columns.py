"""The columns that a DataFrame may have to be written, their types, and where its rows go.

Checked once, before anything is written: a column of the wrong type, one that is missing and one that the sink does
not know each get one sentence that names it. `Rows` then gives the columns of an Arrow batch in one type each, so that
nothing behind it asks again. For this package; knows Spark's types by their text only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from waystation.errors import Invalid, near_matches
from waystation.spark.writing.sink_options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TEXT = ("string",)
_BYTES = ("binary", "string")
_NUMBER = ("tinyint", "smallint", "int", "bigint")
_HEADERS = (
    "array<struct<key:string,value:binary>>",
    "array<struct<key:string,value:string>>",
    "map<string,binary>",
    "map<string,string>",
)

COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": _TEXT,
    "queue": _TEXT,
    "key": _BYTES,
    "value": _BYTES,
    "headers": _HEADERS,
    "partition": _NUMBER,
    "timestamp": ("bigint", "timestamp_ntz", "timestamp"),
    "priority": _NUMBER,
    "delayMs": _NUMBER,
    "ttlMs": _NUMBER,
    "id": _TEXT,
    "contentType": _TEXT,
}
"""Column → the types that it may have; the last is the one to cast to. A bigint timestamp is in milliseconds."""

LEFT_OUT = ("offset", "timestampType", "tag", "deliveries")
"""What the source gives and a write does not need: where a row was, and what kind of time it had."""

OF_MESSAGES = ("headers", "priority", "delayMs", "ttlMs", "id", "contentType")
"""Columns that a row with nothing but a key and a value leaves empty."""

_TYPES = {
    "topic": pa.string(),
    "queue": pa.string(),
    "key": pa.binary(),
    "value": pa.binary(),
    "partition": pa.int64(),
    "priority": pa.int64(),
    "delayMs": pa.int64(),
    "ttlMs": pa.int64(),
    "id": pa.string(),
    "contentType": pa.string(),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """What was found out about a DataFrame's columns. It travels to the tasks."""

    columns: tuple[str, ...]
    topic: str | None
    queue: str | None


def check_columns(schema: StructType, options: SinkOptions) -> Layout:
    """Raises Invalid for a DataFrame that cannot be written."""
    found: list[str] = []
    for field in schema.fields:
        name = field.name
        if name in LEFT_OUT:
            continue
        if name not in COLUMNS:
            near = near_matches(name, COLUMNS) or f"; the columns are {', '.join(COLUMNS)}"
            raise Invalid(f"column {name!r}: the waystation sink has no such column{near}; rename it or drop it")
        kind = field.dataType.simpleString()
        if kind not in COLUMNS[name]:
            raise Invalid(_wrong_type(name, kind))
        found.append(name)
    if "value" not in found:
        raise Invalid(
            f"column 'value' is missing: it is what is sent, binary or string{near_matches('value', schema.names)}; "
            "for rows of several columns, write to_json(struct(...)) as value"
        )
    if options.topic is None and options.queue is None and not {"topic", "queue"} & set(found):
        raise Invalid("column 'topic' is missing: give a column topic or queue, or the option topic or queue")
    if options.queue is not None and "partition" in found:
        found.remove("partition")  # a queue has none
    return Layout(tuple(found), options.topic, options.queue)


def _wrong_type(name: str, kind: str) -> str:
    types = COLUMNS[name]
    said = f"column {name!r} is {kind}, and the waystation sink takes {' or '.join(types)}"
    if types is _HEADERS:
        return said
    nested = kind.startswith(("struct", "array", "map"))
    return f"{said}; write for instance {f'to_json({name})' if nested else f'cast({name} as {types[-1]})'} as {name}"


class Rows:
    """Some rows for one place, by column; a column that is not there is None."""

    __slots__ = ("_arrays", "count")

    def __init__(self, arrays: dict[str, pa.Array], count: int) -> None:
        self._arrays = arrays
        self.count = count

    def column(self, name: str) -> pa.Array | None:
        return self._arrays.get(name)

    @property
    def bare(self) -> bool:
        """Whether no row has more than a key, a value, a partition and a time."""
        return not any(name in self._arrays for name in OF_MESSAGES)

    def take(self, indices: pa.Array) -> Rows:
        return Rows({name: array.take(indices) for name, array in self._arrays.items()}, len(indices))

    def slice(self, start: int, count: int) -> Rows:
        return Rows({name: array.slice(start, count) for name, array in self._arrays.items()}, count)

    def without(self, *names: str) -> Rows:
        return Rows({name: array for name, array in self._arrays.items() if name not in names}, self.count)


ColumnPlace = tuple[str, str]
"""("topic" or "queue", its name)."""


def places_of(batch: pa.RecordBatch, layout: Layout) -> Iterator[tuple[ColumnPlace, Rows]]:
    """The rows of an Arrow batch by where they go. Raises Invalid for a row that goes nowhere, or to two places."""
    rows = Rows(_arrays(batch, layout), batch.num_rows)
    if not rows.count:
        return
    if layout.topic is not None or layout.queue is not None:
        place = ("topic", layout.topic) if layout.topic is not None else ("queue", layout.queue or "")
        yield place, rows.without("topic", "queue")
        return
    _check_targets(rows)
    for kind in ("topic", "queue"):
        names = rows.column(kind)
        if names is None:
            continue
        for name in pc.unique(names).to_pylist():
            if name is not None:
                chosen = pc.indices_nonzero(pc.equal(names, name))
                bare = rows.without("topic", "queue")
                yield (kind, name), bare if len(chosen) == rows.count else bare.take(chosen)


def _check_targets(rows: Rows) -> None:
    topics, queues = rows.column("topic"), rows.column("queue")
    missing = rows.count
    for names in (topics, queues):
        missing -= 0 if names is None else rows.count - names.null_count
    if topics is not None and queues is not None and pc.any(pc.and_(pc.is_valid(topics), pc.is_valid(queues))).as_py():
        raise Invalid("columns 'topic' and 'queue': a row has both; it goes to one of them, so the other is null")
    if missing:
        raise Invalid(
            f"column 'topic': {missing} rows have no topic{' and no queue' if queues is not None else ''}; filter them "
            "out, or give the option topic or queue"
        )


def _arrays(batch: pa.RecordBatch, layout: Layout) -> dict[str, pa.Array]:
    arrays = {}
    for name in layout.columns:
        array = batch.column(batch.schema.get_field_index(name))
        if array.null_count == len(array) and name != "value":
            continue  # as if it were not there
        if name == "timestamp":
            array = _milliseconds(array)
        elif name in _TYPES and array.type != _TYPES[name]:
            array = array.cast(_TYPES[name])
        if name == "priority" and not pc.any(pc.not_equal(array, 0)).as_py():
            continue
        arrays[name] = array
    return arrays


def _milliseconds(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        array = pc.floor_temporal(array, unit="millisecond").cast(pa.timestamp("ms", array.type.tz), safe=False)
        return array.view(pa.int64())
    return array.cast(pa.int64())
