"""Rows as a Parquet file, for those who analyse: a column for each field, binary where bytes may be anything.

Needs pyarrow, which is imported here only. The columns of a topic are those of Kafka's source in Spark. Headers of a
queue's messages are there twice: as JSON to look at, and in msgpack to be read back exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.cli.transfer.rows import QueueRow, Row, TopicRow
from waystation.errors import Invalid, Unavailable
from waystation.message import Message
from waystation.message_json import to_json_object

if TYPE_CHECKING:
    import pyarrow

BATCH_ROWS = 2_000
_BINARY = ("payload", "key")
_NUMBERS = ("priority", "delay_ms", "deliver_at_ms", "ttl_ms", "max_deliveries", "timestamp_ms", "delivery_mode")
_OWN = tuple(name for name in Message.__struct_fields__ if name not in ("headers", "amqp"))


def load_pyarrow() -> Any:
    """The library, or a sentence that says how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Unavailable(
            "Parquet needs pyarrow, which is not installed: `pip install pyarrow`; --format jsonl needs nothing"
        ) from None
    return pyarrow


def schema_of(pa: Any, kind: type[Row]) -> pyarrow.Schema:
    if kind is TopicRow:
        header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        columns = [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
        ]
    else:
        columns = [(name, _type(pa, name)) for name in _OWN]
        columns += [("headers", pa.string()), ("headers_msgpack", pa.binary())]
        columns += [("queue", pa.string()), ("tag", pa.int64()), ("taken_ms", pa.int64()), ("deliveries", pa.int64())]
        columns += [("state", pa.string()), ("ready_at_ms", pa.int64())]
    return pa.schema(columns)


def _type(pa: Any, name: str) -> Any:
    if name in _BINARY:
        return pa.binary()
    return pa.int64() if name in _NUMBERS else pa.string()


class ParquetWriter:
    """Writes rows of one sort; the file is whole only after `close`."""

    def __init__(self, path: str, kind: type[Row]) -> None:
        self._pa = load_pyarrow()
        self._kind = kind
        self._schema = schema_of(self._pa, kind)
        self._writer = self._pa.parquet.ParquetWriter(path, self._schema, compression="zstd")

    def write(self, rows: Sequence[Row]) -> None:
        found = [_topic_cells(row) if isinstance(row, TopicRow) else _queue_cells(row) for row in rows]
        self._writer.write_table(self._pa.Table.from_pylist(found, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _topic_cells(row: TopicRow) -> dict[str, object]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "offset": row.offset,
        "timestamp": row.timestamp_ms,
        "key": row.key,
        "value": row.value,
        "headers": [{"key": name, "value": content} for name, content in row.headers],
    }


def _queue_cells(row: QueueRow) -> dict[str, object]:
    cells: dict[str, object] = {name: getattr(row.message, name) for name in _OWN}
    if row.message.headers:
        shown = to_json_object(Message(payload=b"", headers=row.message.headers))
        cells["headers"] = json.dumps(shown.get("headers", {}), ensure_ascii=False)
        cells["headers_msgpack"] = msgspec.msgpack.encode(row.message.headers)
    for name in ("queue", "tag", "taken_ms", "deliveries", "state", "ready_at_ms"):
        cells[name] = getattr(row, name)
    return cells


def read_parquet(path: str) -> tuple[int, Iterator[Row]]:
    """How many rows there are, and the rows. Invalid unless the file has the columns that `export` writes."""
    pa = load_pyarrow()
    try:
        file = pa.parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise Invalid(f"{path} is not a Parquet file: {error}") from None
    names = set(file.schema_arrow.names)
    kind: type[Row] = TopicRow if "value" in names else QueueRow
    missing = set(schema_of(pa, kind).names) - names
    if missing:
        raise Invalid(f"{path} has no column {sorted(missing)[0]!r}: it was not written by `waystation export`")
    return int(file.metadata.num_rows), _rows(pa, file, kind)


def _rows(pa: Any, file: Any, kind: type[Row]) -> Iterator[Row]:
    schema = schema_of(pa, kind)
    for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=schema.names):
        table = pa.Table.from_batches([batch])
        if kind is TopicRow:
            # As numbers: moments of Python end in the year 9999, and cost much.
            whole = table.column("timestamp").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
            table = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", whole)
        for cells in table.to_pylist():
            yield _topic_row(cells) if kind is TopicRow else _queue_row(cells)


def _topic_row(cells: dict[str, Any]) -> TopicRow:
    return TopicRow(
        topic=cells["topic"] or "",
        partition=cells["partition"],
        offset=-1 if cells["offset"] is None else cells["offset"],
        timestamp_ms=cells["timestamp"],
        key=cells["key"],
        value=cells["value"],
        headers=tuple((header["key"], header["value"]) for header in cells["headers"] or ()),
    )


def _queue_row(cells: dict[str, Any]) -> QueueRow:
    own = {name: cells[name] for name in _OWN}
    packed = cells["headers_msgpack"]
    own["headers"] = {} if packed is None else msgspec.msgpack.decode(packed)
    rest = ("queue", "tag", "taken_ms", "deliveries", "state", "ready_at_ms")
    return QueueRow(message=Message(**own), **{name: cells[name] for name in rest})
