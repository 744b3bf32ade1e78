"""A job that was written for `format("kafka")` runs when that one word is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import waystation
from tests.spark.sink_kit import committed, texts
from tests.spark.versions_kit import kept
from tests.support.names import unique
from tests.support.server import Server
from waystation.errors import Invalid
from waystation.spark.kafka_options import in_our_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.quick

FORMAT = "waystation"  # it was "kafka"


def stream_job(spark: SparkSession, servers: str, source: str, target: str, checkpoint: str) -> None:
    """As people write it for Spark's Kafka connector: nothing in it is Waystation's but the format."""
    orders = (
        spark.readStream.format(FORMAT)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribePattern", source)
        .option("startingOffsets", "earliest")
        .options(**kept(maxOffsetsPerTrigger=40))
        .option("failOnDataLoss", "false")
        .option("includeHeaders", "true")
        .option("kafka.max.poll.records", 500)
        .option("kafka.security.protocol", "PLAINTEXT")
        .load()
    )
    large = orders.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value").where("length(value) > 2")
    query = (
        large.writeStream.format(FORMAT)
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.acks", "all")
        .option("kafka.compression.type", "lz4")
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_streaming_job(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    source, target = unique("orders"), unique("large")
    with waystation.connect(server.bootstrap) as mq:
        mq.create_topic(source, partitions=2)
        mq.create_topic(target, partitions=1)
        mq.publish_many(source, [str(number) for number in range(150)])
    stream_job(spark, server.bootstrap, f"{source[:-1]}.", target, str(tmp_path / "checkpoint"))
    assert sorted(texts(committed(server, target)), key=int) == [str(number) for number in range(100, 150)]


def test_a_batch_read_by_times_of_partitions(spark: SparkSession, server: Server) -> None:
    topic = unique("times")
    with waystation.connect(server.bootstrap) as mq:
        mq.create_topic(topic, partitions=2)
        for partition in range(2):
            for number in range(4):
                mq.publish(topic, f"{partition}-{number}", partition=partition, timestamp=1_700_000_000 + number)
    read = spark.read.format(FORMAT).option("kafka.bootstrap.servers", server.bootstrap).option("subscribe", topic)
    begin = json.dumps({topic: {"0": 1_700_000_002_000, "1": 1_700_000_003_000}})
    end = json.dumps({topic: {"0": 1_700_000_003_000}})
    rows = read.option("startingOffsetsByTimestamp", begin).option("endingOffsetsByTimestamp", end).load()
    assert sorted(row[0] for row in rows.selectExpr("CAST(value AS STRING)").collect()) == ["0-2", "1-3"]
    few = spark.read.format(FORMAT).options(**{"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic})
    assert few.option("maxRecordsPerPartition", 3).load().rdd.getNumPartitions() == 4, "two partitions of four records"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"subscribe": "a", "kafka.bootstrap.servers": "b:1"}, {"topics": "a", "servers": "b:1"}),
        ({"SubscribePattern": "a.*"}, {"pattern": "^.*(?:a.*).*"}),
        ({"subscribePattern": "(?i)^a$"}, {"pattern": "^(?i).*(?:^a$).*"}),
        ({"maxOffsetsPerTrigger": "7", "topic": "x"}, {"maxRowsPerTrigger": "7", "topic": "x"}),
        ({"minOffsetsPerTrigger": "7", "maxTriggerDelay": "5m"}, {"minRowsPerTrigger": "7", "maxTriggerDelay": "5m"}),
        ({"kafka.isolation.level": "read_committed"}, {"isolation": "read_committed"}),
        ({"kafka.fetch.max.bytes": "1", "groupIdPrefix": "g", "kafka.security.protocol": "plaintext"}, {}),
    ],
)
def test_options_by_the_connectors_names(given: dict[str, str], found: dict[str, str]) -> None:
    assert in_our_words(given) == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "a", "topics": "b"}, "say the same"),
        ({"kafka.bootstrap.server": "x:1"}, "did you mean 'kafka.bootstrap.servers'"),
    ],
)
def test_what_cannot_be_kept_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        in_our_words(given)
