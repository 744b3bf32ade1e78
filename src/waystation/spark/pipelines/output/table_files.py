"""Parquet files of a Delta or Iceberg table, written by Spark's executors: each task its own, under a name of its own.

Nothing here is visible to readers of the table: what a task that failed or was repeated leaves behind is in no commit.
The driver gets a list of the files, sees that they are where it looks for them, and commits it (`tables.py`).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from waystation.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_OPEN = 32
"""Files that a task has open at a time: one for each value of the partition columns. With more of them there are more,
smaller files, instead of more memory."""
ROW_GROUP_ROWS = 100_000

PART = "path STRING, size BIGINT, rows BIGINT, partition STRING"
_PART = pa.schema([("path", pa.string()), ("size", pa.int64()), ("rows", pa.int64()), ("partition", pa.string())])
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class TableStorage:
    """Where the files of a table are, by the table format's own access to it. Picklable."""

    kind: Literal["delta", "iceberg"]
    place: str
    options: Mapping[str, str] = field(default_factory=dict)

    def create(self, path: str) -> Any:
        """A file to write to."""
        if self.kind == "delta":
            return self._files().open_output_stream(path)
        return self._io().new_output(f"{self.place}/{path}").create()

    def size(self, path: str) -> int | None:
        """How large a file is; None if it is not there."""
        if self.kind == "delta":
            found = self._files().get_file_info(path).size
            return None if found is None else int(found)
        try:
            return len(self._io().new_input(f"{self.place}/{path}"))
        except FileNotFoundError:
            return None

    def _files(self) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self.place, dict(self.options)))

    def _io(self) -> Any:
        from pyiceberg.io import load_file_io

        return load_file_io(dict(self.options), self.place)


@dataclass(frozen=True, slots=True)
class TablePart:
    """A file that was written; `partition` has the values of the partition columns as text."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]


def write_parts(
    frame: DataFrame, storage: TableStorage, schema: pa.Schema, partition_by: tuple[str, ...]
) -> list[TablePart]:
    """Writes the rows of a frame as files of the table's schema. Unavailable if they are not where the driver looks."""
    rows = frame.mapInArrow(_writer(storage, schema, partition_by), PART).collect()
    parts = [TablePart(row.path, row.size, row.rows, json.loads(row.partition)) for row in rows]
    for part in parts:
        if storage.size(part.path) != part.size:
            raise Unavailable(
                f"an executor has written {part.path} of the table {storage.place}, and the driver does not find it"
                " there: the table has to be in storage that all machines of the cluster share"
            )
    return parts


def _writer(
    storage: TableStorage, schema: pa.Schema, partition_by: tuple[str, ...]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = _Task(storage, schema, partition_by)
        for batch in batches:
            task.add(pa.Table.from_batches([batch]))
        parts = task.close()
        found = [(part.path, part.size, part.rows, json.dumps(part.partition)) for part in parts]
        yield pa.RecordBatch.from_pylist([dict(zip(_PART.names, one, strict=True)) for one in found], schema=_PART)

    return work


class _Task:
    """The files of one task."""

    def __init__(self, storage: TableStorage, schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
        self._storage = storage
        self._schema = schema
        self._partition_by = partition_by
        self._open: dict[tuple[str | None, ...], _File] = {}
        self._parts: list[TablePart] = []

    def add(self, rows: pa.Table) -> None:
        rows = rows.select(self._schema.names).cast(self._schema)
        if not self._partition_by:
            self._file(()).add(rows)
            return
        values = [rows.column(name).cast(pa.string()) for name in self._partition_by]
        keyed = pa.table(values, names=list(self._partition_by))
        for key in keyed.group_by(list(self._partition_by)).aggregate([]).to_pylist():
            chosen = None
            for name, column in zip(self._partition_by, values, strict=True):
                same = pc.is_null(column) if key[name] is None else pc.fill_null(pc.equal(column, key[name]), False)
                chosen = same if chosen is None else pc.and_(chosen, same)
            self._file(tuple(key.values())).add(rows.filter(chosen).drop_columns(list(self._partition_by)))

    def close(self) -> list[TablePart]:
        for file in self._open.values():
            self._parts.append(file.close())
        self._open.clear()
        return self._parts

    def _file(self, key: tuple[str | None, ...]) -> _File:
        if key not in self._open:
            if len(self._open) >= MAX_OPEN:
                self.close()
            self._open[key] = _File(self._storage, dict(zip(self._partition_by, key, strict=True)))
        return self._open[key]


class _File:
    """One file; rows are gathered to groups of a good size."""

    def __init__(self, storage: TableStorage, partition: dict[str, str | None]) -> None:
        plain = all(value is not None and _PLAIN.fullmatch(value) for value in partition.values())
        folders = [f"{name}={value}" for name, value in partition.items()] if plain else []
        self._path = "/".join([*folders, f"part-{uuid.uuid4()}.parquet"])
        self._storage = storage
        self._partition = partition
        self._stream: Any = None
        self._writer: Any = None
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        if sum(one.num_rows for one in self._waiting) >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> TablePart:
        self._flush()
        self._writer.close()
        self._stream.close()
        size = self._storage.size(self._path)
        return TablePart(self._path, -1 if size is None else size, self._rows, self._partition)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        if self._writer is None:
            self._stream = self._storage.create(self._path)
            self._writer = pq.ParquetWriter(self._stream, rows.schema)
        self._writer.write_table(rows)
        self._waiting = []


# -- schemas -----------------------------------------------------------------------------------------------------------


def without_required(schema: pa.Schema) -> pa.Schema:
    """All columns may be null: that a frame has none in one of them now is no promise about the table."""
    return pa.schema([pa.field(one.name, one.type) for one in schema])


def same_columns(table: pa.Schema, frame: pa.Schema) -> bool:
    """Whether a frame has exactly the columns of a table, in any order."""
    return sorted(table.names) == sorted(frame.names) and all(
        _same(table.field(name).type, frame.field(name).type) and table.field(name).nullable for name in table.names
    )


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return [part.name for part in one] == [part.name for part in other] and all(
            _same(first.type, second.type) for first, second in zip(one, other, strict=True)
        )
    if _is_list(one) and _is_list(other):
        return _same(one.value_type, other.value_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _same(one.key_type, other.key_type) and _same(one.item_type, other.item_type)
    return _narrow(one) == _narrow(other)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _narrow(kind: pa.DataType) -> pa.DataType:
    """Libraries choose between two layouts of the same texts."""
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind
