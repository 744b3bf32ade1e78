"""Pipelines in tests: files written, run in this process, and what they left in the session."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waystation.spark.pipelines.file.reading import PipelineFile, read_pipeline
from waystation.spark.pipelines.running import Ears, run_pipeline

MASTER = "local[2]"
SMALL = """
[spark]
spark.sql.shuffle.partitions = 2
spark.driver.memory = "1g"
spark.ui.enabled = false
"""
START = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


@dataclass
class Kit:
    """A folder with one pipeline."""

    folder: Path
    notes: list[str] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def write(self, text: str, name: str = "one.toml", *, progress: bool = False) -> Path:
        file = self.folder / name
        head = "" if "trigger" in text else 'trigger = "available-now"\n'
        file.write_text(f"{head}progress = {str(progress).lower()}\n{text}{SMALL}")
        return file

    def read(self, text: str, name: str = "one.toml", *, progress: bool = False) -> PipelineFile:
        return read_pipeline(self.write(text, name, progress=progress), master=MASTER)

    def run(self, text: str, *tables: str, progress: bool = False, **options: Any) -> str:
        """Runs it to its end; then `tables` are in `self.tables`."""

        def look(spark: Any) -> None:
            for table in tables:
                self.tables[table] = [row.asDict(recursive=True) for row in spark.table(table).collect()]

        ears = Ears(note=self.notes.append, on_session=look)
        return run_pipeline(self.read(text, progress=progress), ears=ears, **options)

    def parquet(self, name: str, rows: Iterable[dict[str, Any]], file: str = "0.parquet") -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        (self.folder / name).mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(list(rows)), self.folder / name / file)


def orders(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Rows with an id, one of three kinds, an amount, and a time, a second apart."""
    return [
        {"id": n, "kind": "abc"[n % 3], "amount": float(n), "at": START + datetime.timedelta(seconds=n)}
        for n in range(first, first + count)
    ]


ORDERS = """
[source.orders]
parquet = "orders"
schema = "id BIGINT, kind STRING, amount DOUBLE, at TIMESTAMP"
"""
