"""Delta and Iceberg tables as sinks: written by executors, committed by the driver, every batch once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa

from tests.spark.pipeline_kit import ORDERS, Kit, orders
from waystation.errors import Unavailable
from waystation.spark.pipelines.output import table_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def gathered(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were gathered on the driver, each time."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    counts: list[int] = []
    whole = ClassicFrame.toArrow

    def counted(frame: DataFrame) -> Any:
        found = whole(frame)
        counts.append(found.num_rows)
        return found

    monkeypatch.setattr(ClassicFrame, "toArrow", counted)
    return counts


# -- table formats -----------------------------------------------------------------------------------------------------


def test_a_delta_table_gets_every_batch_once(kit: Kit, gathered: list[int]) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    text = f'{ORDERS}\n[sink.out]\nfrom = "orders"\ndelta = "table"\n'
    kit.parquet("orders", orders(10), "0.parquet")
    kit.run(text)
    forget_commit(kit)
    kit.parquet("orders", orders(5, 10), "1.parquet")
    kit.run(text)
    kit.run(text.replace("schema = ", "static = true\n#").replace('"table"', '"once"'))
    assert deltalake.DeltaTable(str(kit.folder / "once")).to_pyarrow_table().num_rows == 15, "also what is no stream"
    table = deltalake.DeltaTable(str(kit.folder / "table"))
    rows = table.to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["at"]) for row in rows) == [(row["id"], row["at"]) for row in orders(15)]
    assert table.version() == 2, "created, and two batches: the one that was done again is not there twice"
    assert gathered == [], "nothing went through the driver"


def test_a_delta_table_has_files_of_several_tasks_by_its_partition_columns(kit: Kit, gathered: list[int]) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    for number in range(3):
        kit.parquet("orders", orders(30, number * 30), f"{number}.parquet")
    text = f"""{ORDERS}
[step.named]
from = "orders"
select = ["id", "IF(kind = 'b', NULL, concat(kind, ' /%')) AS kind", "map(kind, array(named_struct('n', amount))) AS m"]
[sink.out]
from = "named"
delta = "table"
partition_by = "kind"
"""
    kit.run(text)
    table = deltalake.DeltaTable(str(kit.folder / "table"))
    rows = table.to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["kind"]) for row in rows) == [
        (row["id"], None if row["kind"] == "b" else f"{row['kind']} /%") for row in orders(90)
    ]
    assert {row["id"]: row["m"] for row in rows}[4] == [("b", [{"n": 4.0}])]
    assert table.version() == 1, "one commit"
    assert len(table.file_uris()) >= 3
    partitions = pa.table(table.get_add_actions(flatten=True)).column("partition.kind").to_pylist()
    assert set(partitions) == {"a /%", "c /%", None}, "readers skip other partitions"
    assert gathered == []


def test_a_delta_table_that_asks_more_of_a_writer_is_written_by_its_package(kit: Kit, gathered: list[int]) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    kit.parquet("orders", orders(10))
    text = f'{ORDERS}\n[sink.out]\nfrom = "orders"\ndelta = "table"\n'
    kit.run(text)
    table = deltalake.DeltaTable(str(kit.folder / "table"))
    table.alter.add_constraint({"small": "id < 15"})
    kit.parquet("orders", orders(5, 10), "1.parquet")
    kit.run(text)
    assert gathered == [5], "the constraint is checked"
    kit.parquet("orders", orders(5, 15), "2.parquet")
    with pytest.raises(Exception, match="5 rows failed validation check"):
        kit.run(text)
    table.update_incremental()
    assert table.to_pyarrow_table().num_rows == 15


def test_files_that_the_driver_does_not_find_are_not_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster whose machines have no common folder."""
    pytest.importorskip("deltalake", reason="deltalake is not installed")
    monkeypatch.setattr(table_files.TableStorage, "size", lambda self, path: None)
    storage = table_files.TableStorage("delta", str(tmp_path / "table"))
    (tmp_path / "table").mkdir()
    with pytest.raises(Unavailable, match="storage that all machines of the cluster share"):
        table_files.write_parts(spark.range(5), storage, pa.schema([("id", pa.int64())]), ())


def test_an_iceberg_table_gets_every_batch_once(kit: Kit, gathered: list[int]) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="pyiceberg is not installed")
    pytest.importorskip("sqlalchemy", reason="pyiceberg's SQL catalog is not installed")
    options = {
        "type": "sql",
        "uri": f"sqlite:///{kit.folder}/catalog.db",
        "warehouse": f"file://{kit.folder}/warehouse",
    }
    listed = ", ".join(f'{name} = "{value}"' for name, value in options.items())
    text = f'{ORDERS}\n[sink.out]\nfrom = "orders"\niceberg = "shop.orders"\noptions = {{ {listed} }}\n'
    kit.parquet("orders", orders(10), "0.parquet")
    kit.run(text)
    forget_commit(kit)
    kit.parquet("orders", orders(5, 10), "1.parquet")
    kit.run(text)
    table = catalogs.load_catalog("default", **options).load_table("shop.orders")
    rows = table.scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["at"]) for row in rows) == [(row["id"], row["at"]) for row in orders(15)]
    assert gathered == [], "nothing went through the driver"


def forget_commit(kit: Kit) -> None:
    """As after a crash between the table's commit and Spark's: the batch is done again."""
    for file in (kit.folder / ".waystation" / "one" / "sinks" / "out" / "commits").iterdir():
        if "metadata" not in file.name:
            file.unlink()
