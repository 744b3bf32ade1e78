"""Batches of rows as commits of Delta and Iceberg tables.

Executors write the files of a batch into the table's folder (`table_files.py`); the driver adds them in one commit that
carries the query's name and the number of the batch, so that a batch that is replayed after a crash is seen to be there
already. Where the table asks more of a writer than files (other columns or types, constraints, features of the
protocol, partitions of Iceberg), the batch is gathered on the driver, and the package itself appends it.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from waystation.spark.pipelines.file.declared import Sink
from waystation.spark.pipelines.output.table_files import (
    TablePart,
    TableStorage,
    same_columns,
    without_required,
    write_parts,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_PROPERTY = "waystation.batch"
QUERY_PROPERTY = "waystation.query"
PLAIN_WRITER = 2
"""The last version of Delta's protocol in which a table can ask for little: appends only, and rules of columns."""
PLAIN_FEATURES = {"appendOnly", "invariants", "timestampNtz"}
ALL = ("all that its version stands for",)
DEMANDING = ("delta.constraints.", "delta.columnMapping.mode", "delta.enableChangeDataFeed")
"""Settings of a table that ask more of a writer than to add files."""


def _columns(frame: DataFrame) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")


# -- Delta -------------------------------------------------------------------------------------------------------------


def write_delta(sink: Sink, query: str, batch: int, frame: DataFrame) -> None:
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    options, folders, columns = dict(sink.options) or None, list(sink.partition_by), _columns(frame)
    table = DeltaTable.create(
        sink.place, without_required(columns), mode="ignore", partition_by=folders or None, storage_options=options
    )
    last = table.transaction_version(query) if query else None
    if last is not None and last >= batch:
        return
    marks = CommitProperties(app_transactions=[Transaction(app_id=query, version=batch)]) if query else None
    if not _takes_files(table, columns):
        rows = frame.toArrow()
        append: dict[str, Any] = {"partition_by": folders or None, "storage_options": options}
        write_deltalake(sink.place, rows, mode="append", commit_properties=marks, **append)
        return
    partition_by = tuple(table.metadata().partition_columns)
    schema = pa.schema(table.schema().to_arrow())
    parts = write_parts(frame, TableStorage("delta", sink.place, options or {}), schema, partition_by)
    if parts:
        actions = [_add_action(part) for part in parts]
        table.create_write_transaction(
            actions, "append", table.schema(), list(partition_by) or None, commit_properties=marks
        )


def _add_action(part: TablePart) -> Any:
    from deltalake.transaction import AddAction

    now_ms = time.time_ns() // 1_000_000
    return AddAction(part.path, part.size, part.partition, now_ms, True, json.dumps({"numRecords": part.rows}))


def _takes_files(table: Any, columns: pa.Schema) -> bool:
    """Whether rows of these columns are files and nothing more: not where the table checks or rewrites them."""
    metadata, protocol = table.metadata(), table.protocol()
    schema = pa.schema(table.schema().to_arrow())
    return (
        same_columns(schema, columns)
        and (protocol.min_writer_version <= PLAIN_WRITER or PLAIN_FEATURES.issuperset(protocol.writer_features or ALL))
        and not any(name.startswith("delta.") for field in table.schema().fields for name in field.metadata)
        and not any(name.startswith(DEMANDING) for name in metadata.configuration)
        and all(_plain_partition(schema.field(name).type) for name in metadata.partition_columns)
    )


def _plain_partition(kind: pa.DataType) -> bool:
    """Whether a value of a partition column is written as its text."""
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind))


# -- Iceberg -----------------------------------------------------------------------------------------------------------


def write_iceberg(sink: Sink, query: str, batch: int, frame: DataFrame) -> None:
    """The options are those of `pyiceberg.catalog.load_catalog`; `catalog` is its name."""
    from pyiceberg.catalog import load_catalog

    properties = {name: value for name, value in sink.options.items() if name != "catalog"}
    catalog = load_catalog(sink.options.get("catalog", "default"), **properties)
    catalog.create_namespace_if_not_exists(re.sub(r"\.[^.]*$", "", sink.place))
    columns = _columns(frame)
    table = catalog.create_table_if_not_exists(sink.place, schema=without_required(columns))
    if query and _iceberg_batch(table, query) >= batch:
        return
    marks = {QUERY_PROPERTY: query, BATCH_PROPERTY: str(batch)} if query else {}
    if not table.spec().is_unpartitioned() or not same_columns(table.schema().as_arrow(), columns):
        table.append(frame.toArrow(), snapshot_properties=marks)
        return
    place = table.properties.get("write.data.path") or f"{table.location()}/data"
    parts = write_parts(frame, TableStorage("iceberg", place, dict(table.io.properties)), without_required(columns), ())
    if parts:
        # Their names are new, so there is no need to look through the table for them.
        paths = [f"{place}/{part.path}" for part in parts]
        table.add_files(paths, snapshot_properties=marks, check_duplicate_files=False)


def _iceberg_batch(table: Any, query: str) -> int:
    """The last batch of a query that is in the table; -1 if none is."""
    for snapshot in reversed(table.metadata.snapshots):
        marks = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if marks.get(QUERY_PROPERTY) == query:
            return int(marks.get(BATCH_PROPERTY, "-1"))
    return -1
