"""What the tests of the Spark source do again and again: make topics, fill them, read them, run a stream to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.names import unique
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Stage:
    """A broker with topics in it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 2})

    @property
    def servers(self) -> str:
        return self.server.bootstrap

    def topic(self, partitions: int = 1, name: str | None = None, **config: Any) -> str:
        name = name or unique("t")
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        for done in self.admin.create_topics([NewTopic(name, partitions, config=settings)]).values():
            done.result()
        return name

    def grow(self, topic: str, partitions: int) -> None:
        for done in self.admin.create_partitions([NewPartitions(topic, partitions)]).values():
            done.result()

    def delete(self, topic: str) -> None:
        for done in self.admin.delete_topics([topic]).values():
            done.result()

    def cut(self, topic: str, partition: int, before: int) -> None:
        """What retention does: nothing before this offset is left."""
        for done in self.admin.delete_records([TopicPartition(topic, partition, before)]).values():
            done.result()

    def producer(self, **config: Any) -> Producer:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return Producer({"bootstrap.servers": self.servers, "linger.ms": 5, "log_level": 2, **settings})

    def fill(self, topic: str, values: Iterable[str], *, partition: int = 0, **more: Any) -> None:
        """Values in one partition, in order; keys are the values."""
        client = self.producer()
        for value in values:
            client.produce(topic, value.encode(), key=value.encode(), partition=partition, **more)
        if client.flush(30):
            raise AssertionError("not all was delivered")


def numbers(*bounds: int) -> list[str]:
    return [str(n) for n in range(*bounds)]


def load(spark: SparkSession, stage: Stage, **options: Any) -> DataFrame:
    """A batch read."""
    return spark.read.format("waystation").options(servers=stage.servers, **options).load()


def values(rows: Iterable[Row]) -> list[str]:
    return [row.value.decode() for row in rows]


class Run:
    """Runs of one streaming query: what each of its batches had."""

    def __init__(self, spark: SparkSession, stage: Stage, folder: Path, **options: Any) -> None:
        self.spark = spark
        self.stage = stage
        self.checkpoint = folder / unique("checkpoint")
        self.options = options
        self.batches: dict[int, list[str]] = {}
        self.change: Callable[[DataFrame], DataFrame] = lambda frame: frame

    @property
    def rows(self) -> list[str]:
        return [value for _, batch in sorted(self.batches.items()) for value in batch]

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self.spark.readStream.format("waystation").options(servers=self.stage.servers, **self.options).load()

        def keep(batch: DataFrame, number: int) -> None:
            self.batches[number] = values(self.change(batch).orderBy("partition", "offset").collect())

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def drain(self, within_s: int = 120) -> list[str]:
        """Everything that is there now."""
        query = self.start(availableNow=True)
        try:
            if not query.awaitTermination(within_s):
                raise AssertionError(f"the query did not end: {query.status}")
        finally:
            query.stop()
        return self.rows


def options_of(stage: Stage, **options: Any) -> Mapping[str, str]:
    return {"servers": stage.servers, **{name: str(value) for name, value in options.items()}}
