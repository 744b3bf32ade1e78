"""Requests that a client writes at once take effect in their order: each sees what those before it have done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.pipeline import Pipeline
from tests.support.names import unique
from tests.support.server import Server
from waystation.log.batches import batch as batches

LATEST, EARLIEST = -1, -2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"auto.create.topics.enable": False}
    with Server(tmp_path_factory.mktemp("broker"), settings=settings) as server:
        yield server


@pytest.fixture
def line(server: Server) -> Iterator[Pipeline]:
    with Pipeline(server.bootstrap) as line:
        yield line


@pytest.fixture
def topic() -> str:
    return unique("piped")


def create(line: Pipeline, topic: str) -> None:
    one = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    line.add("create_topics", 5, topics=[one], timeout=timedelta(seconds=30))


def delete(line: Pipeline, topic: str) -> None:
    line.add("delete_topics", 5, topic_names=[topic], timeout=timedelta(seconds=30))


def metadata(line: Pipeline, topic: str) -> None:
    line.add("metadata", 8, topics=[{"name": topic}], allow_auto_topic_creation=False)


def produce(line: Pipeline, topic: str, *values: bytes, acks: int = -1) -> None:
    now_ms = int(time.time() * 1000)
    records = bytes(batches.build([(None, value, ()) for value in values], now_ms))
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    line.add("produce", 8, acks=acks, topic_data=data)


def cut(line: Pipeline, topic: str, offset: int) -> None:
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    line.add("delete_records", 1, topics=asked, timeout=timedelta(seconds=30))


def list_offset(line: Pipeline, topic: str, which: int) -> None:
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": which, "current_leader_epoch": -1}]}]
    line.add("list_offsets", 5, replica_id=-1, topics=asked)


def fetch(line: Pipeline, topic: str, max_wait_s: float) -> None:
    partition = {
        "partition": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 1_000_000,
        "current_leader_epoch": -1,
        "log_start_offset": -1,
    }
    line.add(
        "fetch",
        11,
        replica_id=-1,
        max_wait=timedelta(seconds=max_wait_s),
        min_bytes=1,
        max_bytes=1_000_000,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [partition]}],
    )


def produced(answer: Any) -> Any:
    return answer.responses[0].partition_responses[0]


def listed(answer: Any) -> Any:
    return answer.topics[0].partitions[0]


def test_metadata_behind_the_creation_of_a_topic_shows_it(line: Pipeline, topic: str) -> None:
    create(line, topic)
    metadata(line, topic)
    created, seen = line.answers()
    assert created.topics[0].error_code == ErrorCode.none
    assert seen.topics[0].error_code == ErrorCode.none
    assert len(seen.topics[0].partitions) == 1


def test_a_produce_behind_the_creation_of_its_topic_is_stored(line: Pipeline, topic: str) -> None:
    create(line, topic)
    produce(line, topic, b"first")
    created, stored = line.answers()
    assert created.topics[0].error_code == ErrorCode.none
    assert (produced(stored).error_code, produced(stored).base_offset) == (ErrorCode.none, 0)


def test_what_comes_behind_the_deletion_of_a_topic_does_not_find_it(line: Pipeline, topic: str) -> None:
    create(line, topic)
    line.answers()
    delete(line, topic)
    produce(line, topic, b"late")
    metadata(line, topic)
    deleted, stored, seen = line.answers()
    assert deleted.responses[0].error_code == ErrorCode.none
    assert produced(stored).error_code == ErrorCode.unknown_topic_or_partition
    assert seen.topics[0].error_code == ErrorCode.unknown_topic_or_partition


def test_offsets_listed_behind_records_and_their_deletion_show_both(line: Pipeline, topic: str) -> None:
    create(line, topic)
    for number in range(10):
        produce(line, topic, b"%d" % number)
    list_offset(line, topic, LATEST)
    cut(line, topic, 4)
    list_offset(line, topic, EARLIEST)
    answers = line.answers()
    assert [produced(one).base_offset for one in answers[1:11]] == list(range(10))
    assert listed(answers[11]).offset == 10
    assert answers[12].topics[0].partitions[0].low_watermark == 4
    assert listed(answers[13]).offset == 4


def test_produces_take_effect_in_order_also_behind_other_requests(line: Pipeline, topic: str) -> None:
    """A topic that is deleted and created again between two of them has the second one's records alone."""
    create(line, topic)
    produce(line, topic, b"old")
    delete(line, topic)
    create(line, topic)
    produce(line, topic, b"new 1")
    produce(line, topic, b"new 2")
    list_offset(line, topic, LATEST)
    answers = line.answers()
    assert [produced(answers[at]).base_offset for at in (1, 4, 5)] == [0, 0, 1]
    assert listed(answers[6]).offset == 2


def test_a_fetch_that_waits_for_records_lets_a_produce_pass(line: Pipeline, topic: str) -> None:
    """Else nobody could write what it waits for on the same connection: it would wait to its end."""
    create(line, topic)
    line.answers()
    began = time.monotonic()
    fetch(line, topic, max_wait_s=20)
    produce(line, topic, b"awaited")
    read, stored = line.answers()
    assert time.monotonic() - began < 10
    assert read.responses[0].partitions[0].records
    assert produced(stored).base_offset == 0
