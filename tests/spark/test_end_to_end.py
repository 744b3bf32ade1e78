"""From one client to another through Spark: what a producer sends is what a consumer gets, transformed, once."""

from __future__ import annotations

import datetime
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.spark.sink_kit import committed, connect, drop_last_commit, open_stages
from tests.spark.source_kit import Stage
from tests.spark.versions_kit import kept, since_42
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.client.sync.client import Client

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
EVENTS = "sensor STRING, degrees INT, at TIMESTAMP"


@pytest.fixture(scope="module")
def mq(server: Server) -> Iterator[Client]:
    with connect(server) as client:
        yield client


@pytest.fixture
def channel(server: Server) -> Iterator[BlockingChannel]:
    """AMQP, with confirms."""
    host, _, port = server.addresses["amqp"].rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        connection.close()


def run_to_end(frame: DataFrame, server: Server, checkpoint: Path, **options: Any) -> None:
    query = (
        frame.writeStream.format("waystation")
        .options(servers=server.bootstrap, checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    try:
        if not query.awaitTermination(120):
            raise AssertionError(f"the query does not end: {query.status}")
    finally:
        query.stop()


# -- Kafka -------------------------------------------------------------------------------------------------------------


def averages(spark: SparkSession, server: Server, topic: str) -> DataFrame:
    """Every minute of every sensor: how many readings, and their sum; a minute that is over is written once."""
    readings = (
        spark.readStream.format("waystation")
        .options(servers=server.bootstrap, topics=topic, startingOffsets="earliest", maxRowsPerTrigger=150)
        .options(valueFormat="json", valueSchema=EVENTS)
        .load()
        .select("value.*")
    )
    from pyspark.sql import functions as F

    minutes = readings.withWatermark("at", "2 minutes").groupBy(F.window("at", "1 minute"), "sensor")
    found = minutes.agg(F.count("*").alias("n"), F.sum("degrees").alias("sum"))
    return found.selectExpr(
        "sensor AS key", "to_json(struct(unix_seconds(window.start) AS minute, sensor, n, sum)) AS value"
    )


class Readings:
    """What a Kafka producer sends, and what is to come of it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.topic = stage.topic(partitions=2)
        self.expected: dict[tuple[int, str], list[int]] = defaultdict(list)

    def send(self, minutes: range, each: int) -> None:
        producer = self.stage.producer(enable_idempotence=True)
        for number in range(len(minutes) * each):
            at = START + datetime.timedelta(minutes=minutes[number // each], seconds=number % 60)
            self._send(producer, at, f"s{number % 3}", number % 41)
        if producer.flush(30):
            raise AssertionError("not all was delivered")

    def send_late(self, minute: int) -> None:
        """One whose minute is over and written: nothing is to come of it."""
        at = START + datetime.timedelta(minutes=minute)
        value = {"sensor": "s0", "degrees": 1000, "at": at.isoformat()}
        producer = self.stage.producer()
        producer.produce(self.topic, json.dumps(value).encode(), key=b"s0")
        producer.flush(30)

    def _send(self, producer: Any, at: datetime.datetime, sensor: str, degrees: int) -> None:
        value = {"sensor": sensor, "degrees": degrees, "at": at.isoformat()}
        producer.produce(self.topic, json.dumps(value).encode(), key=sensor.encode())
        self.expected[int(at.timestamp()) // 60 * 60, sensor].append(degrees)

    def due(self, before: int) -> list[tuple[int, str, int, int]]:
        """The minutes that begin before this one, after START."""
        end = int(START.timestamp()) + before * 60
        return sorted((at, who, len(all_), sum(all_)) for (at, who), all_ in self.expected.items() if at < end)


def found_in(server: Server, topic: str) -> list[tuple[int, str, int, int]]:
    """What a Kafka consumer of committed messages makes of it."""
    rows = []
    for message in committed(server, topic):
        row = json.loads(message.value)
        assert message.key.decode() == row["sensor"]
        rows.append((row["minute"], row["sensor"], row["n"], row["sum"]))
    return sorted(rows)


@since_42  # before, a run of what is there does no batch without rows, which moves the watermark
def test_kafka_producer_to_windows_to_kafka_consumer(
    spark: SparkSession, server: Server, stage: Stage, tmp_path: Path
) -> None:
    """Windows are written when the watermark has passed them, each once, over restarts and a batch that is repeated."""
    readings = Readings(stage)
    out, checkpoint = stage.topic(partitions=2), tmp_path / "checkpoint"
    readings.send(range(0, 10), each=60)
    run_to_end(averages(spark, server, readings.topic), server, checkpoint, topic=out)
    # The youngest reading is of minute 9, the watermark two minutes behind it: what ends by then is out.
    assert found_in(server, out) == readings.due(before=7)
    drop_last_commit(checkpoint)
    run_to_end(averages(spark, server, readings.topic), server, checkpoint, topic=out)
    assert found_in(server, out) == readings.due(before=7), "the batch that was done again changed nothing"
    readings.send_late(minute=3)
    readings.send(range(10, 14), each=60)
    run_to_end(averages(spark, server, readings.topic), server, checkpoint, topic=out)
    assert found_in(server, out) == readings.due(before=11)


# -- AMQP --------------------------------------------------------------------------------------------------------------


def invoices(spark: SparkSession, server: Server, queue: str) -> DataFrame:
    orders = (
        spark.readStream.format("waystation")
        .options(servers=server.bootstrap, queue=queue, maxRowsPerTrigger=20, minPartitions=2)
        .options(valueFormat="json", valueSchema="id INT, total DOUBLE")
        .load()
    )
    return orders.where("value.total >= 100").selectExpr(
        "to_json(struct(value.id AS order, value.total * 1.2 AS total)) AS value",
        "priority",
        "'application/json' AS contentType",
        "concat('invoice-', value.id) AS id",
        "headers",
    )


def expected_invoices(count: int) -> Any:
    return {n: pytest.approx(n * 10 * 1.2) for n in range(count) if n * 10 >= 100}


@since_42
@pytest.mark.quick
def test_amqp_queue_to_amqp_queue(
    spark: SparkSession, server: Server, channel: BlockingChannel, tmp_path: Path
) -> None:
    orders, done = unique("orders"), unique("invoices")
    for name in (orders, done):
        channel.queue_declare(name, durable=True)
    for n in range(50):
        properties = pika.BasicProperties(
            content_type="application/json", delivery_mode=2, priority=n % 3, headers={"shop": "north"}
        )
        channel.basic_publish("", orders, json.dumps({"id": n, "total": n * 10.0}), properties, mandatory=True)
    run_to_end(invoices(spark, server, orders), server, tmp_path / "checkpoint", queue=done)

    found: dict[int, float] = {}
    ids = set()
    for method, properties, body in channel.consume(done, inactivity_timeout=30):
        assert method is not None, f"only {len(found)} invoices came"
        invoice = json.loads(body)
        assert invoice["order"] not in found, "twice"
        found[invoice["order"]] = invoice["total"]
        ids.add(properties.message_id)
        assert properties.content_type == "application/json"
        assert properties.priority in (invoice["order"] % 3, None if invoice["order"] % 3 == 0 else 0)
        assert properties.headers is not None
        assert properties.headers["shop"] in ("north", b"north")
        channel.basic_ack(method.delivery_tag)
        if len(found) == 40:
            break
    channel.cancel()
    assert found == expected_invoices(50)
    assert ids == {f"invoice-{n}" for n in range(10, 50)}
    # The last batch of the source is acked when the query goes on.
    channel.basic_publish("", orders, json.dumps({"id": 50, "total": 500.0}))
    run_to_end(invoices(spark, server, orders), server, tmp_path / "checkpoint", queue=done)
    assert channel.queue_declare(done, passive=True).method.message_count == 1


# -- native ------------------------------------------------------------------------------------------------------------


@since_42
def test_native_queue_to_native_queue(spark: SparkSession, server: Server, mq: Client, tmp_path: Path) -> None:
    orders, done = mq.queue(unique("orders")), mq.queue(unique("invoices"))
    orders.put_many([{"id": n, "total": n * 10.0} for n in range(50)], headers={"shop": "north"})
    run_to_end(invoices(spark, server, orders.name), server, tmp_path / "checkpoint", queue=done.name)
    found: dict[int, float] = {}
    while len(found) < 40:
        delivery = done.get(timeout=30)
        invoice = delivery.json()
        assert invoice["order"] not in found, "twice"
        assert delivery.id == f"invoice-{invoice['order']}"
        assert delivery.headers["shop"] in ("north", b"north")
        found[invoice["order"]] = invoice["total"]
        delivery.ack()
    assert found == expected_invoices(50)
    wait_for(lambda: len(done) == 0, "all are acked")
    assert open_stages(mq) == 0


@pytest.mark.quick
def test_native_subscription_of_what_spark_writes(
    spark: SparkSession, server: Server, mq: Client, stage: Stage, tmp_path: Path
) -> None:
    """A subscriber who is there while the query runs gets each row once, as its batch is committed."""
    source, target = stage.topic(partitions=2), stage.topic(partitions=2)
    frame = (
        spark.readStream.format("waystation")
        .options(servers=server.bootstrap, topics=source, startingOffsets="earliest", **kept(maxRowsPerTrigger=50))
        .load()
        .selectExpr("key", "upper(CAST(value AS STRING)) AS value")
    )
    with mq.subscribe(target, group=unique("g"), start="earliest", manual=True) as subscription:
        mq.publish_many(source, [f"row {n}" for n in range(200)])
        run_to_end(frame, server, tmp_path / "checkpoint", topic=target)
        found: list[str] = []
        while len(found) < 200:
            message = subscription.get_message(timeout=30)
            assert message is not None, f"only {len(found)} rows came"
            found.append(message.payload.decode())
            message.ack()
    assert sorted(found) == sorted(f"ROW {n}" for n in range(200))
