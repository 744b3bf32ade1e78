"""What the tests of the Spark sink do again and again: read what is committed, as a stranger does, and run a stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

import waystation
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.client.sync.client import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def connect(server: Server) -> Client:
    return waystation.connect(f"waystation://{server.bootstrap}", wait=20)


class Found(NamedTuple):
    """A message as a consumer sees it."""

    partition: int
    key: bytes
    value: bytes
    timestamp_ms: int
    headers: list[tuple[str, bytes]]


def _found(message: Message) -> Found:
    """A key or a value that is missing is empty here."""
    headers: Any = message.headers() or []
    return Found(
        message.partition() or 0, message.key() or b"", message.value() or b"", message.timestamp()[1], list(headers)
    )


def committed(server: Server, topic: str) -> list[Found]:
    """Every message that a Kafka consumer of committed messages finds in a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": unique("g"),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 3,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found: list[Found] = []
        ended: set[int | None] = set()

        def read() -> bool:
            for message in consumer.consume(10_000, timeout=0.5):
                error = message.error()
                if error is None:
                    found.append(_found(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise AssertionError(str(error))
            return len(ended) == len(partitions)

        wait_for(read, f"the end of {topic}")
        return found
    finally:
        consumer.close()


def texts(messages: list[Found]) -> list[str]:
    return sorted(message.value.decode() for message in messages)


def open_stages(client: Client) -> int:
    """How many transactions of Spark's are open: each of them holds readers of committed messages back."""
    return client.abort_staged(prefix="spark/")


def drop_last_commit(checkpoint: Path) -> int:
    """Makes Spark believe that its last batch was not committed: it runs it again, under the same number."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    for path in (last, *last.parent.glob(f".{last.name}.*crc"), *last.parent.glob(f"{last.name}.crc")):
        path.unlink(missing_ok=True)
    return int(last.name)


class Copy:
    """A query from a folder of JSON lines to the sink; every file is a batch."""

    def __init__(self, spark: SparkSession, server: Server, folder: Path, **options: Any) -> None:
        self.spark = spark
        self.server = server
        self.input = folder / unique("input")
        self.input.mkdir()
        self.checkpoint = folder / unique("checkpoint")
        self.options = options
        self.schema = "value string"
        self.change: Callable[[DataFrame], DataFrame] = lambda frame: frame
        self._files = 0

    def add(self, *rows: str) -> None:
        """A file of rows, which becomes a batch."""
        self._files += 1
        hidden = self.input / f".{self._files}"
        hidden.write_text("".join(row + "\n" for row in rows))
        hidden.rename(self.input / f"{self._files:04}.json")

    def run(self) -> None:
        """Until all files are written."""
        source = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).json(str(self.input))
        query = (
            self.change(source)
            .writeStream.format("waystation")
            .options(servers=self.server.bootstrap, **self.options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            if not query.awaitTermination(120):
                raise AssertionError(f"the query does not end: {query.status}")
        finally:
            query.stop()
