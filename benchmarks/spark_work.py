"""What `benchmarks.spark` times: a topic read and written by Spark, a consume loop, Parquet; all with the same rows.

Spark reads and writes by our source and sink or by its own Kafka connector, with the same options for both: only the
format's name differs.

Every step returns what it measured and leaves nothing behind that a later one could profit from, but a warm session,
which all have. Rows are counted where the API tells their number: a step that saw others than it should raises `Wrong`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import waystation
from waystation.log.batches import batch as batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "rows"
PARTITIONS = 4
VALUE_BYTES = 100
ROWS_PER_BATCH = 8_000
"""Of a record batch, which then has a little less than a megabyte, as producers with `linger.ms` make them."""

DISTINCT_BATCHES = 32
"""A quarter of a million different rows of random bytes: too many for Parquet's dictionaries."""

ARROW_ROWS = 50_000
WAIT_S = 60.0
OURS, KAFKA = "waystation", "kafka"
TUNED = {"kafka.batch.size": "1000000", "kafka.linger.ms": "20", "kafka.buffer.memory": "134217728"}
"""For the connector's producer, which sends batches of 16 KB at once otherwise. Ours takes them and does nothing."""
COLUMNS = "key BINARY, value BINARY, partition INT, offset LONG, timestamp TIMESTAMP"
"""What the consume loop collects."""


class Wrong(RuntimeError):
    """A step did not see the rows that are there; its time means nothing."""


class Streamed(NamedTuple):
    """Rows a second of a whole query, and of its batches but the first."""

    whole: float
    later: float | None


class Delays(NamedTuple):
    """Of single rows, in milliseconds: from before they are sent until they are read, and what their batches took."""

    end_to_end: list[float]
    batches: list[float]


def fill(address: str, rows: int) -> int:
    """Makes the topic and fills it, with whole record batches; returns the number of rows."""
    source, now_ms = random.Random(1), time.time_ns() // 1_000_000
    made = []
    for number in range(DISTINCT_BATCHES):
        keys = range(number * ROWS_PER_BATCH, (number + 1) * ROWS_PER_BATCH)
        made.append(batches.build([(b"%08d" % key, source.randbytes(VALUE_BYTES), ()) for key in keys], now_ms))
    count = -(-rows // ROWS_PER_BATCH)
    with waystation.connect(f"waystation://{address}", wait=WAIT_S) as mq:
        mq.create_topic(TOPIC, partitions=PARTITIONS)
        for number in range(count):
            mq.publish_batches(TOPIC, [(number % PARTITIONS, made[number % DISTINCT_BATCHES])])
    return count * ROWS_PER_BATCH


def consume_into_arrow(address: str, rows: int) -> float:
    """Rows a second of the loop that one would write with confluent-kafka and pyarrow."""
    import pyarrow as pa
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "loop", "enable.auto.commit": False, "log_level": 3})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    got, began, last, held = 0, time.monotonic(), time.monotonic(), list[Any]()
    try:
        while got < rows:
            messages = consumer.consume(10_000, timeout=1.0)
            if not messages and time.monotonic() - last > WAIT_S:
                raise Wrong(f"the consume loop got {got} of {rows} rows and then nothing for {WAIT_S:.0f} s")
            last = time.monotonic() if messages else last
            for message in messages:
                if message.error():
                    raise Wrong(f"the consume loop got an error: {message.error()}")
                held.append(
                    (message.key(), message.value(), message.partition(), message.offset(), message.timestamp()[1])
                )
            got += len(messages)
            if len(held) >= ARROW_ROWS or got >= rows:
                arrays = [pa.array(column) for column in zip(*held, strict=True)]
                pa.RecordBatch.from_arrays(arrays, names=["key", "value", "partition", "offset", "timestamp"])
                held.clear()
        return got / (time.monotonic() - began)
    finally:
        consumer.close()


class SparkWork:
    """The steps that need Spark."""

    def __init__(self, spark: SparkSession, address: str, rows: int, folder: Path, rows_per_trigger: int) -> None:
        self._spark, self._address, self._rows, self._folder = spark, address, rows, folder
        self._rows_per_trigger = rows_per_trigger
        self._number = 0

    # -- batches ---------------------------------------------------------------------------------------------------

    def read(self, connector: str) -> float:
        """Rows a second of a batch read, all columns, to Spark's sink that drops them."""
        return self._rate(self._topic(connector))

    def read_columns(self) -> float:
        """The same with the columns of the consume loop, which the connector cannot choose."""
        return self._rate(self._topic(OURS, COLUMNS))

    def count(self, connector: str) -> int:
        return int(self._topic(connector).count())

    def write_parquet(self) -> None:
        self._topic(OURS, COLUMNS).write.parquet(str(self._parquet))

    def read_parquet(self) -> float:
        return self._rate(self._spark.read.parquet(str(self._parquet)))

    def write_topic(self, connector: str) -> float:
        """Rows a second of a batch write, Parquet to a topic: by ours all of it is visible at once, or nothing."""
        rows = self._spark.read.parquet(str(self._parquet)).select("key", "value")
        with self._target() as target:
            began = time.monotonic()
            rows.write.format(connector).options(**self._sink(target)).mode("append").save()
            seconds = time.monotonic() - began
            self._check(target)
            return self._rows / seconds

    @property
    def _parquet(self) -> Path:
        return self._folder / "parquet"

    def _topic(self, connector: str, schema: str | None = None) -> DataFrame:
        reader = self._spark.read.format(connector).options(**self._source(TOPIC))
        return (reader.schema(schema) if schema else reader).load()

    def _source(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._address, "subscribe": topic, "startingOffsets": "earliest"}

    def _sink(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._address, "topic": topic, **TUNED}

    def _rate(self, frame: DataFrame) -> float:
        began = time.monotonic()
        frame.write.format("noop").mode("overwrite").save()
        return self._rows / (time.monotonic() - began)

    # -- streams ---------------------------------------------------------------------------------------------------

    def stream(self, connector: str) -> Streamed:
        """A stream to Spark's sink that drops all."""
        return self._drain(self._stream(connector, TOPIC), "noop", {})

    def stream_to_topic(self, connector: str) -> Streamed:
        """A stream from topic to topic: by ours exactly once, by the connector at least once."""
        with self._target() as target:
            rows = self._stream(connector, TOPIC).select("key", "value")
            done = self._drain(rows, connector, self._sink(target))
            self._check(target)
            return done

    def _stream(self, connector: str, topic: str) -> DataFrame:
        limit = {"maxOffsetsPerTrigger": str(self._rows_per_trigger)}
        return self._spark.readStream.format(connector).options(**self._source(topic), **limit).load()

    def _start(self, frame: DataFrame, sink: str, options: dict[str, str], **trigger: Any) -> StreamingQuery:
        self._number += 1
        checkpoint = str(self._folder / f"checkpoint-{self._number}")
        writer = frame.writeStream.format(sink).options(checkpointLocation=checkpoint, **options)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def _drain(self, frame: DataFrame, sink: str, options: dict[str, str]) -> Streamed:
        began = time.monotonic()
        query = self._start(frame, sink, options, availableNow=True)
        query.awaitTermination()
        seconds = time.monotonic() - began
        done = [(float(p.numInputRows), p.durationMs["triggerExecution"] / 1e3) for p in _with_rows(query)]
        if sum(rows for rows, _ in done) != self._rows:
            raise Wrong(f"a stream had {sum(rows for rows, _ in done):.0f} rows of {self._rows}")
        later = sum(rows for rows, _ in done[1:]) / sum(s for _, s in done[1:]) if len(done) > 1 else None
        return Streamed(self._rows / seconds, later)

    # -- micro-batches ---------------------------------------------------------------------------------------------

    def delays(self, connector: str, count: int, warm: int = 10) -> Delays:
        """Sends single rows, each when the one before has come out of a query to another topic."""
        from confluent_kafka import Consumer, TopicPartition

        with waystation.connect(f"waystation://{self._address}") as mq, self._target(1) as target:
            mq.create_topic(f"{target}-in")
            consumer = Consumer(
                {"bootstrap.servers": self._address, "group.id": target, "enable.auto.commit": False, "log_level": 3}
            )
            consumer.assign([TopicPartition(target, 0, 0)])
            rows = self._stream(connector, f"{target}-in").select("key", "value")
            query = self._start(rows, connector, {**self._sink(target), "kafka.linger.ms": "0"})
            taken = []
            try:
                for number in range(warm + count):
                    began = time.monotonic()
                    mq.publish(f"{target}-in", b"%d" % number)
                    message = consumer.poll(WAIT_S)
                    if message is None or message.error() or message.value() != b"%d" % number:
                        raise Wrong(f"row {number} did not come out of the query")
                    taken.append((time.monotonic() - began) * 1e3)
                query.processAllAvailable()
            finally:
                query.stop()
                consumer.close()
                mq.delete_topic(f"{target}-in")
            # An idle query waits for the first new row within `latestOffset`: that is no work.
            worked = [p.durationMs["triggerExecution"] - p.durationMs["latestOffset"] for p in _with_rows(query)]
            return Delays(taken[warm:], [float(ms) for ms in worked[-count:]])

    def _check(self, target: str) -> None:
        """Its offsets are the rows and a few markers of transactions."""
        with waystation.connect(f"waystation://{self._address}") as mq:
            if (end := sum(end for _, end, _ in mq.describe_topic(target).partitions)) < self._rows:
                raise Wrong(f"{self._rows} rows were written, and the topic has {end}")

    def _target(self, partitions: int = PARTITIONS) -> _Target:
        self._number += 1
        return _Target(self._address, f"out-{self._number}", partitions)


class _Target:
    """A topic for as long as one step needs it: the disk has to hold no more than one."""

    def __init__(self, address: str, name: str, partitions: int) -> None:
        self._address, self._name, self._partitions = address, name, partitions

    def __enter__(self) -> str:
        with waystation.connect(f"waystation://{self._address}") as mq:
            mq.create_topic(self._name, partitions=self._partitions)
        return self._name

    def __exit__(self, *_: object) -> None:
        with waystation.connect(f"waystation://{self._address}") as mq:
            mq.delete_topic(self._name)


def _with_rows(query: StreamingQuery) -> Iterator[Any]:
    return (progress for progress in query.recentProgress if progress.numInputRows)
