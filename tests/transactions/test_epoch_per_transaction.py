"""KIP-890 as its clients use it: no AddPartitionsToTxn, data and offsets join by arriving, every end brings an epoch.

No Python client speaks these versions yet, so the requests are made by hand and handed to the protocol's own handlers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import LISTENER, Desk
from tests.transactions.test_kafka_apis import commit_offsets, committed, end, start, stored_log
from waystation.log.batches import batch as batches
from waystation.protocols.kafka.records import produce
from waystation.security.principals import ANONYMOUS
from waystation.transactions.machine import Producer

VERSION = 12


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path, {})
    made.create("a", partitions=2)
    yield made
    made.close()


def send(desk: Desk, producer: Producer, sequence: int, partition: int = 0) -> ErrorCode:
    """One transactional record by Produce 12 with acks=all; the code of the answer."""
    data = batches.build(
        [(b"k", b"v", ())],
        desk.broker.world.clock.now_ms(),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        attributes=batches.TRANSACTIONAL,
    )
    if len(data) >= 127:
        raise ValueError("the length below has one byte")
    body = b"\x05shop" + b"\xff\xff" + (30_000).to_bytes(4, "big")  # transactional id, acks, timeout
    body += b"\x02" + b"\x02a" + b"\x02" + partition.to_bytes(4, "big")  # one topic, one partition
    body += bytes([len(data) + 1]) + bytes(data) + b"\x00\x00\x00"

    async def ask() -> bytes:
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def answer(parts: produce.Parts | None) -> None:
            answered.set_result(b"".join(parts or []))

        access = desk.broker.access(ANONYMOUS, "/", desk.broker.meters.kafka)
        waiting = produce.handle(desk.broker, access, VERSION, memoryview(bytearray(body)), 0, answer, LISTENER)
        if waiting is not None:
            await waiting
        return await answered

    response = desk.run(ask())
    # One topic of one letter, one partition: its number, then the code.
    return ErrorCode(int.from_bytes(response[8:10], "big", signed=True))


def test_data_joins_by_arriving_and_every_end_brings_an_epoch(desk: Desk) -> None:
    producer = start(desk, version=5)
    for n in range(3):
        assert send(desk, producer, 0, partition=0) is ErrorCode.none
        assert send(desk, producer, 1, partition=0) is ErrorCode.none
        assert send(desk, producer, 0, partition=1) is ErrorCode.none
        assert desk.broker.transactions.describe("shop").partitions == {("a", 0), ("a", 1)}
        answer = end(desk, producer, n != 1, version=5)
        assert answer.error_code is ErrorCode.none
        assert answer.producer_epoch == producer.epoch + 1
        producer = Producer(answer.producer_id, answer.producer_epoch)
    log = stored_log(desk, "a", 0)
    assert log.stable_offset == log.end_offset == 3 * 3


def test_a_batch_that_was_delayed_cannot_slip_into_the_next_transaction(desk: Desk) -> None:
    old = start(desk, version=5)
    assert send(desk, old, 0) is ErrorCode.none
    answer = end(desk, old, True, version=5)
    new = Producer(answer.producer_id, answer.producer_epoch)
    assert send(desk, old, 1) is ErrorCode.invalid_producer_epoch
    assert send(desk, new, 0) is ErrorCode.none
    assert send(desk, old, 1) is ErrorCode.invalid_producer_epoch
    assert end(desk, new, True, version=5).error_code is ErrorCode.none


def test_offsets_join_by_arriving(desk: Desk) -> None:
    producer = start(desk, version=5)
    assert send(desk, producer, 0) is ErrorCode.none
    assert commit_offsets(desk, producer, 5) == [ErrorCode.none]
    assert end(desk, producer, True, version=5).error_code is ErrorCode.none
    assert [found.offset for found in committed(desk)] == [7]


def test_an_abort_before_anything_arrived_still_brings_an_epoch(desk: Desk) -> None:
    producer = start(desk, version=5)
    answer = end(desk, producer, False, version=5)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, producer.epoch + 1)
    assert send(desk, producer, 0) is ErrorCode.invalid_producer_epoch


def test_what_was_sent_is_kept_through_a_restart_of_the_broker(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    desk = Desk(folder, {})
    desk.create("a", partitions=2)
    producer = start(desk, version=5)
    assert send(desk, producer, 0) is ErrorCode.none
    catalog = desk.broker.catalog
    desk.close()

    again = Desk(folder, {}, catalog=catalog)
    assert send(again, producer, 1) is ErrorCode.none
    assert end(again, producer, True, version=5).error_code is ErrorCode.none
    assert stored_log(again, "a", 0).stable_offset == 3
    again.close()
