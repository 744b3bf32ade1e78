"""A refused batch names the records that it was refused for (KIP-467), so that a producer can do without them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import InvalidRecordError, KafkaError
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.pipeline import Pipeline
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S
from waystation.log.batches import batch as batches
from waystation.log.batches.compression import compress
from waystation.topics.publishing import MAX_RECORD_ERRORS

HOUR_MS = 3_600_000
NONE, GZIP = 0, 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def line(server: Server) -> Iterator[Pipeline]:
    with Pipeline(server.bootstrap) as line:
        yield line


def create(line: Pipeline, **settings: str) -> str:
    name = unique("refusing")
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    assert line.ask("create_topics", 5, topics=[topic]).topics[0].error_code == ErrorCode.none
    return name


def produce(line: Pipeline, version: int, topic: str, records: bytes | bytearray) -> Any:
    part = {"index": 0, "records": bytes(records)}
    data = [{"name": topic, "partition_data": [part]}]
    return line.ask("produce", version, acks=-1, topic_data=data).responses[0].partition_responses[0]


def keyed(keys: list[bytes | None], codec: int = NONE) -> bytearray:
    return batches.build([(key, b"v", ()) for key in keys], int(time.time() * 1000), codec=codec)


@pytest.mark.parametrize("codec", [NONE, GZIP])
@pytest.mark.parametrize("version", [8, 9, 12])
def test_records_without_a_key_are_named_for_a_compacted_topic(line: Pipeline, version: int, codec: int) -> None:
    topic = create(line, cleanup_policy="compact")
    answer = produce(line, version, topic, keyed([b"a", None, b"c", None], codec))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.invalid_record, -1)
    assert [one.batch_index for one in answer.record_errors] == [1, 3]
    assert all("key" in one.batch_index_error_message for one in answer.record_errors)
    assert "2 of 4 records" in answer.error_message
    assert produce(line, version, topic, keyed([b"a", b"c"], codec)).base_offset == 0


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_records_with_a_time_that_is_not_taken_are_named(line: Pipeline, codec: int) -> None:
    topic = create(line)
    now_ms = int(time.time() * 1000)
    times = (now_ms, now_ms + 3 * HOUR_MS, now_ms)
    made = [batches.Record(number, at, None, b"v", ()) for number, at in enumerate(times)]
    body, count = batches.encode_records(made, 0, now_ms)
    header = batches.Header(0, 0, -1, batches.MAGIC, 0, codec, count - 1, now_ms, max(times), -1, -1, -1, count)
    answer = produce(line, 9, topic, batches.assemble(header, compress(codec, body)))
    assert answer.error_code == ErrorCode.invalid_timestamp
    assert [one.batch_index for one in answer.record_errors] == [1]
    assert str(now_ms + 3 * HOUR_MS) in answer.record_errors[0].batch_index_error_message


def test_not_more_records_are_named_than_an_answer_has_room_for(line: Pipeline) -> None:
    topic = create(line, cleanup_policy="compact")
    answer = produce(line, 9, topic, keyed([None] * (MAX_RECORD_ERRORS + 10)))
    assert len(answer.record_errors) == MAX_RECORD_ERRORS
    assert f"{MAX_RECORD_ERRORS + 10} of {MAX_RECORD_ERRORS + 10} records" in answer.error_message


def test_a_batch_that_is_refused_as_a_whole_names_none(line: Pipeline) -> None:
    records = keyed([b"a"])
    records[-1] ^= 1
    answer = produce(line, 9, create(line), records)
    assert (answer.error_code, answer.record_errors) == (ErrorCode.corrupt_message, ())


def test_a_producer_learns_which_of_its_records_was_bad(server: Server, line: Pipeline) -> None:
    topic = create(line, cleanup_policy="compact")
    producer: Any = KafkaProducer(bootstrap_servers=server.bootstrap, linger_ms=500, batch_size=100_000)
    futures = [producer.send(topic, key=key, value=b"v") for key in (b"a", None, b"c")]
    errors: list[KafkaError] = []
    for future in futures:
        with pytest.raises(KafkaError) as refused:
            future.get(timeout=DEADLINE_S)
        errors.append(refused.value)
    producer.close()
    assert isinstance(errors[1], InvalidRecordError)
    assert "key" in str(errors[1])
    assert all("part of a batch" in str(errors[at]) for at in (0, 2))
