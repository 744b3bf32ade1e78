"""The source with real Spark: batch reads, streams, checkpoints, and what a user is told when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.source_kit import Run, Stage, load, numbers, values
from tests.spark.versions_kit import kept, since_42
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def total(frame: DataFrame) -> int:
    rows = frame.selectExpr("sum(cast(cast(value as string) as long)) as total").collect()
    return int(rows[0].total)


# -- batch -------------------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_a_topic_is_a_dataframe(spark: SparkSession, stage: Stage) -> None:
    topic = stage.topic(2)
    headers = [("x-message-id", b"id-1"), ("x-priority", b"3"), ("x-content-type", b"text/plain"), ("own", b"\xff")]
    stage.fill(topic, ["hello"], partition=1, timestamp=1_700_000_000_123, headers=headers)
    client = stage.producer()
    client.produce(topic, None, key=b"tombstone", partition=1)
    client.flush()
    rows = load(spark, stage, topics=topic).orderBy("offset").collect()
    first, second = rows
    assert (first.key, first.value, first.topic, first.partition, first.offset) == (b"hello", b"hello", topic, 1, 0)
    assert (first.id, first.priority, first.contentType, first.timestampType) == ("id-1", 3, "text/plain", 0)
    assert first.timestamp.timestamp() == 1_700_000_000.123
    assert [(one.key, one.value) for one in first.headers] == headers
    assert (second.key, second.value, second.headers, second.id, second.priority) == (b"tombstone", None, None, None, 0)


def test_starting_and_ending_offsets_in_every_form(spark: SparkSession, stage: Stage) -> None:
    topic = stage.topic(2)
    for n in range(10):
        stage.fill(topic, [str(n)], timestamp=1_700_000_000_000 + n * 1000)
    stage.fill(topic, ["other"], partition=1, timestamp=1_700_000_000_000)

    def read(**options: str) -> list[str]:
        return sorted(values(load(spark, stage, topics=topic, **options).collect()))

    assert read() == sorted([*numbers(10), "other"])
    assert read(startingOffsets="latest") == []
    one = json.dumps({topic: {"0": 3, "1": -1}})
    assert read(startingOffsets=one) == numbers(3, 10)
    assert read(startingOffsets=one, endingOffsets=json.dumps({topic: {"0": 5}})) == numbers(3, 5)
    assert read(endingOffsets=json.dumps({topic: {"0": -1, "1": 0}})) == numbers(10)
    assert read(startingTimestamp="1700000006000") == numbers(6, 10)
    assert read(startingTimestamp="2023-11-14T22:13:24+00:00", endingTimestamp="1700000006000") == numbers(4, 6)
    assert read(startingTimestamp="2040-01-01T00:00:00") == []
    assigned = load(spark, stage, assign=json.dumps({topic: [1]}))
    assert values(assigned.collect()) == ["other"]


def test_an_empty_topic_has_no_rows(spark: SparkSession, stage: Stage) -> None:
    assert load(spark, stage, topics=stage.topic(3)).count() == 0


def test_many_tasks_read_one_partition_and_a_schema_chooses_columns(spark: SparkSession, stage: Stage) -> None:
    topic = stage.topic()
    stage.fill(topic, numbers(20_000))
    frame = load(spark, stage, topics=topic, minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert total(frame) == sum(range(20_000))
    chosen = spark.read.format("waystation").options(servers=stage.servers, topics=topic)
    narrow = chosen.schema("offset LONG, value BINARY").load()
    assert narrow.columns == ["offset", "value"]
    assert values(narrow.where("offset = 19999").collect()) == ["19999"]


@pytest.mark.parametrize("pushdown", [True, False])
def test_filters_are_right_with_and_without_pushdown(spark: SparkSession, stage: Stage, pushdown: bool) -> None:
    topic = stage.topic(3)
    for index in range(3):
        for n in range(6):
            stage.fill(topic, [f"{index}/{n}"], partition=index, timestamp=1_700_000_000_000 + (n ^ 1) * 1000)
    before = str(spark.conf.get(PUSHDOWN, "false"))
    spark.conf.set(PUSHDOWN, pushdown)
    try:
        frame = load(spark, stage, topics=topic)
        found = values(frame.where("partition = 1 and offset >= 2 and offset < 4").collect())
        assert sorted(found) == ["1/2", "1/3"]
        late = frame.where("timestamp >= timestamp_seconds(1700000003) and timestamp < timestamp_seconds(1700000005)")
        assert sorted(values(late.collect())) == ["0/2", "0/5", "1/2", "1/5", "2/2", "2/5"]
        assert frame.where("partition in (0, 2) and topic like 't%'").count() == 12
    finally:
        spark.conf.set(PUSHDOWN, before)


# -- JSON --------------------------------------------------------------------------------------------------------------

JSON_VALUES = ['{"id": 1, "name": "a", "tags": ["x"]}', "no json", '{"id": "one"}', '{"id": 2, "at": {"lat": 1.5}}']


@pytest.mark.quick
def test_json_values_with_a_schema(spark: SparkSession, stage: Stage) -> None:
    topic = stage.topic()
    stage.fill(topic, JSON_VALUES)
    options = {"topics": topic, "valueFormat": "json", "valueSchema": "id INT, name STRING, at STRUCT<lat: DOUBLE>"}
    rows = load(spark, stage, **options).orderBy("offset").collect()
    assert [None if row.value is None else row.value.id for row in rows] == [1, None, None, 2]
    assert [row._corrupt for row in rows] == [None, b"no json", b'{"id": "one"}', None]
    assert rows[3].value.at.lat == 1.5
    assert load(spark, stage, **options, mode="dropmalformed").count() == 2
    with pytest.raises(Exception, match="2 of 4 values are not JSON of the schema"):
        load(spark, stage, **options, mode="failfast").collect()
    chosen = spark.read.format("waystation").options(servers=stage.servers, topics=topic, valueFormat="json")
    narrow = chosen.schema("value STRUCT<name: STRING>, offset LONG").load()
    assert [row.value.name for row in narrow.where("value is not null").orderBy("offset").collect()] == [
        "a",
        None,
        None,
    ]


def test_json_values_with_an_inferred_schema(spark: SparkSession, stage: Stage) -> None:
    topic = stage.topic()
    stage.fill(topic, JSON_VALUES)
    frame = load(spark, stage, topics=topic, valueFormat="json")
    assert frame.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,name:string,tags:array<string>,at:struct<lat:double>>"
    )
    assert [row.id for row in frame.selectExpr("value.id as id").where("id is not null").collect()] == [1, 2]
    with pytest.raises(Exception, match="no rows to infer a schema from; give the option valueSchema"):
        load(spark, stage, topics=stage.topic(), valueFormat="json")


# -- streams -----------------------------------------------------------------------------------------------------------


@since_42
def test_available_now_keeps_rate_limits_and_ends(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    topic, group = stage.topic(), unique("group")
    stage.fill(topic, numbers(1000))
    run = Run(spark, stage, tmp_path, topics=topic, startingOffsets="earliest", maxRowsPerTrigger=300, group=group)
    assert run.drain() == numbers(1000)
    assert [len(batch) for _, batch in sorted(run.batches.items())] == [300, 300, 300, 100]
    stage.fill(topic, numbers(1000, 1001))
    assert run.drain() == numbers(1001)
    assert run.drain() == numbers(1001)  # nothing new: no batch


def test_a_checkpoint_goes_on_after_the_code_changed(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    topic = stage.topic()
    run = Run(spark, stage, tmp_path, topics=topic, startingOffsets="earliest")
    stage.fill(topic, numbers(5))
    run.drain()
    stage.fill(topic, numbers(5, 12))
    run.options = {**run.options, "startingOffsets": "latest", "minPartitions": 3, **kept(maxRowsPerTrigger=4)}
    run.change = lambda frame: frame.where("offset % 2 = 0")
    assert run.drain() == [*numbers(5), "6", "8", "10"]


def test_a_running_query_sees_new_partitions(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    topic = stage.topic()
    stage.fill(topic, ["first"])
    run = Run(spark, stage, tmp_path, topics=topic, startingOffsets="earliest")
    query = run.start()
    try:
        wait_for(lambda: run.rows == ["first"], "the first row is read")
        stage.grow(topic, 3)
        stage.fill(topic, ["second"], partition=2)
        wait_for(lambda: run.rows == ["first", "second"], "the new partition is read")
    finally:
        query.stop()


def test_a_batch_without_rows_is_a_batch(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    topic = stage.topic()
    client = stage.producer(transactional_id=unique("tx"))
    client.init_transactions()
    client.begin_transaction()
    client.produce(topic, b"aborted")
    client.flush()
    client.abort_transaction()
    run = Run(spark, stage, tmp_path, topics=topic, startingOffsets="earliest")
    assert run.drain() == []
    assert run.batches == {0: []}
    stage.fill(topic, ["kept"])
    assert run.drain() == ["kept"]


def test_a_deleted_topic_ends_the_query_with_a_sentence(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    topic = stage.topic()
    stage.fill(topic, ["only"])
    run = Run(spark, stage, tmp_path, topics=topic, startingOffsets="earliest")
    query = run.start()
    try:
        wait_for(lambda: run.rows == ["only"], "the row is read")
        stage.delete(topic)
        failure = wait_for(query.exception, "the query fails")
        assert f"topic '{topic}' was deleted while the query was reading it" in str(failure)
    finally:
        query.stop()


def test_a_query_outlives_its_broker(spark: SparkSession, tmp_path: Path) -> None:
    with Server(tmp_path / "broker") as own:
        stage = Stage(own)
        topic = stage.topic()
        stage.fill(topic, numbers(5))
        own.kill()
        run = Run(spark, stage, tmp_path, topics=topic, startingOffsets="earliest")
        query = run.start(processingTime="100 milliseconds")  # the broker is down
        try:
            own.restart()
            wait_for(lambda: run.rows == numbers(5), "what was there is read")
            own.kill()
            own.restart()
            stage.fill(topic, numbers(5, 10))
            wait_for(lambda: run.rows == numbers(10), "what came later is read")
            assert query.isActive
        finally:
            query.stop()


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_mistakes_are_told_before_any_java(spark: SparkSession, stage: Stage) -> None:
    topic = stage.topic(name=unique("invoices"))
    with pytest.raises(Exception, match="has no option 'startingoffset'; did you mean 'startingOffsets'") as caught:
        load(spark, stage, topics=topic, startingOffset="latest")
    assert "at org.apache" not in str(caught.value)
    with pytest.raises(Exception, match=f"does not exist at {stage.servers}; did you mean '{topic}'") as caught:
        load(spark, stage, topics=topic.replace("invoices", "invoces")).count()
    with pytest.raises(Exception, match="the column 'offset' of the waystation source is bigint, not string"):
        spark.read.format("waystation").options(servers=stage.servers, topics=topic).schema(
            "offset STRING"
        ).load().count()
