"""Spark's own Kafka connector, `format("kafka")`, unchanged, against this broker; and the way from it to ours.

It comes from Maven (`benchmarks.spark_jars`). Where that is not reached, these tests are skipped, and say so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import waystation
from benchmarks.spark_jars import KafkaConnector
from tests.docs.blocks import blocks, pointed_at
from tests.spark.sink_kit import Found, committed
from tests.spark.source_kit import Stage, numbers
from tests.support.names import unique
from tests.support.server import ROOT, Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")
pytestmark = pytest.mark.usefixtures("connector")

QUERY_S = 120
FIRST_MS = 1_700_000_000_000


class Job:
    """A user's words: reads and writes by Spark's Kafka connector, through one broker."""

    def __init__(self, spark: SparkSession, stage: Stage, folder: Path) -> None:
        self.spark, self.stage, self.folder = spark, stage, folder

    def read(self, **options: Any) -> list[Any]:
        return self._frame(self.spark.read, options).collect()

    def values(self, **options: Any) -> list[str]:
        return sorted((row.value.decode() for row in self.read(**options)), key=int)

    def tasks(self, **options: Any) -> int:
        return self._frame(self.spark.read, options).rdd.getNumPartitions()

    def write(self, frame: DataFrame, topic: str) -> None:
        frame.write.format("kafka").options(**self.broker()).option("topic", topic).save()

    def copy(self, source: str, target: str, **options: Any) -> list[int]:
        """A stream from a topic to a topic, of what is there now; how many rows each of its batches had."""
        frame = self._frame(self.spark.readStream, {"subscribe": source, **options})
        query = (
            frame.selectExpr("key", "concat('copy of ', CAST(value AS STRING)) AS value")
            .writeStream.format("kafka")
            .options(**self.broker())
            .option("topic", target)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(QUERY_S), query.status
            return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        finally:
            query.stop()

    def _frame(self, reader: Any, options: dict[str, Any]) -> DataFrame:
        frame: DataFrame = reader.format("kafka").options(**self.broker(), **options).load()
        return frame

    def broker(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.stage.servers}


@pytest.fixture
def job(spark: SparkSession, stage: Stage, tmp_path: Path) -> Job:
    return Job(spark, stage, tmp_path)


@pytest.mark.quick
def test_what_the_connector_writes_it_reads_with_headers(job: Job) -> None:
    topic = job.stage.topic(2)
    frame = job.spark.range(100).selectExpr(
        "CAST(id % 3 AS STRING) AS key",
        "CAST(id AS STRING) AS value",
        "array(struct('n' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
    )
    job.write(frame, topic)
    rows = job.read(subscribe=topic, includeHeaders="true")
    assert sorted(int(row.value) for row in rows) == list(range(100))
    for row in rows:
        assert (row.topic, row.key) == (topic, b"%d" % (int(row.value) % 3))
        assert [(header.key, bytes(header.value)) for header in row.headers] == [("n", bytes(row.value))]
    assert sorted(found.value for found in committed(job.stage.server, topic)) == sorted(row.value for row in rows)


def test_a_batch_reads_the_offsets_and_times_that_it_asks_for(job: Job) -> None:
    topic = job.stage.topic(2)
    for n in range(20):
        job.stage.fill(topic, [str(n)], partition=n % 2, timestamp=FIRST_MS + n * 1000)
    offsets = {"startingOffsets": {topic: {"0": 3, "1": -2}}, "endingOffsets": {topic: {"0": 5, "1": 4}}}
    by_offset = job.values(subscribe=topic, **{name: json.dumps(value) for name, value in offsets.items()})
    assert by_offset == ["1", "3", "5", "6", "7", "8"]
    times = {"0": FIRST_MS + 14_000, "1": FIRST_MS + 15_000}
    assert job.values(subscribe=topic, startingOffsetsByTimestamp=json.dumps({topic: times})) == numbers(14, 20)
    since, until = FIRST_MS + 4_000, FIRST_MS + 8_000
    assert job.values(subscribe=topic, startingTimestamp=since, endingTimestamp=until) == numbers(4, 8)
    assert job.values(assign=json.dumps({topic: [1]})) == numbers(1, 20, 2)
    assert job.values(subscribePattern=f"{topic[:-1]}[{topic[-1]}]") == numbers(20)
    assert job.tasks(subscribe=topic) == 2
    assert job.tasks(subscribe=topic, minPartitions=5) >= 5
    assert job.values(subscribe=topic, minPartitions=5) == numbers(20), "no row is lost where ranges are split"


def test_a_stream_goes_on_from_its_checkpoint(job: Job) -> None:
    source, target = job.stage.topic(2), job.stage.topic(1)
    for partition in range(2):
        job.stage.fill(source, numbers(partition, 100, 2), partition=partition)
    start = {"startingOffsets": json.dumps({source: {"0": 0, "1": 10}}), "maxOffsetsPerTrigger": 40}
    counts = job.copy(source, target, **start)
    assert sum(counts) == 90
    assert max(counts) <= 40
    job.stage.fill(source, numbers(100, 130))
    assert sum(job.copy(source, target, **start)) == 30, "the checkpoint says where, not startingOffsets"
    left_out = set(range(1, 20, 2))
    found = sorted(int(one.value.removeprefix(b"copy of ")) for one in committed(job.stage.server, target))
    assert found == [n for n in range(130) if n not in left_out]


def test_deleted_rows_end_a_query_unless_it_says_otherwise(job: Job) -> None:
    from pyspark.errors import StreamingQueryException

    source, target = job.stage.topic(1), job.stage.topic(1)
    job.stage.fill(source, numbers(10))
    assert job.copy(source, target, startingOffsets="earliest") == [10]
    job.stage.fill(source, numbers(10, 40))
    job.stage.cut(source, 0, before=25)
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        job.copy(source, target, startingOffsets="earliest")
    job.copy(source, target, startingOffsets="earliest", failOnDataLoss="false")
    values = [one.value.decode().removeprefix("copy of ") for one in committed(job.stage.server, target)]
    assert sorted(values, key=int) == [*numbers(10), *numbers(25, 40)]


# -- the way from it to ours ---------------------------------------------------------------------------------------


def test_a_pattern_finds_the_topics_that_the_connector_finds(job: Job) -> None:
    """Which is a regular expression that is found anywhere in the name."""
    part = unique("part")
    for name in (f"{part}-a", f"x-{part}-b", f"{part}-c-{part}", "x" + part):
        job.stage.fill(job.stage.topic(name=name), [name])
    for expression in (part, f"^{part}", f"{part}$", f"^x.?{part}$|{part}-c", f"(?i)^X-{part}"):
        options = {**job.broker(), "subscribePattern": expression}
        found = {}
        for name in ("kafka", "waystation"):
            rows = job.spark.read.format(name).options(**options).load().collect()
            found[name] = sorted(bytes(row.value).decode() for row in rows)
        assert found["waystation"] == found["kafka"] != [], expression


PAGE = ROOT / "docs" / "guide" / "spark-from-kafka.md"
OURS, THEIRS = 'FORMAT = "waystation"', 'FORMAT = "kafka"'
TOPICS = ("orders", "large-orders", "totals")


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Server]:
    """A broker with what the page's job reads."""
    with Server(tmp_path / "broker") as server:
        yield server


def run_page(spark: SparkSession, server: Server, code: str, checkpoint: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What the page's job leaves in each topic, when it is run on topics that are new."""
    with waystation.connect(server.bootstrap, wait=20) as mq:
        for topic in TOPICS:
            mq.create_topic(topic, partitions=2)
        for number in range(150):
            mq.publish("orders", str(number), key=f"customer-{number % 5}", headers={"shop": f"s{number % 3}"})
    names: dict[str, Any] = {"__name__": "page"}
    moved = pointed_at(code, server.addresses).replace("./checkpoint", str(checkpoint))
    exec(compile(moved, str(PAGE), "exec"), names)
    names["copy_large_orders"](spark)
    names["write_totals"](spark)
    written = {topic: sorted(map(_told, committed(server, topic))) for topic in TOPICS[1:]}
    with waystation.connect(server.bootstrap, wait=20) as mq:
        for topic in TOPICS:
            mq.delete_topic(topic)
    return written


def _told(found: Found) -> tuple[Any, ...]:
    """All of a message but its time."""
    return found.partition, found.key, found.value, sorted(found.headers)


@pytest.mark.timeout(600)
def test_the_migration_pages_job_does_the_same_after_one_word_is_changed(
    spark: SparkSession, orders: Server, tmp_path: Path, connector: KafkaConnector
) -> None:
    (code,) = [block.code for block in blocks(PAGE) if OURS in block.code]
    assert code.count("waystation") - code.partition('if __name__ == "__main__"')[2].count("waystation") == 1
    theirs = run_page(spark, orders, code.replace(OURS, THEIRS), tmp_path / "theirs")
    ours = run_page(spark, orders, code, tmp_path / "ours")
    assert ours == theirs
    assert len(theirs["large-orders"]) == 50
    assert len(theirs["totals"]) == 5
    assert all(headers for *_, headers in theirs["large-orders"])
