"""DataFrames into topics and queues with real Spark: what is written, once, whole, and what is refused in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.sink_kit import Copy, committed, connect, drop_last_commit, open_stages, texts
from tests.support.names import unique
from tests.support.server import Server
from waystation.client.sync.client import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    from waystation.spark import register

    register(spark)


@pytest.fixture(scope="module")
def mq(server: Server) -> Iterator[Client]:
    with connect(server) as client:
        yield client


@pytest.fixture
def topic(mq: Client) -> str:
    name = unique("sink")
    mq.create_topic(name, partitions=3)
    return name


def write(frame: DataFrame, server: Server, **options: Any) -> None:
    frame.write.format("waystation").options(servers=server.bootstrap, **options).mode("append").save()


def numbers(spark: SparkSession, count: int, slices: int = 2) -> DataFrame:
    return spark.range(0, count, 1, slices).selectExpr("cast(id as string) as value")


# -- batch writes ------------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_a_dataframe_is_written_with_keys_headers_times_and_partitions(
    spark: SparkSession, server: Server, mq: Client, topic: str
) -> None:
    frame = spark.sql(
        f"""select '{topic}' as topic, 'k' as key, 'bare' as value, null as headers, 2 as partition,
                   timestamp_millis(1700000000123) as timestamp, 0 as priority, cast(null as string) as id
            union all
            select '{topic}', null, 'full', array(named_struct('key', 'h', 'value', cast('1' as binary))), 1,
                   null, 7, 'my-id'"""
    )
    write(frame, server)
    found = {message.value: message for message in committed(server, topic)}
    bare, full = found[b"bare"], found[b"full"]
    assert bare[:4] == (2, b"k", b"bare", 1700000000123)
    assert bare.headers == []
    assert (full.key, full.partition) == (b"", 1)
    assert dict(full.headers) == {"h": b"1", "x-priority": b"7", "x-message-id": b"my-id"}


def test_keys_go_where_other_clients_put_them_and_stay_in_order(
    spark: SparkSession, server: Server, mq: Client, topic: str
) -> None:
    frame = spark.range(0, 3000, 1, 1).selectExpr("concat('key-', id % 50) as key", "cast(id as string) as value")
    write(frame, server, topic=topic)
    from waystation.log.batches.partitioning import partition_of

    last: dict[bytes, int] = {}
    for message in committed(server, topic):
        assert message.partition == partition_of(message.key, 3)
        assert int(message.value) > last.get(message.key, -1)
        last[message.key] = int(message.value)
    assert len(last) == 50


@pytest.mark.quick
def test_rows_go_to_queues_with_priority_delay_and_time_to_live(
    spark: SparkSession, server: Server, mq: Client, topic: str
) -> None:
    first, second = unique("q"), unique("q")
    for name in (first, second):
        mq.queue(name, max_priority=9)
    frame = spark.sql(
        f"""select '{first}' as queue, cast(null as string) as topic, 'low' as value, 1 as priority, 0 as delayMs
            union all select '{first}', null, 'high', 9, null
            union all select '{second}', null, 'later', null, 3600000
            union all select null, '{topic}', 'to the topic', null, null"""
    )
    write(frame, server)
    assert [bytes(mq.queue(first).get(timeout=10).payload) for _ in range(2)] == [b"high", b"low"]
    info = mq.queue(second).describe()
    assert (info.ready, info.parked) == (0, 1)
    assert texts(committed(server, topic)) == ["to the topic"]


def test_what_is_read_can_be_written_as_it_is(spark: SparkSession, server: Server, mq: Client, topic: str) -> None:
    copy = unique("copy")
    mq.create_topic(copy, partitions=3)
    mq.publish(topic, b"v", key="k", headers={"h": "1"}, id="one", priority=5)
    frame = spark.read.format("waystation").options(servers=server.bootstrap, topics=topic).load()
    write(frame, server, topic=copy)
    (old,), (new,) = committed(server, topic), committed(server, copy)
    assert new[:4] == old[:4]
    assert sorted(new.headers) == sorted(old.headers)


@pytest.mark.quick
def test_a_job_that_fails_has_written_nothing(spark: SparkSession, server: Server, mq: Client, topic: str) -> None:
    frame = spark.range(0, 20_000, 1, 2).selectExpr(
        "if(id = 19000, raise_error('a mistake of the user'), cast(id as string)) as value"
    )
    with pytest.raises(Exception, match="a mistake of the user"):
        write(frame, server, topic=topic)
    assert texts(committed(server, topic)) == []
    assert open_stages(mq) == 0


def test_a_thread_writes_once_it_has_been_given_the_session(
    spark: SparkSession, server: Server, mq: Client, topic: str
) -> None:
    """Spark looks the format up in the session of the thread that writes."""
    from waystation.spark.sessions import activate

    def work(first: Callable[[], None]) -> None:
        first()
        write(numbers(spark, 10), server, topic=topic)

    with ThreadPoolExecutor(1) as fresh, pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        fresh.submit(work, lambda: None).result()
    with ThreadPoolExecutor(1) as fresh:
        fresh.submit(work, lambda: activate(spark)).result()
    assert texts(committed(server, topic)) == sorted(str(n) for n in range(10))


@pytest.mark.quick
def test_a_write_with_a_txn_id_happens_once(spark: SparkSession, server: Server, mq: Client, topic: str) -> None:
    name = unique("txn")
    expected = sorted(str(n) for n in range(5000))
    for _ in range(2):
        write(numbers(spark, 5000), server, topic=topic, txnId=name)
    assert texts(committed(server, topic)) == expected
    write(numbers(spark, 3), server, topic=topic, txnId=name, txnVersion=1)
    write(numbers(spark, 3), server, topic=topic, txnId=name, txnVersion=1)
    assert texts(committed(server, topic)) == sorted([*expected, "0", "1", "2"])


def test_without_a_txn_id_a_write_is_whole_and_comes_again(
    spark: SparkSession, server: Server, mq: Client, topic: str
) -> None:
    for _ in range(2):
        write(numbers(spark, 10), server, topic=topic)
    write(numbers(spark, 10), server, topic=topic, guarantee="at-least-once")
    assert texts(committed(server, topic)) == sorted([str(n) for n in range(10)] * 3)
    write(spark.range(0).selectExpr("cast(id as string) as value"), server, topic=topic)
    assert len(committed(server, topic)) == 30


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_a_replayed_batch_changes_nothing(
    spark: SparkSession, server: Server, mq: Client, topic: str, tmp_path: Path
) -> None:
    jobs = unique("jobs")
    mq.queue(jobs)
    copy = Copy(spark, server, tmp_path)
    copy.change = lambda frame: frame.selectExpr(
        f"if(value like 'q%', null, '{topic}') as topic", f"if(value like 'q%', '{jobs}', null) as queue", "value"
    )
    for number in range(3):
        copy.add(*(f'{{"value": "{kind}{number}-{n}"}}' for kind in "tq" for n in range(5)))
    expected = sorted(f"t{number}-{n}" for number in range(3) for n in range(5))
    copy.run()
    assert texts(committed(server, topic)) == expected
    for _ in range(2):
        assert drop_last_commit(copy.checkpoint) == 2
        copy.run()
        assert texts(committed(server, topic)) == expected
        assert mq.queue(jobs).describe().ready == 15
    copy.add('{"value": "t3-0"}')
    copy.run()
    assert texts(committed(server, topic)) == sorted([*expected, "t3-0"])
    assert open_stages(mq) == 0


def test_a_batch_that_fails_is_not_seen_and_is_written_when_it_is_mended(
    spark: SparkSession, server: Server, mq: Client, topic: str, tmp_path: Path
) -> None:
    copy = Copy(spark, server, tmp_path, topic=topic)
    copy.add('{"value": "1"}')
    copy.run()
    copy.add(*(f'{{"value": "{n}"}}' for n in range(2, 50)))
    copy.change = lambda frame: frame.selectExpr("if(value = '49', raise_error('not this one'), value) as value")
    with pytest.raises(Exception, match="not this one"):
        copy.run()
    assert texts(committed(server, topic)) == ["1"]
    copy.change = lambda frame: frame
    copy.run()
    assert texts(committed(server, topic)) == sorted(str(n) for n in range(1, 50))
    assert open_stages(mq) == 0


def test_a_stream_may_also_write_at_least_once(
    spark: SparkSession, server: Server, mq: Client, topic: str, tmp_path: Path
) -> None:
    copy = Copy(spark, server, tmp_path, topic=topic, guarantee="at-least-once")
    copy.add('{"value": "1"}')
    copy.run()
    drop_last_commit(copy.checkpoint)
    copy.run()
    assert texts(committed(server, topic)) == ["1", "1"]


def test_for_each_batch_with_a_txn_version_is_exactly_once_too(
    spark: SparkSession, server: Server, mq: Client, topic: str, tmp_path: Path
) -> None:
    name = unique("each")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"value": "a"}\n{"value": "b"}\n')

    def each(frame: DataFrame, number: int) -> None:
        write(frame, server, topic=topic, txnId=name, txnVersion=number)

    for _ in range(2):
        source = spark.readStream.schema("value string").json(str(tmp_path / "in"))
        query = source.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "check"))
        assert query.trigger(availableNow=True).start().awaitTermination(120)
        drop_last_commit(tmp_path / "check")
    assert texts(committed(server, topic)) == ["a", "b"]


@pytest.mark.quick
def test_a_missing_topic_is_created_as_for_every_publisher(
    spark: SparkSession, server: Server, mq: Client, tmp_path: Path
) -> None:
    name = unique("made")
    write(numbers(spark, 10), server, topic=name)
    assert sorted(texts(committed(server, name)), key=int) == [str(number) for number in range(10)]
    with Server(tmp_path, settings={"auto.create.topics.enable": "false"}) as strict:
        with pytest.raises(Exception, match=f"no topic '{name}'.*waystation topics create {name}"):
            write(numbers(spark, 10), strict, topic=name)
        with connect(strict) as client:
            assert client.topics() == []


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("1.5D as value", {"topic": "t"}, "column 'value' is double"),
        ("'a' as vlaue", {"topic": "t"}, "'vlaue'"),
        ("'a' as value", {}, "column 'topic' is missing"),
        ("'a' as value, 'x' as priority", {"topic": "t"}, "column 'priority' is string"),
        ("'a' as value", {"topik": "t"}, "no option 'topik'"),
        ("'a' as value", {"topic": "no such topic"}, "no such topic"),
        ("'a' as value", {"queue": "no-such-queue"}, "no-such-queue"),
        ("'a' as value, 99 as partition", {"topic": "TOPIC"}, "column 'partition'"),
        ("'a' as value, 5 as delayMs", {"topic": "TOPIC"}, "column 'delayMs'"),
    ],
)
def test_bad_input_gets_a_sentence_and_writes_nothing(
    spark: SparkSession,
    server: Server,
    mq: Client,
    topic: str,
    columns: str,
    options: dict[str, str],
    words: str,
) -> None:
    given = {name: topic if value == "TOPIC" else value for name, value in options.items()}
    with pytest.raises(Exception, match=words):
        write(spark.sql(f"select {columns}"), server, **given)
    assert texts(committed(server, topic)) == []
    assert open_stages(mq) == 0


def test_a_topic_is_not_overwritten(spark: SparkSession, server: Server, topic: str) -> None:
    writer = numbers(spark, 1).write.format("waystation").options(servers=server.bootstrap, topic=topic)
    with pytest.raises(Exception, match="append"):
        writer.mode("overwrite").save()
