"""Delta Lake and Iceberg tables as sinks, through their Python packages where those are installed: no jar.

A batch is gathered on the driver as Arrow and appended in one commit that carries the query's name and the number of
the batch, so that a batch that is replayed after a crash is seen to be there already. Used by `sinks.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from waystation.errors import Unavailable
from waystation.spark.pipelines.declared import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}
BATCH_PROPERTY = "waystation.batch"
QUERY_PROPERTY = "waystation.query"


def need_package(sink: Sink) -> None:
    """Unavailable, with what to install, where the package of a table format is missing."""
    package = PACKAGES.get(sink.kind)
    if package is not None and find_spec(package) is None:
        raise Unavailable(f"a {sink.kind} sink needs the package {package}; `pip install {package}`")


def table_writer(sink: Sink, query: str) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` calls. `query` is the same after a restart; empty for a frame that is written once."""
    need_package(sink)
    write = _write_delta if sink.kind == "delta" else _write_iceberg
    place, options, folders = sink.place, dict(sink.options), list(sink.partition_by)

    def work(frame: DataFrame, batch: int) -> None:
        write(place, options, folders, query, batch, frame.toArrow())

    return work


def _write_delta(place: str, options: dict[str, str], folders: list[str], query: str, batch: int, rows: Any) -> None:
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    if query and DeltaTable.is_deltatable(place, options or None):
        last = DeltaTable(place, storage_options=options or None).transaction_version(query)
        if last is not None and last >= batch:
            return
    marks = CommitProperties(app_transactions=[Transaction(app_id=query, version=batch)]) if query else None
    write_deltalake(
        place,
        rows,
        mode="append",
        partition_by=folders or None,
        storage_options=options or None,
        commit_properties=marks,
    )


def _write_iceberg(place: str, options: dict[str, str], folders: list[str], query: str, batch: int, rows: Any) -> None:
    """The options are those of `pyiceberg.catalog.load_catalog`; `catalog` is its name."""
    from pyiceberg.catalog import load_catalog

    properties = {name: value for name, value in options.items() if name != "catalog"}
    catalog = load_catalog(options.get("catalog", "default"), **properties)
    namespace = re.sub(r"\.[^.]*$", "", place)
    catalog.create_namespace_if_not_exists(namespace)
    table = catalog.create_table_if_not_exists(place, schema=rows.schema)
    for snapshot in reversed(table.metadata.snapshots):
        marks = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if query and marks.get(QUERY_PROPERTY) == query:
            if int(marks.get(BATCH_PROPERTY, "-1")) >= batch:
                return
            break
    table.append(rows, snapshot_properties={QUERY_PROPERTY: query, BATCH_PROPERTY: str(batch)} if query else {})
