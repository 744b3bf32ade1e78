"""What is gone, what is new and what was never committed, while real queries run: nothing is passed over in silence."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.source_kit import Run, Stage, load, numbers, values
from tests.support.names import unique
from tests.support.waiting import wait_for
from waystation.spark.pipelines.transform.explaining import explain

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def ended(query: StreamingQuery) -> None:
    try:
        if not query.awaitTermination(120):
            raise AssertionError(f"the query did not end: {query.status}")
    finally:
        query.stop()


def end_offset(query: StreamingQuery) -> dict[str, Any]:
    """Where the last batch ended, as Spark tells it."""
    found: dict[str, Any] = json.loads(query.recentProgress[-1].sources[0].endOffset)
    return found


def test_retention_that_overtook_a_stopped_query_is_an_error_or_a_counted_gap(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    topic = stage.topic()
    stage.fill(topic, numbers(50))
    run = Run(spark, stage, tmp_path, topics=topic, startingOffsets="earliest")
    assert run.drain() == numbers(50)
    stage.fill(topic, numbers(50, 100))
    stage.cut(topic, 0, 80)
    with pytest.raises(Exception, match="offsets 50 to 79 were deleted") as caught:
        run.drain()
    said = explain(caught.value)
    assert "the oldest one is 80" in said
    assert "failOnDataLoss=false" in said
    assert "org.apache" not in said
    run.options = {**run.options, "failOnDataLoss": "false"}
    query = run.start(availableNow=True)
    ended(query)
    assert run.rows == [*numbers(50), *numbers(80, 100)]
    assert end_offset(query)["lost"] == {topic: {"0": 30}}


def test_retention_that_overtakes_a_slow_query_ends_it_with_a_sentence(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    topic = stage.topic()
    stage.fill(topic, numbers(100))
    run = Run(spark, stage, tmp_path, topics=topic, startingOffsets="earliest", maxRowsPerTrigger=10)
    entered, go_on = threading.Event(), threading.Event()

    def slowly(frame: DataFrame) -> DataFrame:
        entered.set()
        if not go_on.wait(60):
            raise AssertionError("nobody lets the batch go on")
        return frame

    run.change = slowly
    query = run.start()
    try:
        wait_for(entered.is_set, "the first batch is being worked on", within_s=60)
        stage.cut(topic, 0, 70)
        go_on.set()
        failure = wait_for(query.exception, "the query fails", within_s=60)
        assert "were deleted" in explain(failure)
        assert "the oldest one is 70" in explain(failure)
    finally:
        go_on.set()
        query.stop()


def test_a_deleted_topic_is_left_out_where_that_is_wanted(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    kept, lost = stage.topic(), stage.topic()
    stage.fill(kept, ["kept"])
    stage.fill(lost, ["lost"])
    run = Run(spark, stage, tmp_path, topics=f"{kept},{lost}", startingOffsets="earliest", failOnDataLoss="false")
    query = run.start()
    try:
        wait_for(lambda: sorted(run.rows) == ["kept", "lost"], "both are read", within_s=60)
        stage.delete(lost)
        wait_for(lambda: lost not in stage.admin.list_topics(timeout=10).topics, "the topic is gone")
        stage.fill(kept, ["more"])
        wait_for(lambda: sorted(run.rows) == ["kept", "lost", "more"], "the other goes on", within_s=60)
        assert query.isActive
    finally:
        query.stop()


def test_a_pattern_brings_new_topics_into_a_running_query(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    prefix = unique("shop")
    stage.fill(stage.topic(name=f"{prefix}.north"), ["first"])
    run = Run(spark, stage, tmp_path, pattern=f"{prefix}.*", startingOffsets="earliest")
    query = run.start()
    try:
        wait_for(lambda: run.rows == ["first"], "the first row is read", within_s=60)
        stage.fill(stage.topic(name=f"{prefix}.south"), ["second"])
        wait_for(lambda: run.rows == ["first", "second"], "the new topic is read", within_s=60)
    finally:
        query.stop()


def test_available_now_leaves_what_comes_meanwhile(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    """With a limit, over two partitions, while every batch makes more to do."""
    topic = stage.topic(partitions=2)
    for partition in range(2):
        stage.fill(topic, [f"{partition}/{n}" for n in range(100)], partition=partition)
    run = Run(spark, stage, tmp_path, topics=topic, startingOffsets="earliest", maxRowsPerTrigger=60)

    def while_more_comes(frame: DataFrame) -> DataFrame:
        stage.fill(topic, ["late"], partition=1)
        return frame

    run.change = while_more_comes
    assert sorted(run.drain()) == sorted(f"{partition}/{n}" for partition in range(2) for n in range(100))
    assert [len(batch) for _, batch in sorted(run.batches.items())] == [60, 60, 60, 20]
    run.change = lambda frame: frame
    run.batches.clear()
    assert run.drain() == ["late"] * 4


def test_what_was_aborted_or_compacted_away_is_in_no_batch_read(spark: SparkSession, stage: Stage) -> None:
    topic = stage.topic(
        cleanup_policy="compact", segment_bytes=2048, min_cleanable_dirty_ratio=0, min_compaction_lag_ms=0
    )
    client = stage.producer(transactional_id=unique("tx"))
    client.init_transactions()
    for turn in range(20):
        client.begin_transaction()
        for key in range(10):
            client.produce(topic, f"{turn}/{key}".encode(), key=b"%d" % key)
        client.flush()
        (client.abort_transaction if turn % 2 else client.commit_transaction)()

    def read(**options: Any) -> list[str]:
        return values(load(spark, stage, topics=topic, minPartitions=3, **options).collect())

    def compacted() -> list[str] | None:
        rows = read()
        return rows if len(rows) < 100 else None

    found = wait_for(compacted, "compaction took something out", within_s=60)
    assert all(int(value.partition("/")[0]) % 2 == 0 for value in found), "what was aborted is never there"
    assert set(found) >= {f"18/{key}" for key in range(10)}, "the newest committed value of every key is"
