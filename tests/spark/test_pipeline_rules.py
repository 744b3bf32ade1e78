"""What becomes of rows that are not fit for their table: dead letters, expectations, unknown destinations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import waystation
from tests.spark.pipeline_kit import Kit
from tests.spark.topic_reading import read_messages, read_topic
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.cli.pipeline_view import show
from waystation.observe.pipeline_state import PipelineState
from waystation.spark.pipelines.registry import connect_any, find_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def kit(tmp_path: Path, spark: SparkSession) -> Kit:
    """Pipelines run as sessions of the Spark that all tests share."""
    return Kit(tmp_path)


@pytest.fixture(scope="module")
def mq(server: Server) -> Iterator[waystation.Client]:
    with waystation.connect(server.bootstrap) as client:
        yield client


def last_word(server: Server, name: str = "one") -> PipelineState:
    with connect_any(server.bootstrap) as connection:
        return find_pipeline(connection, name)


# -- malformed values --------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_values_that_do_not_fit_go_to_the_dead_letter_topic_as_they_came(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    source, target, dead = unique("orders"), unique("paid"), unique("orders-dead")
    mq.create_topic(source, 1)
    values = [{"id": n, "amount": n * 1.5 if n % 10 else "ten euros"} for n in range(100)]
    for n, value in enumerate(values):
        mq.publish(source, value, key=str(n), headers={"trace": f"t{n}"})
    text = f"""servers = "{server.bootstrap}"
[source.orders]
topics = "{source}"
schema = "id BIGINT, amount DOUBLE"
maxRowsPerTrigger = 30
dead_letter = "{dead}"
[step.paid]
from = "orders"
select = ["value.id", "value.amount"]
[sink.out]
from = "paid"
topic = "{target}"
key = "id"
"""
    kit.run(text, progress=True)
    state = last_word(server)
    told = {sink.sink: (sink.rows, sink.malformed, sink.dead_letters) for sink in state.sinks}
    assert told == {"out": (90, 10, 0), "orders.dead_letter": (10, 10, 10)}
    assert "10 dead letters" in show(state)
    kit.run(text)  # there is nothing new
    assert sorted(json.loads(value)["id"] for _, value in read_topic(server, target, 1)) == [
        n for n in range(100) if n % 10
    ], "no row of nulls reached the steps"
    letters = read_messages(server, dead, 1)
    assert [(letter.key, letter.value) for letter in letters] == [
        (str(n).encode(), json.dumps(values[n], separators=(",", ":")).encode()) for n in range(0, 100, 10)
    ]
    headers = dict(letters[3].headers)
    assert headers["trace"] == b"t30"
    assert headers["x-dead-letter-reason"] == b"malformed"
    assert b"id:bigint,amount:double" in (headers["x-dead-letter-error"] or b"")
    assert (headers["x-dead-letter-topic"], headers["x-dead-letter-partition"]) == (source.encode(), b"0")
    assert headers["x-dead-letter-offset"] == b"30"
    assert (headers["x-dead-letter-pipeline"], headers["x-dead-letter-table"]) == (b"one", b"orders")
    assert [path.name for path in (kit.folder / ".waystation" / "one" / "sinks").iterdir()] == ["out"], "one commit"


def test_malformed_messages_of_a_queue_are_acked_when_they_are_dead_letters(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    source, target, dead = unique("jobs"), unique("done"), unique("jobs-dead")
    jobs, rejected = mq.queue(source), mq.queue(dead)
    jobs.put_many([{"id": n} if n % 4 else {"id": f"number {n}"} for n in range(80)])
    text = f"""servers = "{server.bootstrap}"
[source.jobs]
queue = "{source}"
schema = "id INT"
maxRowsPerTrigger = 30
dead_letter = {{ queue = "{dead}" }}
[sink.out]
from = "jobs"
topic = "{target}"
guarantee = "exactly-once"
"""
    kit.run(text)
    kit.run(text)  # what the first took is acked when the second asks for more
    assert sorted(json.loads(value)["id"] for _, value in read_topic(server, target, 1)) == [
        n for n in range(80) if n % 4
    ]
    letters = rejected.peek(100)
    assert sorted(letter.json()["id"] for letter in letters) == sorted(f"number {n}" for n in range(0, 80, 4))
    assert {letter.headers["x-dead-letter-queue"] for letter in letters} == {source}
    wait_for(lambda: not jobs.peek(1), "the queue that was read to be empty")


def test_dead_letters_beside_a_sink_of_files_are_a_query_of_their_own(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    import pyarrow.parquet as pq

    source, dead = unique("orders"), unique("orders-dead")
    mq.create_topic(source, 2)
    mq.publish_many(source, [{"id": n} if n % 5 else ["no object"] for n in range(50)])
    text = f"""servers = "{server.bootstrap}"
[source.orders]
topics = "{source}"
schema = "id BIGINT"
select = ["value.id"]
dead_letter = {{ topic = "{dead}" }}
[sink.out]
from = "orders"
parquet = "out"
"""
    kit.run(text)
    kit.run(text)
    rows = pq.read_table(kit.folder / "out").to_pylist()
    assert sorted(row["id"] for row in rows) == [n for n in range(50) if n % 5]
    assert [letter.value for letter in read_messages(server, dead, 1)] == [b'["no object"]'] * 10
