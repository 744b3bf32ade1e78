"""A queue as a stream: read in batches, acked when a batch is committed, the same batch again after any crash."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import waystation
from tests.spark.versions_kit import since_42
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.client.sync.client import Client
from waystation.message import Message
from waystation.spark.reading.queue_offsets import QueueOffset, portions, split

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = since_42


@pytest.fixture
def mq(server: Server) -> Iterator[Client]:
    with waystation.connect(server.bootstrap) as client:
        yield client


class Jobs:
    """A queue, and runs of one streaming query that reads it: what each batch had."""

    def __init__(self, spark: SparkSession, server: Server, folder: Path, **options: Any) -> None:
        self.spark = spark
        self.servers = server.bootstrap
        self.name = unique("jobs")
        self.checkpoint = folder / "checkpoint"
        self.options = options
        self.batches: dict[int, list[Row]] = {}
        self.before: Callable[[int], None] = lambda number: None

    def start(self, **trigger: Any) -> StreamingQuery:
        options = {"servers": self.servers, "queue": self.name, **self.options}
        frame = self.spark.readStream.format("waystation").options(**options).load()

        def keep(batch: DataFrame, number: int) -> None:
            self.before(number)
            self.batches[number] = batch.orderBy("tag").collect()

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def drain(self) -> list[str]:
        with running(self.start()) as query:
            if not query.awaitTermination(60):
                raise AssertionError(f"the query did not end: {query.status}")
        return self.values

    @property
    def values(self) -> list[str]:
        return [row.value.decode() for _, rows in sorted(self.batches.items()) for row in rows]

    def offsets(self) -> list[dict[str, Any]]:
        """What the checkpoint has of each batch."""
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    try:
        yield query
    finally:
        query.stop()


def fails(jobs: Jobs, words: str) -> None:
    with running(jobs.start()) as query, pytest.raises(Exception, match=words):
        query.awaitTermination(60)


@pytest.fixture
def jobs(spark: SparkSession, server: Server, tmp_path: Path, mq: Client) -> Jobs:
    made = Jobs(spark, server, tmp_path)
    mq.queue(made.name)
    return made


def test_a_reader_of_a_queue_tells_what_waits_and_how_old_it_is(server: Server, mq: Client) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from waystation.spark.reading.queue_reading import stream_reader
    from waystation.spark.reading.queue_rows import QUEUE_SCHEMA

    name = unique("q")
    queue = mq.queue(name)
    queue.put_many([str(n) for n in range(10)])
    one = stream_reader({"servers": server.bootstrap, "queue": name}, QUEUE_SCHEMA)
    try:
        one.latestOffset(one.initialOffset(), ReadMaxRows(4))
        told = one.reportLatestOffset()
    finally:
        one.stop()
    assert told is not None
    assert told["source"] == f"queue {name}"
    assert (told["metrics"]["lagRows"], told["metrics"]["retries"]) == (6, 0)
    assert told["metrics"]["lagMs"] >= 0


# -- what is read, and when it is gone ---------------------------------------------------------------------------------


@pytest.mark.quick
def test_messages_are_read_with_all_that_they_have_and_are_gone_when_their_batch_is_committed(
    jobs: Jobs, mq: Client
) -> None:
    queue = mq.queue(jobs.name)
    queue.put("plain")
    queue.put_many(
        [
            Message(
                b"rich",
                id="order-7",
                key=b"k",
                headers={"a": "1", "b": b"\xff", "n": 5},
                priority=7,
                content_type="text/plain",
                timestamp_ms=1_700_000_000_123,
                correlation_id="c",
            )
        ]
    )
    assert jobs.drain() == ["plain", "rich"]
    plain, rich = jobs.batches[0]
    assert (plain.queue, plain.tag, plain.key, plain.id, plain.priority, plain.deliveries) == (
        *(jobs.name, 0, None, f"{jobs.name}#0", 0, 1),
    )
    assert (rich.tag, rich.key, rich.id, rich.priority, rich.contentType) == (1, b"k", "order-7", 7, "text/plain")
    assert rich.timestamp.timestamp() == 1_700_000_000.123
    headers = {header.key: bytes(header.value) for header in rich.headers}
    assert {"a": b"1", "b": b"\xff", "n": b"5", "x-correlation-id": b"c"}.items() <= headers.items()
    info = queue.describe()
    assert (info.ready, info.held, info.acked) == (0, 0, 2)


def test_limits_make_batches_and_the_urgent_go_first(jobs: Jobs, mq: Client) -> None:
    queue = mq.queue(jobs.name)
    queue.put_many([Message(b"%d" % i, priority=9 if i >= 8 else 0) for i in range(10)])
    queue.put("later", delay=3600)
    jobs.options["maxRowsPerTrigger"] = 4
    assert sorted(jobs.drain(), key=int) == [str(i) for i in range(10)]
    assert [len(rows) for rows in jobs.batches.values()] == [4, 4, 2]
    assert [row.value.decode() for row in jobs.batches[0]] == ["0", "1", "8", "9"]
    assert jobs.offsets()[0]["runs"] == [[0, 2], [8, 2]]
    # What is not due is left alone.
    info = queue.describe()
    assert (info.ready, info.parked, info.held) == (0, 1, 0)


def test_bytes_are_a_limit_too_and_rows_are_shared_among_tasks(jobs: Jobs, mq: Client) -> None:
    mq.queue(jobs.name).put_many([b"x" * 100] * 10)
    jobs.options |= {"maxBytesPerTrigger": 450, "minPartitions": 3}
    assert len(jobs.drain()) == 10
    assert [len(rows) for rows in jobs.batches.values()] == [4, 4, 2]


def test_rows_are_written_on_to_another_queue_as_they_are(jobs: Jobs, mq: Client) -> None:
    other = mq.queue(unique("other"))
    mq.queue(jobs.name).put_many([Message(b"%d" % i, key=b"k", headers={"a": "1"}, priority=i) for i in range(3)])
    source = jobs.spark.readStream.format("waystation").options(servers=jobs.servers, queue=jobs.name).load()
    writer = source.writeStream.format("waystation").options(servers=jobs.servers, queue=other.name)
    query = writer.option("checkpointLocation", str(jobs.checkpoint)).trigger(availableNow=True).start()
    with running(query):
        assert query.awaitTermination(60)
    got = other.get_many(10, timeout=5)
    assert [(m.text(), m.key, m.headers["a"], m.priority) for m in got] == [(str(i), "k", "1", i) for i in (2, 1, 0)]
    assert mq.queue(jobs.name).describe().acked == 3


def test_values_that_are_json_are_columns(jobs: Jobs, mq: Client) -> None:
    mq.queue(jobs.name).put_many([{"n": 1, "who": "a"}, {"n": 2, "who": "b"}, b"no json"])
    jobs.options["valueFormat"] = "json"
    with running(jobs.start()) as query:
        query.awaitTermination(60)
    rows = jobs.batches[0]
    assert [(row.value.n, row.value.who) if row.value else None for row in rows] == [(1, "a"), (2, "b"), None]
    assert bytes(rows[2]["_corrupt"]) == b"no json"


def test_a_running_query_takes_what_comes_and_acks_it(jobs: Jobs, mq: Client) -> None:
    queue = mq.queue(jobs.name)
    with running(jobs.start(processingTime="0 seconds")):
        for i in range(3):
            queue.put(str(i))
            wait_for(lambda: len(jobs.values) > i or None, f"message {i} is read")  # noqa: B023  # called at once
        assert jobs.values == ["0", "1", "2"]
        wait_for(lambda: queue.describe().acked == 3 or None, "all are acked")
        with pytest.raises(waystation.errors.Conflict, match="exclusive"):
            queue.get(timeout=0)


# -- crashes and losses ------------------------------------------------------------------------------------------------


def fail_once(jobs: Jobs, at: int = 0) -> None:
    """The batch fails after it was planned: the query ends, and what it had is in the checkpoint."""

    def fail(number: int) -> None:
        if number == at:
            raise RuntimeError("the sink is broken")

    jobs.before = fail
    fails(jobs, "the sink is broken")
    jobs.before = lambda number: None


@pytest.mark.quick
def test_a_batch_that_failed_is_the_same_batch_again_whatever_came_meanwhile(jobs: Jobs, mq: Client) -> None:
    queue = mq.queue(jobs.name)
    queue.put_many([str(i) for i in range(5)])
    fail_once(jobs)
    wait_for(lambda: queue.describe().ready == 5 or None, "nothing is held any more")
    queue.put_many([Message(b"urgent", priority=9), Message(b"last")])
    jobs.drain()
    assert [[row.value.decode() for row in rows] for rows in jobs.batches.values()] == [
        ["0", "1", "2", "3", "4"],
        ["urgent", "last"],
    ]
    assert queue.describe().acked == 7


@pytest.mark.quick
def test_a_broker_that_is_killed_in_the_middle_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with Server(tmp_path / "broker") as server, waystation.connect(server.bootstrap) as mq:
        jobs = Jobs(spark, server, tmp_path, maxRowsPerTrigger=10, minPartitions=2)
        queue = mq.queue(jobs.name, max_deliveries=1)
        queue.put_many([str(i) for i in range(50)])

        def crash(number: int) -> None:
            if number in (1, 3):
                server.kill()
                server.restart()

        jobs.before = crash
        assert jobs.drain() == [str(i) for i in range(50)]
        info = queue.describe()
        assert (info.ready, info.held, info.dead) == (0, 0, 0)


def test_messages_that_are_gone_before_their_batch_is_done_are_told_or_passed_over(jobs: Jobs, mq: Client) -> None:
    queue = mq.queue(jobs.name)
    queue.put_many([str(i) for i in range(5)])
    fail_once(jobs)
    wait_for(lambda: queue.describe().ready == 5 or None, "nothing is held any more")
    with waystation.connect(jobs.servers) as somebody:
        for message in somebody.queue(jobs.name).get_many(2, timeout=5):
            message.ack()
    fails(jobs, r"2 messages of a batch are not in queue .* \(tags 0 to 1\)")
    jobs.options["failOnDataLoss"] = "false"
    assert jobs.drain() == ["2", "3", "4"]


def test_a_queue_that_is_recreated_is_another_queue(jobs: Jobs, mq: Client) -> None:
    mq.queue(jobs.name).put_many(["old"] * 3)
    fail_once(jobs)
    mq.queue(jobs.name).delete()
    mq.queue(jobs.name).put_many(["new"] * 3)
    fails(jobs, "deleted and re-created")
    jobs.options["failOnDataLoss"] = "false"
    assert jobs.drain() == ["new"] * 3


# -- what bad input gets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "earliest"}, "startingOffsets is for topics"),
        ({"topics": "t"}, "topics is for topics"),
        ({"maxRowPerTrigger": "5"}, "maxRowsPerTrigger"),
        ({"minPartitions": "none"}, "not a whole number"),
        ({"valueSchema": "a INT"}, "set valueFormat=json"),
    ],
)
def test_wrong_options_get_one_sentence(
    spark: SparkSession, server: Server, options: dict[str, str], words: str
) -> None:
    given = {"servers": server.bootstrap, "queue": "q", **options}
    with pytest.raises(Exception, match=words):
        spark.readStream.format("waystation").options(**given).load()


def test_a_batch_read_looks_at_a_queue_and_takes_nothing(
    spark: SparkSession, server: Server, jobs: Jobs, mq: Client
) -> None:
    queue = mq.queue(jobs.name)
    queue.put_many([str(i) for i in range(1500)])
    queue.put("later", delay=3600)
    with queue.get(timeout=5):
        rows = spark.read.format("waystation").options(servers=server.bootstrap, queue=jobs.name).load().collect()
        assert [row.value.decode() for row in rows] == [*(str(i) for i in range(1500)), "later"]
        assert [row.deliveries for row in rows[:2]] == [1, 0]
    assert queue.describe().acked == 1


def test_a_queue_that_is_not_there_is_named(jobs: Jobs) -> None:
    jobs.name = "missing"
    fails(jobs, "queue 'missing'")


def test_a_checkpoint_of_another_queue_is_refused(jobs: Jobs, mq: Client) -> None:
    mq.queue(jobs.name).put("x")
    jobs.drain()
    first, jobs.name = jobs.name, unique("other")
    mq.queue(jobs.name).put("y")
    fails(jobs, f"reads the queue '{first}'")


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_an_offset_is_always_the_same_text() -> None:
    offset = QueueOffset("jobs", 3, 17, ((0, 5), (9, 1)))
    text = json.dumps(offset.to_json())
    assert text == json.dumps(offset.to_json(), sort_keys=True)
    assert QueueOffset.from_json(json.loads(text), "jobs") == offset
    with pytest.raises(waystation.errors.Invalid, match="another query"):
        QueueOffset.from_json({"offsets": {}}, "jobs")


def test_runs_are_cut_into_pieces_of_a_size() -> None:
    assert list(portions([(0, 5), (10, 2)], 3)) == [[(0, 3)], [(3, 2), (10, 1)], [(11, 1)]]
    assert split([(0, 10)], 3) == [[(0, 4)], [(4, 4)], [(8, 2)]]
    assert split([], 3) == []
