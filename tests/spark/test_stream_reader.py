"""The stream's reader against a real broker, called as Spark calls it, without a JVM: how far there is to read."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.spark.conftest import WITHOUT
from tests.spark.source_kit import Stage, numbers, options_of
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import ConnectionLost, Expired, Invalid, NotFound

pytest.importorskip("pyspark", reason=WITHOUT)

from waystation.spark.options import read_options
from waystation.spark.reading.batch import PruningTopicReader, TopicReader
from waystation.spark.reading.planning import flat
from waystation.spark.reading.schemas import SOURCE_SCHEMA, arrow_schema
from waystation.spark.reading.stream import TopicStreamReader
from waystation.spark.spark_versions import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

ALL = ReadAllAvailable()


def reader(stage: Stage, **options: Any) -> TopicStreamReader:
    read = read_options(options_of(stage, **options), streaming=True)
    return TopicStreamReader(read, arrow_schema(SOURCE_SCHEMA, read))


def batch_reader(stage: Stage, kind: type[TopicReader] = TopicReader, **options: Any) -> TopicReader:
    read = read_options(options_of(stage, **options), streaming=False)
    return kind(read, arrow_schema(SOURCE_SCHEMA, read))


def read(one: TopicStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """The values between two offsets, which go through JSON as they do with Spark."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    return [
        value.decode()
        for partition in one.partitions(start, end)
        for batch in one.read(partition)
        for value in batch.column("value").to_pylist()
    ]


def moved(
    one: TopicStreamReader, start: dict[str, Any], *, to: dict[tuple[str, int], int | None] | None = None
) -> dict[str, Any]:
    """The latest offset, when it is another one than the start, or says what is wanted."""

    def found() -> dict[str, Any] | None:
        end = one.latestOffset(start, ALL)
        right = end != start if to is None else all(flat(end["offsets"]).get(p) == o for p, o in to.items())
        return end if right else None

    return wait_for(found, "the reader moves on")


def at(offset: dict[str, Any], topic: str) -> dict[int, int]:
    return {index: place for (name, index), place in flat(offset["offsets"]).items() if name == topic}


# -- beginning ---------------------------------------------------------------------------------------------------------


def test_a_stream_begins_at_the_end_unless_told_otherwise(stage: Stage) -> None:
    topic = stage.topic()
    stage.fill(topic, numbers(5))
    assert at(reader(stage, topics=topic).initialOffset(), topic) == {0: 5}
    assert at(reader(stage, topics=topic, startingOffsets="earliest").initialOffset(), topic) == {0: 0}
    given = json.dumps({topic: {"0": 3}})
    assert at(reader(stage, topics=topic, startingOffsets=given).initialOffset(), topic) == {0: 3}


def test_the_initial_offset_does_not_move(stage: Stage) -> None:
    topic = stage.topic()
    stage.fill(topic, numbers(5))
    first = reader(stage, topics=topic)
    initial = first.initialOffset()
    stage.fill(topic, numbers(5, 8))
    assert first.initialOffset() == initial
    end = first.latestOffset(initial, ALL)
    after_restart = reader(stage, topics=topic)
    again = after_restart.initialOffset()
    assert at(again, topic) == {0: 8}
    assert read(after_restart, again, end) == read(first, initial, end) == numbers(5, 8)


def test_a_timestamp_begins_at_the_first_record_that_is_not_older(stage: Stage) -> None:
    topic = stage.topic()
    for n in range(5):
        stage.fill(topic, [str(n)], timestamp=1_700_000_000_000 + n * 1000)
    one = reader(stage, topics=topic, startingTimestamp="1700000002500")
    assert at(one.initialOffset(), topic) == {0: 3}
    assert at(reader(stage, topics=topic, startingTimestamp="2024-01-01T00:00:00").initialOffset(), topic) == {0: 5}
    strict = {"startingTimestamp": "2024-01-01T00:00:00", "startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(Invalid, match=rf"{topic}' partition 0 has no record from 1704067200000 ms on"):
        reader(stage, topics=topic, **strict).initialOffset()


def test_what_does_not_exist_is_said_in_one_sentence(stage: Stage) -> None:
    topic = stage.topic(name=unique("payments"))
    with pytest.raises(NotFound, match=f"did you mean '{topic}'"):
        reader(stage, topics=topic.replace("payments", "paymets")).initialOffset()
    with pytest.raises(NotFound, match="has no partition 7"):
        reader(stage, assign=json.dumps({topic: [0, 7]})).initialOffset()
    with pytest.raises(Invalid, match="ends at offset 0, so 5 is not there yet"):
        reader(stage, topics=topic, startingOffsets=json.dumps({topic: {"0": 5}})).initialOffset()
    with pytest.raises(Invalid, match="is not among what is read"):
        reader(stage, topics=topic, startingOffsets='{"elsewhere": {"0": 5}}').initialOffset()


# -- going on ----------------------------------------------------------------------------------------------------------


def test_nothing_new_is_waited_for_and_found_at_once(stage: Stage) -> None:
    topic = stage.topic()
    one = reader(stage, topics=topic, startingOffsets="earliest")
    initial = one.initialOffset()
    assert one.latestOffset(initial, ALL) == initial
    late = threading.Timer(0.3, stage.fill, (topic, ["late"]))
    late.start()
    try:
        end = moved(one, initial)
    finally:
        late.join()
    assert read(one, initial, end) == ["late"]
    assert one.reportLatestOffset() is not None


def test_a_reader_tells_its_name_lag_bytes_and_age(stage: Stage) -> None:
    topic = stage.topic(2)
    long_ago = time.time_ns() // 1_000_000 - 3_600_000
    stage.fill(topic, ["x" * 1000] * 10, timestamp=long_ago)
    stage.fill(topic, numbers(10), partition=1)
    one = reader(stage, topics=topic, startingOffsets="earliest")
    first = one.latestOffset(one.initialOffset(), ReadMaxRows(12))
    told = one.reportLatestOffset()
    assert told is not None
    assert (told["source"], told["offsets"]) == (f"topic {topic}", {topic: {"0": 10, "1": 10}})
    assert (told["metrics"]["lagRows"], told["metrics"]["lost"], told["metrics"]["retries"]) == (8, 0, 0)
    assert told["metrics"]["lagMs"] >= 3_600_000
    assert told["metrics"]["bytes"] >= 6 * 1000
    one.latestOffset(first, ALL)
    told = one.reportLatestOffset()
    assert told is not None
    assert (told["metrics"]["lagRows"], told["metrics"]["lagMs"]) == (0, 0)


def test_limits_on_rows_are_kept_and_shared(stage: Stage) -> None:
    topic = stage.topic(2)
    stage.fill(topic, numbers(1000))
    stage.fill(topic, numbers(30), partition=1)
    one = reader(stage, topics=topic, startingOffsets="earliest", maxRowsPerTrigger=100)
    assert one.getDefaultReadLimit() == ReadMaxRows(100)
    first = one.latestOffset(one.initialOffset(), ReadMaxRows(100))
    assert at(first, topic) == {0: 70, 1: 30}
    assert at(one.latestOffset(first, ReadMaxRows(100)), topic) == {0: 170, 1: 30}
    assert at(one.latestOffset(first, ALL), topic) == {0: 1000, 1: 30}


def test_limits_on_bytes_let_at_least_a_batch_through(stage: Stage) -> None:
    topic = stage.topic()
    for start in range(0, 500, 50):
        stage.fill(topic, ["x" * 1000 + str(n) for n in range(start, start + 50)])
    one = reader(stage, topics=topic, startingOffsets="earliest", maxBytesPerTrigger=120_000)
    assert one.getDefaultReadLimit() == ReadMaxBytes(120_000)
    position, sizes = one.initialOffset(), []
    while (following := one.latestOffset(position, ReadMaxBytes(120_000))) != position:
        sizes.append(len(read(one, position, following)))
        position = following
    assert sum(sizes) == 500
    assert max(sizes) <= 120  # a thousand bytes a row
    small = one.latestOffset(one.initialOffset(), ReadMaxBytes(1))
    assert 0 < at(small, topic)[0] <= 50


def test_big_ranges_are_split_for_more_tasks(stage: Stage) -> None:
    topic = stage.topic()
    stage.fill(topic, numbers(1000))
    one = reader(stage, topics=topic, startingOffsets="earliest", minPartitions=7)
    initial = one.initialOffset()
    end = one.latestOffset(initial, ALL)
    assert len(one.partitions(initial, end)) == 7
    assert read(one, initial, end) == numbers(1000)


def test_a_batch_waits_for_its_minimum_of_rows_or_until_the_delay_is_over(stage: Stage) -> None:
    topic = stage.topic(2)
    stage.fill(topic, numbers(2))
    given = {"topics": topic, "startingOffsets": "earliest", "minRowsPerTrigger": 5}
    one = reader(stage, **given, maxTriggerDelay="1h")
    begin = one.initialOffset()
    first = one.latestOffset(begin, ALL)  # what is there at the start is not held back
    assert at(first, topic) == {0: 2, 1: 0}
    stage.fill(topic, numbers(4), partition=1)
    assert one.latestOffset(first, ALL) == first
    stage.fill(topic, numbers(3))
    assert at(moved(one, first), topic) == {0: 5, 1: 4}

    hasty = reader(stage, **given, maxTriggerDelay="1ms")
    start = hasty.latestOffset(hasty.initialOffset(), ALL)
    stage.fill(topic, ["one"])
    assert at(moved(hasty, start), topic) == {0: 6, 1: 4}

    ending = reader(stage, **given)  # a query that is to end takes what is there
    ending.prepareForTriggerAvailableNow()
    assert at(ending.latestOffset(first, ALL), topic) == {0: 6, 1: 4}
    assert at(ending.latestOffset(start, ReadMaxRows(2)), topic) == {0: 6, 1: 4}


def test_available_now_stops_at_what_was_there(stage: Stage) -> None:
    topic = stage.topic()
    stage.fill(topic, numbers(10))
    one = reader(stage, topics=topic, startingOffsets="earliest")
    one.prepareForTriggerAvailableNow()
    stage.fill(topic, numbers(10, 20))
    stage.grow(topic, 2)
    stage.fill(topic, ["later"], partition=1)
    initial = one.initialOffset()
    end = one.latestOffset(initial, ReadMaxRows(6))
    assert at(end, topic)[0] == 6
    end = one.latestOffset(end, ReadMaxRows(6))
    assert read(one, initial, end) == numbers(10)
    assert one.latestOffset(end, ReadMaxRows(6)) == end


def test_new_partitions_and_topics_are_read_from_their_beginning(stage: Stage) -> None:
    prefix = unique("shop")
    first = stage.topic(name=f"{prefix}.one")
    one = reader(stage, pattern=f"{prefix}.*")
    initial = one.initialOffset()
    stage.grow(first, 2)
    stage.fill(first, ["new partition"], partition=1)
    second = stage.topic(name=f"{prefix}.two")
    stage.fill(second, ["new topic"])
    stage.topic(name=f"{prefix}.two.three")

    end = moved(one, initial, to={(first, 1): 1, (second, 0): 1})
    assert sorted(read(one, initial, end)) == ["new partition", "new topic"]
    assert set(end["offsets"]) == {first, second}


def test_a_pattern_may_wait_for_its_first_topic(stage: Stage) -> None:
    prefix = unique("later")
    one = reader(stage, pattern=f"^{prefix}.*")
    initial = one.initialOffset()
    assert initial["offsets"] == {}
    assert one.latestOffset(initial, ALL) == initial
    topic = stage.topic(name=f"{prefix}-x")
    stage.fill(topic, ["a"])
    end = moved(one, initial)
    assert read(one, initial, end) == ["a"]


# -- what is gone ------------------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_an_error_or_left_out(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    kept, lost = stage.topic(), stage.topic()
    stage.fill(kept, ["kept"])
    options = {"topics": f"{kept},{lost}", "startingOffsets": "earliest"}
    strict, lenient = reader(stage, **options), reader(stage, **options, failOnDataLoss="false")
    initial = strict.initialOffset()
    lenient.initialOffset()
    stage.delete(lost)

    wait_for(lambda: lost not in stage.admin.list_topics(timeout=10).topics, "the topic is gone")
    with pytest.raises(Expired, match=f"'{lost}' was deleted while the query was reading it.* failOnDataLoss=false"):
        wait_for(lambda: strict.latestOffset(initial, ALL) is None, "the deletion is noticed")
    with caplog.at_level(logging.WARNING, "waystation.spark"):
        end = moved(lenient, initial, to={(kept, 0): 1, (lost, 0): None})
    assert read(lenient, initial, end) == ["kept"]
    assert "was deleted" in caplog.text


def test_a_recreated_topic_is_another_topic(stage: Stage) -> None:
    topic = stage.topic()
    stage.fill(topic, numbers(10))
    one = reader(stage, topics=topic, failOnDataLoss="false")
    initial = one.initialOffset()
    stage.delete(topic)
    wait_for(lambda: topic not in stage.admin.list_topics(timeout=10).topics, "the topic is gone")
    stage.topic(name=topic)
    stage.fill(topic, numbers(100, 120))
    end = moved(one, initial, to={(topic, 0): 20})
    assert read(one, initial, end) == numbers(100, 120)


def test_retention_that_was_quicker_is_an_error_or_a_counted_gap(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    topic = stage.topic()
    stage.fill(topic, numbers(100))
    strict = reader(stage, topics=topic, startingOffsets="earliest")
    lenient = reader(stage, topics=topic, startingOffsets="earliest", failOnDataLoss="false")
    initial, same = strict.initialOffset(), lenient.initialOffset()
    planned = strict.latestOffset(initial, ALL)
    stage.cut(topic, 0, 60)
    says = "offsets 0 to 59 were deleted, .* the oldest one is 60: .* failOnDataLoss=false"
    with pytest.raises(Expired, match=says):
        strict.latestOffset(initial, ALL)
    with pytest.raises(Expired, match=says):
        read(strict, initial, planned)
    with caplog.at_level(logging.WARNING, "waystation.spark"):
        end = lenient.latestOffset(same, ALL)
        assert read(lenient, same, end) == numbers(60, 100)
    assert end["lost"] == {topic: {"0": 60}}
    told = lenient.reportLatestOffset()
    assert told is not None
    assert told["metrics"]["lost"] == 60
    assert "60 offsets (0 to 59) were deleted" in caplog.text
    stage.fill(topic, numbers(100, 110))
    following = lenient.latestOffset(end, ALL)
    assert following["lost"] == end["lost"]
    assert read(lenient, end, following) == numbers(100, 110)


def test_offsets_without_records_bring_no_rows(stage: Stage) -> None:
    """Aborted transactions, markers and an open transaction."""
    topic = stage.topic()
    client = stage.producer(transactional_id=unique("tx"))
    client.init_transactions()
    for fate in ("commit", "abort", "abort", "commit"):
        client.begin_transaction()
        for n in range(3):
            client.produce(topic, f"{fate} {n}".encode())
        client.flush()
        (client.commit_transaction if fate == "commit" else client.abort_transaction)()
    client.begin_transaction()
    client.produce(topic, b"open")
    client.flush()
    committed = [f"commit {n}" for n in range(3)] * 2
    try:
        one = reader(stage, topics=topic, startingOffsets="earliest", minPartitions=5)
        initial = one.initialOffset()
        end = one.latestOffset(initial, ALL)
        assert at(end, topic) == {0: 16}
        assert read(one, initial, end) == committed
        dirty = reader(stage, topics=topic, startingOffsets="earliest", isolation="read_uncommitted")
        everything = read(dirty, dirty.initialOffset(), dirty.latestOffset(dirty.initialOffset(), ALL))
        assert len(everything) == 13
        assert "open" in everything
    finally:
        client.abort_transaction()
    following = moved(one, end)
    assert read(one, end, following) == []


def test_compacted_topics_have_holes(stage: Stage) -> None:
    topic = stage.topic(
        cleanup_policy="compact", segment_bytes=2048, min_cleanable_dirty_ratio=0, min_compaction_lag_ms=0
    )
    for turn in range(20):
        client = stage.producer()
        for key in range(10):
            client.produce(topic, f"{turn}/{key}".encode() + bytes(20), key=b"%d" % key)
        client.flush()
    one = reader(stage, topics=topic, startingOffsets="earliest", minPartitions=4)
    initial = one.initialOffset()
    end = one.latestOffset(initial, ALL)
    assert at(end, topic) == {0: 200}
    wait_for(lambda: len(read(one, initial, end)) < 150, "compaction took something out")
    rows = read(one, initial, end)
    assert {value.rstrip("\0") for value in rows} >= {f"19/{key}" for key in range(10)}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_opened(stage: Stage, codec: str) -> None:
    topic = stage.topic(compression_type=codec)
    stage.fill(topic, numbers(2000))
    one = reader(stage, topics=topic, startingOffsets="earliest")
    assert read(one, one.initialOffset(), one.latestOffset(one.initialOffset(), ALL)) == numbers(2000)


# -- progress ----------------------------------------------------------------------------------------------------------


def test_progress_is_published_as_a_groups_offsets(stage: Stage) -> None:
    topic, group = stage.topic(), unique("group")
    stage.fill(topic, numbers(50))
    one = reader(stage, topics=topic, startingOffsets="earliest", group=group, maxRowsPerTrigger=20)
    client = Consumer({"bootstrap.servers": stage.servers, "group.id": group, "log_level": 3})

    def committed() -> int:
        return int(client.committed([TopicPartition(topic, 0)], timeout=10)[0].offset)

    try:
        first = one.latestOffset(one.initialOffset(), ReadMaxRows(20))
        second = one.latestOffset(first, ReadMaxRows(20))
        assert committed() == 20
        one.latestOffset(second, ReadMaxRows(20))
        assert committed() == 40
    finally:
        client.close()


def test_a_group_with_members_keeps_its_offsets_and_the_query_goes_on(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = stage.topic(), unique("group")
    stage.fill(topic, numbers(3))
    client = Consumer({"bootstrap.servers": stage.servers, "group.id": group, "log_level": 3})
    try:
        client.subscribe([topic])
        wait_for(lambda: (client.poll(0.1), client.assignment())[1], "the group has a member")
        one = reader(stage, topics=topic, startingOffsets="earliest", group=group)
        with caplog.at_level(logging.WARNING, "waystation.spark"):
            end = one.latestOffset(one.initialOffset(), ALL)
        assert read(one, one.initialOffset(), end) == numbers(3)
        assert "progress cannot be published" in caplog.text
    finally:
        client.close()


# -- batches -----------------------------------------------------------------------------------------------------------


def planned(one: TopicReader) -> list[tuple[int, int, int]]:
    return [(p.range.partition, p.range.start, p.range.end) for p in one.partitions()]  # type: ignore[attr-defined]


def test_filters_prune_what_is_read(stage: Stage) -> None:
    from datetime import UTC, datetime

    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

    topic = stage.topic(3)
    for index in range(3):
        for n in range(10):
            stage.fill(topic, [str(n)], partition=index, timestamp=1_700_000_000_000 + n * 1000)
    one = batch_reader(stage, PruningTopicReader, topics=topic)
    assert planned(one) == [(0, 0, 10), (1, 0, 10), (2, 0, 10)]
    filters = [EqualTo(("partition",), 1), LessThan(("offset",), 8)]
    assert one.pushFilters(filters) == filters
    assert planned(one) == [(1, 0, 8)]
    time_ = datetime.fromtimestamp(1_700_000_004, UTC)
    one.pushFilters([GreaterThanOrEqual(("timestamp",), time_), GreaterThanOrEqual(("partition",), 1)])
    assert planned(one) == [(1, 4, 10), (2, 4, 10)]
    one.pushFilters([LessThan(("timestamp",), time_), EqualTo(("partition",), 0)])
    rows = [
        value for part in one.partitions() for batch in one.read(part) for value in batch.column("value").to_pylist()
    ]
    assert rows == [b"0", b"1", b"2", b"3"]


# -- a broker that is not there ----------------------------------------------------------------------------------------


def test_a_broker_that_is_down_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    with Server(tmp_path) as own:
        stage = Stage(own)
        topic = stage.topic()
        stage.fill(topic, numbers(3))
        own.stop()
        with pytest.raises(ConnectionLost) as caught:
            reader(stage, topics=topic, retryTimeout="0.3").initialOffset()
        text = str(caught.value)
        assert f"the broker at {stage.servers} cannot be reached" in text
        assert "retryTimeout" in text
        assert "\n" not in text


def test_a_broker_that_comes_back_is_read_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Server(tmp_path) as own:
        stage = Stage(own)
        topic = stage.topic()
        stage.fill(topic, numbers(3))
        one = reader(stage, topics=topic, startingOffsets="earliest")
        initial = one.initialOffset()
        own.kill()
        back = threading.Timer(0.7, own.restart)
        back.start()
        try:
            with caplog.at_level(logging.WARNING, "waystation.spark"):
                end = one.latestOffset(initial, ALL)
        finally:
            back.join()
        assert read(one, initial, end) == numbers(3)
        assert "cannot be reached" in caplog.text
        assert "answers again" in caplog.text
