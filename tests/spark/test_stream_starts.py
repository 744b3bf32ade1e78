"""A stream to a topic or queue is checked when it is started: Spark would say nothing until it has a row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

import waystation
from tests.spark.source_kit import Stage
from tests.support.names import unique
from tests.support.ports import free_port
from tests.support.server import Server
from waystation.errors import Invalid, NotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def quiet(spark: SparkSession, stage: Stage) -> DataFrame:
    """A stream in which there is never a row."""
    reader = spark.readStream.format("waystation").options(servers=stage.servers, topics=stage.topic(1))
    return reader.load().selectExpr("value")


def start(frame: DataFrame, checkpoint: Path, **options: Any) -> StreamingQuery:
    writer: Any = frame.writeStream.format("waystation").option("checkpointLocation", str(checkpoint))
    return writer.options(**options).start()  # type: ignore[no-any-return]


@pytest.mark.quick
def test_a_missing_topic_is_created_at_the_start(
    spark: SparkSession, stage: Stage, mq: waystation.Client, tmp_path: Path
) -> None:
    target = unique("made")
    query = start(quiet(spark, stage), tmp_path, servers=stage.servers, topic=target)
    try:
        assert target in [topic.topic for topic in mq.topics()], "no row has come, and it is there"
        assert query.isActive
    finally:
        query.stop()


@pytest.mark.quick
def test_what_does_not_exist_or_fit_is_told_at_the_start(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    here = {"servers": stage.servers}
    values = quiet(spark, stage)
    cases: list[tuple[DataFrame, dict[str, Any], type[Exception], str]] = [
        (values, {**here, "queue": "not-there"}, NotFound, "waystation queues create not-there"),
        (values, {**here, "topic": "no/such"}, Invalid, "no/such"),
        (values, {**here, "topik": "t"}, Invalid, "no option 'topik'; did you mean 'topic'"),
        (values, {"kafka.bootstrap.server": stage.servers, "topic": "t"}, Invalid, "did you mean 'kafka.bootstrap"),
        (values, {"server": stage.servers, "topic": "t"}, Invalid, "no option 'server'; did you mean 'servers'"),
        (values, {"topic": "t"}, Invalid, "the option servers is missing"),
        (values, {**here, "topic": "t", "txnId": "x"}, Invalid, "txnId is for batch writes"),
        (values, here, Invalid, "column 'topic' is missing"),
        (values.selectExpr("1 AS value"), {**here, "topic": "t"}, Invalid, "column 'value' is int"),
    ]
    for frame, options, error, says in cases:
        with pytest.raises(error, match=says):
            start(frame, tmp_path / "checkpoint", **options)
    assert not (tmp_path / "checkpoint").exists(), "nothing was started"
    assert spark.streams.active == []
    with (
        Server(tmp_path / "strict", settings={"auto.create.topics.enable": "false"}) as strict,
        pytest.raises(NotFound, match="no topic 'orders'; create it first, for instance: waystation topics create"),
    ):
        start(values, tmp_path / "checkpoint", servers=strict.bootstrap, topic="orders")


def test_a_broker_that_is_away_is_waited_for_and_other_formats_are_as_they_were(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    query = start(quiet(spark, stage), tmp_path / "away", servers=f"127.0.0.1:{free_port()}", topic="t")
    assert query.isActive
    query.stop()
    other = quiet(spark, stage).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "noop"))
    query = other.start(queryName=unique("named"))
    assert query.isActive
    query.stop()
    seen: list[int] = []
    each = quiet(spark, stage).writeStream.format("waystation").foreachBatch(lambda frame, number: seen.append(number))
    query = each.option("checkpointLocation", str(tmp_path / "each")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
