"""Topics and queues as tables and views of Spark SQL: read with SELECT, written with INSERT INTO."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tests.spark.sink_kit import committed, open_stages, texts
from tests.spark.source_kit import Stage, numbers
from tests.support.names import unique
from waystation.errors import Invalid
from waystation.spark.tables import (
    VARCHAR,
    for_sink,
    for_source,
    keep_options,
    options_of_new_table,
    options_to_read,
    options_to_write,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def name_of_table() -> str:
    return unique("t").replace("-", "_")


def refusal(spark: SparkSession, statement: str) -> str:
    with pytest.raises(AnalysisException) as caught:
        spark.sql(statement).collect()
    return str(caught.value)


def create(spark: SparkSession, name: str, stage: Stage, options: str) -> None:
    spark.sql(f"CREATE TABLE {name} USING waystation OPTIONS (servers '{stage.servers}', {options})")


def insert(spark: SparkSession, table: str, options: str = "", **given: str) -> None:
    """A row with all columns, since Spark 4.0 does not fill in those that are left out."""
    values = ", ".join(given.get(column, "NULL") for column in spark.table(table).columns)
    spark.sql(f"INSERT INTO {table} {options} SELECT {values}")


@pytest.mark.quick
def test_a_table_is_read_and_inserted_into(spark: SparkSession, stage: Stage) -> None:
    topic, other = stage.topic(2), stage.topic(2)
    stage.fill(topic, numbers(5))
    a, b = name_of_table(), name_of_table()
    create(spark, a, stage, f"topic '{topic}', startingOffsets 'earliest', guarantee 'exactly-once'")
    spark.sql(
        f"CREATE TABLE {b} USING waystation TBLPROPERTIES"
        f" ('kafka.bootstrap.servers'='{stage.servers}', 'subscribe'='{other}', 'team'='x')"
    )
    count = f"SELECT count(*), count(DISTINCT value), max(cast(key AS STRING)) FROM {a}"
    assert tuple(spark.sql(count).head() or ()) == (5, 5, "4")
    insert(spark, a, key="X'39'", value="cast('nine' AS BINARY)")
    insert(spark, a, f"WITH (txnId='{topic}')", value="X'30'")
    insert(spark, a, f"WITH (txnId='{topic}')", value="X'30'")  # it is there already
    assert tuple(spark.sql(count).head() or ()) == (7, 6, "9")
    spark.table(a).writeTo(b).append()
    spark.sql(f"INSERT INTO {b} SELECT * FROM {a}")  # a's columns bring the options of a; those of b count
    assert len(committed(stage.server, other)) == 14
    assert len(committed(stage.server, topic)) == 7
    spark.sql(f"DROP TABLE {a}")
    assert len(committed(stage.server, topic)) == 7


def test_what_a_table_cannot_do_is_said_and_writes_nothing(spark: SparkSession, stage: Stage) -> None:
    topic = stage.topic(1)
    stage.fill(topic, ["x"])
    table, listed, gone = name_of_table(), name_of_table(), name_of_table()
    create(spark, table, stage, f"topic '{topic}'")
    create(spark, gone, stage, "topic 'not-there'")
    spark.sql(
        f"CREATE TABLE {listed} (value STRING) USING waystation OPTIONS (servers '{stage.servers}', topic '{topic}')"
    )
    overwrite = refusal(spark, f"INSERT OVERWRITE {table} SELECT * FROM {table}")
    assert "is not replaced; use mode('append'), in SQL INSERT INTO" in overwrite
    assert "topic 'not-there' does not exist" in refusal(spark, f"SELECT * FROM {gone}")
    for statement in (f"SELECT * FROM {listed}", f"INSERT INTO {listed} VALUES ('y')"):
        assert "Spark forgets the OPTIONS of one that was created with a list of columns" in refusal(spark, statement)
    made = f"CREATE TABLE {name_of_table()} USING waystation OPTIONS (servers '{stage.servers}', topic '{topic}')"
    assert "Spark forgets the OPTIONS" in refusal(spark, f"{made} AS SELECT 'y' AS value")
    typo = refusal(spark, made.replace("topic '", "topik '"))
    assert "the waystation table has no option 'topik'; did you mean 'topic' or 'topics'?" in typo
    assert "`valeu` cannot be resolved" in refusal(spark, f"INSERT INTO {table} (valeu) VALUES (X'30')")
    assert 'Cannot safely cast `value` "STRING" to "BINARY"' in refusal(
        spark, f"INSERT INTO {table} (value) VALUES ('y')"
    )
    assert "where they go was not said" in refusal(spark, f"INSERT INTO {table} SELECT * FROM {table}")
    with pytest.raises(AnalysisException, match="where they go was not said"):
        spark.table(table).write.format("waystation").mode("append").save()
    assert texts(committed(stage.server, topic)) == ["x"]
    spark.sql(f"INSERT INTO {listed} WITH (servers='{stage.servers}', topic='{topic}') VALUES ('y')")
    assert texts(committed(stage.server, topic)) == ["x", "y"]


def test_a_temporary_view_is_read_and_inserted_into(spark: SparkSession, stage: Stage) -> None:
    topic, view = stage.topic(1), name_of_table()
    stage.fill(topic, numbers(3))
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING waystation OPTIONS (servers '{stage.servers}', topic '{topic}')")
    assert spark.table(view).count() == 3
    spark.sql(f"INSERT INTO {view} (value) VALUES (cast('new' AS BINARY))")
    assert texts(committed(stage.server, topic)) == ["0", "1", "2", "new"]
    assert "is not replaced" in refusal(spark, f"INSERT OVERWRITE {view} SELECT * FROM {view}")


def test_a_table_is_streamed_from_and_never_taken_for_the_target(
    spark: SparkSession, stage: Stage, tmp_path: Path
) -> None:
    """Spark tells a stream nothing about the table that it writes to, and its columns bring the comments of another."""
    topic, other = stage.topic(1), stage.topic(1)
    stage.fill(topic, numbers(6))
    a, b = name_of_table(), name_of_table()
    create(spark, a, stage, f"topic '{topic}', startingOffsets 'earliest', stageTimeout '60'")
    create(spark, b, stage, f"topic '{other}'")
    writer = spark.readStream.table(a).writeStream.trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="gives a stream that writes to a table none"):
        writer.option("checkpointLocation", str(tmp_path / "1")).toTable(b).awaitTermination(60)
    given = {"servers": stage.servers, "topic": other, "checkpointLocation": str(tmp_path / "2")}
    writer.options(**given).toTable(b).awaitTermination(60)
    assert texts(committed(stage.server, other)) == numbers(6)
    assert len(committed(stage.server, topic)) == 6


def test_a_queue_is_a_table(spark: SparkSession, stage: Stage) -> None:
    from tests.spark.sink_kit import connect

    queue, table = unique("q"), name_of_table()
    with connect(stage.server) as mq:
        mq.queue(queue).put("first")
        create(spark, table, stage, f"queue '{queue}'")
        spark.sql(f"INSERT INTO {table} (value, priority) SELECT value, 3 FROM {table}")
        assert [bytes(row[0]) for row in spark.sql(f"SELECT value FROM {table} WHERE priority = 3").collect()] == [
            b"first"
        ]
        assert mq.queue(queue).describe().ready == 2
        assert open_stages(mq) == 0


# -- without Spark -----------------------------------------------------------------------------------------------------

NEW = {"provider": "waystation", "option.servers": "h:1", "servers": "h:1", "owner": "me", "path": "/x", "team": "y"}
PLAIN = StructType([StructField("contentType", StringType()), StructField("value", BinaryType())])


def as_spark_hands_it(schema: StructType | str, *, fitted: bool) -> StructType:
    """What becomes of the VARCHAR in a table that is read, and in rows that were fitted to a table."""
    assert isinstance(schema, StructType)
    *others, last = schema.fields
    mark = {} if fitted else {VARCHAR: last.dataType.simpleString()}
    return StructType([*others, StructField(last.name, StringType(), metadata={**last.metadata, **mark})])


def test_options_travel_in_the_schema() -> None:
    created = options_of_new_table({**NEW, "option.topic": "it's", "topic": "it's"})
    assert created == {"servers": "h:1", "topic": "it's"}
    kept = keep_options(PLAIN, created)
    read, written = (as_spark_hands_it(kept, fitted=fitted) for fitted in (False, True))
    assert read.names == ["value", "contentType"]
    assert options_to_read(read, {"group": "x"}) == {**created, "group": "x"}
    assert options_to_write(written, {"txnId": "x"}) == {**created, "txnId": "x"}
    with pytest.raises(Invalid, match="where they go was not said"):
        options_to_write(read, {})  # rows of a table that were not fitted to another one
    with pytest.raises(Invalid, match="charVarcharAsString"):
        options_to_read(written, {})
    assert options_to_write(read, {"kafka.bootstrap.servers": "other:1"}) is None
    assert options_to_read(PLAIN, {}) is None
    assert options_of_new_table({"servers": "h:1"}) is None
    text = keep_options("value STRUCT<a INT, contentType string>, contentType string, _corrupt BINARY", {"a": "it's"})
    assert isinstance(text, str)
    assert text.startswith("value STRUCT<a INT, contentType string>, _corrupt BINARY, contentType VARCHAR(")
    assert text.endswith(r"""COMMENT 'waystation {"a": "it\'s"}'""")
    one, other = (keep_options(PLAIN, {"topic": topic}) for topic in "ab")
    assert isinstance(one, StructType)
    assert isinstance(other, StructType)
    assert one["contentType"].dataType != other["contentType"].dataType  # or rows would not be fitted


def test_the_source_and_the_sink_are_told_their_own() -> None:
    table = {"servers": "h:1", "topics": "a,b", "topic": "c", "group": "g", "txnId": "x", "retryTimeout": "1"}
    assert for_source(table) == {"servers": "h:1", "topics": "a,b", "group": "g", "retryTimeout": "1"}
    assert for_sink(table) == {"servers": "h:1", "topic": "c", "txnId": "x", "retryTimeout": "1"}
    assert for_source({"topic": "c"}) == {"topics": "c"}
    assert for_sink({"topics": "c"}) == {"topic": "c"}
    assert for_sink({"topics": "c,d"}) == {}
    with pytest.raises(Invalid, match="did you mean 'topic'"):
        for_sink({"topicc": "c"})
