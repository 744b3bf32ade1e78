"""The sink's parts without a Spark session: options, columns, encoding, the choice of partitions, staging."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tests.spark.sink_kit import committed, connect, open_stages, texts
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import Conflict, ConnectionLost, Invalid, NotFound, WaystationError
from waystation.log.batches import batch as batches
from waystation.log.batches.partitioning import murmur2, partition_of
from waystation.spark.links.broker_link import client_at
from waystation.spark.links.servers import Servers
from waystation.spark.writing import staging as staging_module
from waystation.spark.writing.partition_choice import choose
from waystation.spark.writing.partition_choice import murmur2 as murmur2_of_column
from waystation.spark.writing.record_building import build_batches, messages_of
from waystation.spark.writing.sink import TaskCommit, abort_run, abort_stages, commit_stages, stage_rows, write_plainly
from waystation.spark.writing.sink_columns import Layout, Rows, check_columns, places_of
from waystation.spark.writing.sink_options import SinkOptions, read_sink_options
from waystation.spark.writing.staging import Staging

pytestmark = pytest.mark.quick

OPTIONS = {"servers": "127.0.0.1:1", "topic": "t"}
TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    "struct": StructType([StructField("a", IntegerType())]),
}


def schema_of(text: str) -> StructType:
    """`name type, name type`, without a session to parse it."""
    fields = (field.split() for field in text.split(","))
    return StructType([StructField(name, TYPES[kind]) for name, kind in fields])


# -- options and columns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "t"}, "servers"),
        ({**OPTIONS, "queue": "q"}, "both given"),
        ({**OPTIONS, "topics": "t"}, "'topic'"),
        ({**OPTIONS, "startingOffsets": "earliest"}, "which is one of the source: leave it out"),
        ({**OPTIONS, "guarante": "x"}, "did you mean 'guarantee'"),
        ({**OPTIONS, "guarantee": "exactly-onec"}, "exactly-once"),
        ({**OPTIONS, "txnVersion": "1"}, "txnId"),
        ({**OPTIONS, "txnId": "a", "txnVersion": "x"}, "txnVersion"),
        ({**OPTIONS, "txnId": "a" * 500}, "txnId"),
        ({**OPTIONS, "txnId": "a", "guarantee": "at-least-once"}, "txnId"),
        ({**OPTIONS, "stageTimeout": "0"}, "stageTimeout"),
        ({**OPTIONS, "retryTimeout": "soon"}, "retryTimeout"),
    ],
)
def test_a_wrong_option_gets_a_sentence_that_names_it(options: dict[str, str], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        read_sink_options(options, streaming=False)


def test_a_stream_needs_no_txn_id() -> None:
    with pytest.raises(Invalid, match="batch writes"):
        read_sink_options({**OPTIONS, "txnId": "a"}, streaming=True)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("key string", "column 'value' is missing"),
        ("value int", "column 'value' is int.*string"),
        ("value struct", r"column 'value'.*to_json\(value\)"),
        ("value binary, prioritty int", "column 'prioritty'.*'priority'"),
        ("value binary, priority string", "column 'priority' is string.*bigint"),
        ("value binary, headers string", "column 'headers' is string.*map<string,string>"),
        ("value binary, timestamp string", r"column 'timestamp' is string.*cast\(timestamp as timestamp\)"),
        ("value binary, partition string", "column 'partition'"),
        ("value binary, key double", "column 'key' is double"),
        ("value binary, city string", "column 'city'.*drop it"),
    ],
)
def test_a_column_that_cannot_be_written_gets_a_sentence_that_names_it(schema: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        check_columns(schema_of(schema), SinkOptions(Servers((("h", 1),)), topic="t"))


def test_somewhere_must_be_said_where_rows_go() -> None:
    with pytest.raises(Invalid, match="column 'topic' is missing"):
        check_columns(schema_of("value binary"), SinkOptions(Servers((("h", 1),))))
    batch = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": ["t", None], "queue": [None, None]})
    with pytest.raises(Invalid, match="1 rows have no topic"):
        list(places_of(batch, Layout(("value", "topic", "queue"), None, None)))
    batch = pa.RecordBatch.from_pydict({"value": ["a"], "topic": ["t"], "queue": ["q"]})
    with pytest.raises(Invalid, match="has both"):
        list(places_of(batch, Layout(("value", "topic", "queue"), None, None)))


def test_what_the_source_gives_can_be_written_as_it_is() -> None:
    schema = schema_of(
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,"
        " headers headers, id string, priority int, contentType string"
    )
    layout = check_columns(schema, SinkOptions(Servers((("h", 1),)), topic="copy"))
    assert "offset" not in layout.columns
    assert layout.topic == "copy"


# -- encoding ----------------------------------------------------------------------------------------------------------


def rows_of(**columns: list[Any]) -> Rows:
    kinds = {
        "key": pa.binary(),
        "value": pa.binary(),
        "timestamp": pa.int64(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    arrays = {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    return Rows(arrays, len(columns["value"]))


_BYTES = st.none() | st.binary(max_size=300)


@given(st.lists(st.tuples(_BYTES, _BYTES, st.none() | st.integers(0, 2**45)), min_size=1, max_size=50), st.booleans())
def test_rows_become_the_records_that_they_are(rows: list[tuple[Any, Any, Any]], timed: bool) -> None:
    columns = {"key": [row[0] for row in rows], "value": [row[1] for row in rows]}
    if timed:
        columns["timestamp"] = [row[2] for row in rows]
    made = list(build_batches(rows_of(**columns), 5_000, 2_000))
    found = []
    for batch in made:
        header = batches.check_batch(batch)
        assert len(batch) <= 2_000 or header.record_count == 1
        records = list(batches.records_of(batch, header))
        assert [record.offset for record in records] == list(range(len(records)))
        assert max(record.timestamp for record in records) == header.max_timestamp
        found += [(record.key, record.value, record.timestamp) for record in records]
    assert found == [(key, value, 5_000 if at is None or not timed else at) for key, value, at in rows]


def test_a_long_value_and_many_rows_are_encoded_as_well() -> None:
    values = [b"x" * 70_000] + [b"%d" % n for n in range(100_000)]
    made = list(build_batches(rows_of(value=values), 1, 10**9))
    assert [record.value for batch in made for record in batches.records_of(batch)] == values
    assert all(batches.check_batch(batch).record_count <= 65536 for batch in made)


@pytest.mark.parametrize("count", [1, 64, 65, 8192, 8193, 70_000])
@pytest.mark.parametrize(("key_size", "value_size"), [(None, 100), (8, 0), (0, 60), (200, 9000 // 70)])
def test_rows_of_one_size_become_the_records_that_they_are(count: int, key_size: int | None, value_size: int) -> None:
    keys = [None if key_size is None else (b"%d" % n).rjust(key_size, b"k")[:key_size] for n in range(count)]
    values = [(b"%d" % n).rjust(value_size, b"v")[:value_size] for n in range(count)]
    rows = rows_of(value=[b"another", *values]) if key_size is None else rows_of(key=[b"", *keys], value=[b"", *values])
    made = list(build_batches(rows.slice(1, count), 1_000, 10**9))
    assert [batches.check_batch(batch).record_count for batch in made] == [min(count, 65536), count - 65536][
        : 1 + (count > 65536)
    ]
    for number, batch in enumerate(made):
        some = slice(number * 65536, (number + 1) * 65536)
        one = batches.build([(key, value, ()) for key, value in zip(keys[some], values[some], strict=True)], 1_000)
        assert batches.check_batch(batch) == batches.check_batch(one)
        assert batch == one


def test_headers_and_fields_become_headers_and_a_column_wins_over_a_header_of_its_name() -> None:
    rows = rows_of(
        value=[b"a", None],
        headers=[
            [{"key": "h", "value": b"1"}, {"key": "h", "value": None}, {"key": "x-priority", "value": b"1"}],
            None,
        ],
        priority=[7, None],
        id=["one", None],
        ttlMs=[1000, None],
        timestamp=[10, None],
    )
    (batch,) = build_batches(rows, 99)
    first, second = batches.records_of(batch)
    assert dict(first.headers) == {
        "x-message-id": b"one",
        "x-priority": b"7",
        "x-ttl": b"1000",
        "x-taken-at": b"99",
        "h": None,
    }
    assert [name for name, _ in first.headers].count("h") == 2
    assert (second.value, second.headers, second.timestamp) == (None, (), 99)


def test_a_map_of_headers_is_as_good() -> None:
    array = pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string()))
    (batch,) = build_batches(Rows({"value": pa.array([b"v"]), "headers": array}, 1), 1)
    assert [record.headers for record in batches.records_of(batch)] == [(("a", b"1"),)]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"priority": [300]}, "column 'priority': 300"),
        ({"ttlMs": [0]}, "column 'ttlMs': 0"),
        ({"delayMs": [-1]}, "column 'delayMs': -1"),
        ({"delayMs": [5]}, "column 'delayMs'.*queue"),
        ({"id": [""]}, "column 'id'"),
        ({"timestamp": [-5]}, "column 'timestamp'"),
        ({"headers": [[{"key": None, "value": b""}]]}, "column 'headers'"),
    ],
)
def test_a_value_that_makes_no_sense_names_its_column(columns: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        list(build_batches(rows_of(value=[b"v"], **columns), 1))


def test_rows_for_a_queue_are_messages_with_all_that_they_say() -> None:
    rows = rows_of(
        value=[b"a"],
        key=[b"k"],
        priority=[3],
        delayMs=[50],
        ttlMs=[99],
        id=["m"],
        headers=[[{"key": "h", "value": b"1"}]],
    )
    (message,) = messages_of(rows, 1)
    assert (message.payload, message.key, message.priority, message.delay_ms) == (b"a", b"k", 3, 50)
    assert (message.ttl_ms, message.id, message.headers) == (99, "m", {"h": "1"})
    with pytest.raises(Invalid, match="column 'value'"):
        list(messages_of(rows_of(value=[None]), 1))


def test_times_of_spark_are_milliseconds() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    batch = pa.RecordBatch.from_pydict(
        {"value": pa.array([b"v"]), "timestamp": pa.array([at], pa.timestamp("us", "UTC"))}
    )
    ((_, rows),) = places_of(batch, Layout(("value", "timestamp"), "t", None))
    column = rows.column("timestamp")
    assert column is not None
    assert column.to_pylist() == [int(at.timestamp() * 1000)]


# -- partitions --------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=60))
def test_a_column_of_keys_is_hashed_as_each_of_them_is(keys: list[bytes]) -> None:
    assert murmur2_of_column(pa.array(keys, pa.binary())).tolist() == [murmur2(key) for key in keys]
    sliced = pa.array([b"before", *keys], pa.binary()).slice(1)
    assert murmur2_of_column(sliced).tolist() == [murmur2(key) for key in keys]


def test_a_row_goes_where_it_says_else_where_its_key_belongs_else_where_the_turn_is() -> None:
    rows = rows_of(value=[b"0", b"1", b"2", b"3"], key=[b"k", b"k", None, b"z"], partition=[5, None, None, None])
    chosen = {}
    for partition, share in choose(rows, 7, 3, "t"):
        column = share.column("value")
        assert column is not None
        chosen.update(dict.fromkeys(column.to_pylist(), partition))
    assert chosen == {b"0": 5, b"1": partition_of(b"k", 7), b"2": 3, b"3": partition_of(b"z", 7)}
    with pytest.raises(Invalid, match=r"partition 5.*'t' has 2"):
        choose(rows, 2, 0, "t")


# -- staging, on a real broker -----------------------------------------------------------------------------------------


class Tasks:
    """Tasks of one query, without Spark around them."""

    def __init__(self, server: Server, topic: str) -> None:
        self.options = SinkOptions(read_sink_options({"servers": server.bootstrap}, streaming=True).servers, retry_s=20)
        self.layout = Layout(("value",), topic, None)
        self.name = f"spark/{unique('query')}"

    def write(self, batch: int, *values: str, stage: str = "0.0", run: str = "run") -> TaskCommit:
        arrow = pa.RecordBatch.from_pydict({"value": pa.array([v.encode() for v in values], pa.binary())})
        return stage_rows(self.options, self.layout, self.name, batch, f"{self.name}/{run}.{stage}", iter([arrow]))

    def write_again(self, batch: int, *values: str) -> TaskCommit:
        """As a query that was started again does."""
        return self.write(batch, *values, stage="0.0", run="next")

    def commit(self, batch: int, *messages: TaskCommit) -> None:
        commit_stages(self.options, [*messages, None], batch)


@pytest.fixture
def topic(server: Server) -> Iterator[str]:
    name = unique("sink")
    with connect(server) as mq:
        mq.create_topic(name, partitions=2)
        yield name
        assert open_stages(mq) == 0, "the test left something staged"


def test_a_zombie_attempt_changes_nothing(server: Server, topic: str) -> None:
    tasks = Tasks(server, topic)
    zombie = Staging(client_at(tasks.options.servers, 20), f"{tasks.name}/run.0.0", tasks.options)
    zombie.batches(topic, [(0, batches.build([(None, b"zombie", ())], 1_700_000_000_000))])
    late = tasks.write(0, "late", stage="0.1")
    good = tasks.write(0, "a", "b", stage="0.2")
    tasks.commit(0, good)
    with pytest.raises(Conflict):  # its stage is gone: it is told, and nothing of it is seen
        zombie.stage()
    tasks.commit(0, late)
    assert tasks.write(0, "again").staged is None, "a batch that is committed is not even staged"
    assert texts(committed(server, topic)) == ["a", "b"]


def test_an_abort_after_a_commit_takes_nothing_back(server: Server, topic: str) -> None:
    tasks = Tasks(server, topic)
    first, second = tasks.write(0, "a", stage="0.0"), tasks.write(0, "b", stage="1.0")
    tasks.commit(0, first, second)
    abort_stages(tasks.options, [first, None, second])
    assert texts(committed(server, topic)) == ["a", "b"]
    third = tasks.write(1, "c", stage="0.0")
    abort_stages(tasks.options, [third])
    with pytest.raises(Conflict, match="stage it all again"):
        tasks.commit(1, third)
    assert texts(committed(server, topic)) == ["a", "b"]


def test_a_driver_that_died_leaves_stages_that_the_next_commit_aborts(server: Server, topic: str) -> None:
    tasks = Tasks(server, topic)
    tasks.write(0, "lost", stage="0.0")
    tasks.write(0, "lost too", stage="7.0")
    good = tasks.write(0, "a", stage="0.1")
    tasks.commit(0, good)
    assert texts(committed(server, topic)) == ["a"]


def test_a_failed_job_undoes_what_its_tasks_did_not_tell_it_of(server: Server, topic: str) -> None:
    """A task that Spark gave up, after it had staged or in the middle: no later commit of that job would undo it."""
    tasks = Tasks(server, topic)
    tasks.write(0, "staged", stage="0.0")
    slow = Staging(client_at(tasks.options.servers, 20), f"{tasks.name}/run.1.0", tasks.options)
    slow.batches(topic, [(0, batches.build([(None, b"slow", ())], 1_700_000_000_000))])
    abort_stages(tasks.options, [], f"{tasks.name}/run.")
    with connect(server) as mq:
        assert open_stages(mq) == 0
    with pytest.raises(Conflict):
        slow.stage()
    assert texts(committed(server, topic)) == []


def test_a_failed_batch_of_a_query_undoes_what_its_tasks_did_not_tell_it_of(server: Server, topic: str) -> None:
    """One task has told, another has staged and was not heard, a third is late: the query is over for all of them."""
    tasks = Tasks(server, topic)
    told = replace(tasks.write(0, "told", stage="0.0"), run="run")
    tasks.write(0, "not heard", stage="1.0")
    abort_run(tasks.options, [told, None, None])
    with pytest.raises(WaystationError, match="given up"):
        tasks.write(0, "late", stage="2.0")
    assert _open(server, topic) == 0, "nothing is in the way of readers"
    tasks.commit(0, tasks.write_again(0, "a"))
    assert texts(committed(server, topic)) == ["a"], "a new start of the query is another run"


def test_a_failed_batch_that_no_task_told_of_is_found_by_the_querys_checkpoint(
    server: Server, topic: str, tmp_path: Path
) -> None:
    tasks = Tasks(server, topic)
    query = str(uuid4())
    tasks.name = f"spark/{query}"
    (tmp_path / "metadata").write_text(f'{{"id":"{query}"}}')
    for place in (str(tmp_path), tmp_path.as_uri()):
        tasks.write(0, "not heard", stage="1.0")
        abort_run(replace(tasks.options, checkpoint=place), [None, None])
        assert _open(server, topic) == 0, place
    for nowhere in ("hdfs:///checkpoints/orders", str(tmp_path / "not-there"), None):
        abort_run(replace(tasks.options, checkpoint=nowhere), [None])


def test_a_task_that_fails_leaves_nothing_staged(server: Server, topic: str) -> None:
    tasks = Tasks(server, topic)

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": [b"x" * 600_000] * 10})
        raise RuntimeError("a mistake in the user's function")

    with pytest.raises(RuntimeError):
        stage_rows(tasks.options, tasks.layout, tasks.name, 0, f"{tasks.name}/run.0", rows())
    with connect(server) as mq:
        assert open_stages(mq) == 0


def test_a_task_that_begins_after_its_job_was_aborted_stages_nothing(server: Server, topic: str) -> None:
    tasks = Tasks(server, topic)
    tasks.write(0, "staged")
    abort_stages(tasks.options, [], f"{tasks.name}/run.")
    with pytest.raises(WaystationError, match="given up"):
        tasks.write(0, "late", stage="1.0")
    assert _open(server, topic) == 0, "nothing is in the way of readers"


def test_a_stage_whose_time_is_over_is_not_committed_and_says_so(server: Server, topic: str) -> None:
    tasks = Tasks(server, topic)
    tasks.options = SinkOptions(tasks.options.servers, stage_timeout_s=1, retry_s=20)
    written = tasks.write(0, "a")
    wait_for(lambda: _open(server, topic) == 0, "the broker aborts it")
    with pytest.raises(Conflict, match="time ran out"):
        tasks.commit(0, written)


def _open(server: Server, topic: str) -> int:
    """Transactions of the topic that are still open, told by what readers of everything and of committed may read."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 3})
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    open_now = 0
    for partition in range(2):
        place = TopicPartition(topic, partition)
        ends = []
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            answer = admin.list_offsets({place: latest}, isolation_level=level)
            ends.append(answer[place].result().offset)
        open_now += ends[0] != ends[1]
    return open_now


def test_plain_writes_are_there_at_once_in_topics_and_queues(server: Server, topic: str) -> None:
    tasks = Tasks(server, topic)
    queue = unique("q")
    with connect(server) as mq:
        mq.queue(queue)
        arrow = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
        assert write_plainly(tasks.options, tasks.layout, iter([arrow])).rows == 2
        assert write_plainly(tasks.options, Layout(("value",), None, queue), iter([arrow])).rows == 2
        assert texts(committed(server, topic)) == ["a", "b"]
        assert mq.queue(queue).describe().ready == 2


def test_a_missing_topic_is_named_with_what_to_do_where_none_is_created(tmp_path: Any) -> None:
    strict = Server(tmp_path, settings={"auto.create.topics.enable": "false"})
    with strict as server, pytest.raises(NotFound, match="waystation topics create nowhere"):
        Tasks(server, "nowhere").write(0, "a")


def test_a_broker_that_restarts_while_a_task_stages_is_waited_for(tmp_path: Any) -> None:
    with Server(tmp_path) as server:
        with connect(server) as mq:
            mq.create_topic("t", partitions=2)
        tasks = Tasks(server, "t")

        def rows() -> Iterator[pa.RecordBatch]:
            for number in range(20):
                if number in (5, 12):
                    server.kill()
                    server.restart()
                yield pa.RecordBatch.from_pydict({"value": [b"%d-%d" % (number, n) for n in range(100)]})

        written = stage_rows(tasks.options, tasks.layout, tasks.name, 0, f"{tasks.name}/run.0", rows())
        server.kill()
        server.restart()
        assert texts(committed(server, "t")) == []
        tasks.commit(0, written)
        server.kill()
        server.restart()
        tasks.commit(0, written)
        assert texts(committed(server, "t")) == sorted(f"{number}-{n}" for number in range(20) for n in range(100))


def test_a_connection_that_is_lost_after_too_much_was_staged_is_an_error_that_says_so(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "KEPT_BYTES", 1_000)
    with Server(tmp_path) as server:
        with connect(server) as mq:
            mq.create_topic("t", partitions=1)
        tasks = Tasks(server, "t")
        monkeypatch.setattr("waystation.spark.writing.task_rows.FRAME_BYTES", 100)

        def rows() -> Iterator[pa.RecordBatch]:
            for number in range(20):
                if number == 15:
                    server.kill()
                    server.restart()
                yield pa.RecordBatch.from_pydict({"value": [b"x" * 200]})

        with pytest.raises((Conflict, ConnectionLost), match="more than it keeps"):
            stage_rows(tasks.options, tasks.layout, tasks.name, 0, f"{tasks.name}/run.0", rows())
