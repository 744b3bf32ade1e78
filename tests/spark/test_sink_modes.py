"""Save modes of batch writes, and output modes of streams."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

from pyspark.errors import AnalysisException

from tests.spark.sink_kit import committed, drop_last_commit, texts
from tests.spark.source_kit import Stage
from waystation.spark import each_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_write_without_a_mode_appends(spark: SparkSession, stage: Stage) -> None:
    topic = stage.topic(1)
    given = {"servers": stage.servers, "topic": topic}
    frame = spark.sql("SELECT 'x' AS value")
    frame.write.format("waystation").options(**given).save()
    frame.write.save(format="waystation", **given)
    for mode, says in (("ignore", '"Ignore" mode'), ("overwrite", "is not replaced; use mode\\('append'\\)")):
        with pytest.raises(AnalysisException, match=says):
            frame.write.format("waystation").options(**given).mode(mode).save()
    assert texts(committed(stage.server, topic)) == ["x", "x"]


def test_a_write_without_a_mode_to_other_formats_is_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(1)
    frame.write.parquet(str(tmp_path / "p"))
    with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        frame.write.format("parquet").save(str(tmp_path / "p"))


def totals(spark: SparkSession, stage: Stage, topic: str) -> DataFrame:
    rows = spark.readStream.format("waystation").options(
        servers=stage.servers, topics=topic, startingOffsets="earliest"
    )
    return rows.load().groupBy("value").count().selectExpr("value AS key", "CAST(count AS STRING) AS value")


def test_update_mode_writes_each_changed_row_once(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    source, target = stage.topic(1), stage.topic(1)

    def run() -> None:
        query = (
            totals(spark, stage, source)
            .writeStream.outputMode("update")
            .foreachBatch(each_batch(servers=stage.servers, topic=target))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    stage.fill(source, ["a", "b", "a"])
    run()
    stage.fill(source, ["a"])
    run()
    found = [(message.key, message.value) for message in committed(stage.server, target)]
    assert sorted(found) == [(b"a", b"2"), (b"a", b"3"), (b"b", b"1")]
    drop_last_commit(tmp_path / "checkpoint")
    run()  # Spark writes its last batch again, and the broker has it
    assert len(committed(stage.server, target)) == 3


@pytest.mark.quick
def test_update_mode_of_the_format_writes_each_changed_row_once(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    source, target = stage.topic(1), stage.topic(1)

    def run(**more: str) -> None:
        writer = totals(spark, stage, source).writeStream.format("waystation").trigger(availableNow=True)
        given = {"kafka.bootstrap.servers": stage.servers, "topic": target}
        writer = writer.options(**given).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.start(**more) if more else writer.outputMode("update").start()
        assert query.awaitTermination(120)

    stage.fill(source, ["a", "b", "a"])
    run()
    stage.fill(source, ["a"])
    run(format="waystation", outputMode="update")
    found = [(message.key, message.value) for message in committed(stage.server, target)]
    assert sorted(found) == [(b"a", b"2"), (b"a", b"3"), (b"b", b"1")]
    drop_last_commit(tmp_path / "checkpoint")
    run()  # Spark writes its last batch again, and the broker has it
    assert len(committed(stage.server, target)) == 3
