"""What a publish is checked for, and what topics that open batches up do with them."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from tests.broker.kit import NOW_MS, HandClock, broker_on, publish, read, run, send, snapshot, values
from waystation.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    StorageFailed,
    TooLarge,
    UnsupportedFormat,
    WaystationError,
)
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import HEADER_SIZE, TRANSACTIONAL, Header
from waystation.log.batches.compression import CODEC_NAMES
from waystation.topics.partitions.partition import Receipt, log_of

HOUR_MS = 3_600_000


def good() -> bytearray:
    return batches.build([(b"k", b"v", ())], NOW_MS)


def changed(**fields: int) -> bytearray:
    batch = good()
    return batches.assemble(batches.read_header(batch)._replace(**fields), bytes(batch[HEADER_SIZE:]))


def spoiled(position: int) -> bytearray:
    batch = good()
    batch[position] ^= 1
    return batch


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (bytearray(), CorruptBatch),
        (good()[:-1], CorruptBatch),
        (spoiled(65), CorruptBatch),
        (spoiled(17), CorruptBatch),
        (spoiled(40), CorruptBatch),
        (bytearray(struct.pack(">qiiBb", 0, 14, 0, 1, 0)) + bytes(8), UnsupportedFormat),
        (changed(attributes=batches.CONTROL), InvalidRecord),
        (changed(attributes=7), InvalidRecord),
        (changed(attributes=batches.LOG_APPEND_TIME), InvalidTimestamp),
        (changed(record_count=2), InvalidRecord),
        (changed(last_offset_delta=5), InvalidRecord),
        (changed(record_count=0, last_offset_delta=-1), InvalidRecord),
        (changed(record_count=10_000, last_offset_delta=9_999), InvalidRecord),
        (changed(producer_id=5), InvalidRecord),
        (changed(producer_id=5, producer_epoch=0), InvalidRecord),
        (changed(max_timestamp=NOW_MS + HOUR_MS + 1), InvalidTimestamp),
        (batches.build([(b"k", b"v" * 2_000_000, ())], NOW_MS), TooLarge),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else f"{len(value)} bytes",
)
def test_a_batch_that_cannot_be_taken_is_refused_and_nothing_is_stored(
    tmp_path: Path, batch: bytearray, error: type[WaystationError]
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            with pytest.raises(error):
                publish(broker, "t", batch)
            assert log_of(broker.topics.get("t").partition(0)).end_offset == 0
            publish(broker, "t", good())

    run(main())


def test_timestamps_are_held_to_the_topics_limits(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            limits = {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "10"}
            await broker.topics.create("strict", 1, limits)
            await broker.topics.create("ours", 1, {"message.timestamp.type": "LogAppendTime", **limits})
            for at in (NOW_MS - 1_000, NOW_MS + 10, -1):
                send(broker, "strict", b"v", at=at)
            for at in (NOW_MS - 1_001, NOW_MS + 11):
                with pytest.raises(InvalidTimestamp):
                    send(broker, "strict", b"v", at=at)
                assert send(broker, "ours", b"v", at=at).append_time_ms == NOW_MS

    run(main())


def test_every_record_of_a_compacted_topic_has_a_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"cleanup.policy": "compact"})
            for codec in range(5):
                send(broker, "t", b"v", key=b"k", codec=codec)
                with pytest.raises(InvalidRecord, match="key"):
                    send(broker, "t", b"v", codec=codec)
            garbage = batches.assemble(Header(0, 0, 0, 2, 0, 4, 0, NOW_MS, NOW_MS, -1, -1, -1, 1), b"not zstd")
            with pytest.raises(InvalidRecord):
                publish(broker, "t", garbage)

    run(main())


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
def test_batches_are_stored_in_the_topics_codec(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"compression.type": name})
            for codec in range(5):
                send(broker, "t", b"v%d" % codec * 50, b"w", key=b"k", codec=codec, headers=(("h", b"x"),))
            log = log_of(broker.topics.get("t").partition(0))
            codecs = [header.codec for _, header in log.batches_from(0)]
            assert codecs == (list(range(5)) if name == "producer" else [CODEC_NAMES[name]] * 5)
            records = read(broker, "t")
            assert [record.value for record in records] == [
                value for codec in range(5) for value in (b"v%d" % codec * 50, b"w")
            ]
            assert {(record.key, record.headers, record.timestamp) for record in records} == {
                (b"k", (("h", b"x"),), NOW_MS)
            }
        async with broker_on(tmp_path / "a") as broker:
            assert len(values(broker, "t")) == 10

    run(main())


def test_a_small_batch_that_would_be_stored_large_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"compression.type": "uncompressed"})
            await broker.topics.create("bomb", 1, {"compression.type": "gzip"})
            with pytest.raises(TooLarge):
                send(broker, "t", bytes(5_000_000), codec=4)
            big = batches.build([(None, bytes(140 * 1024 * 1024), ())], NOW_MS, codec=4)
            assert len(big) < 1_000_000
            with pytest.raises(TooLarge):
                publish(broker, "bomb", big)
            assert log_of(broker.topics.get("t").partition(0)).end_offset == 0

    run(main())


# -- deduplication -----------------------------------------------------------------------------------------------------


def with_id(*ids: bytes | None, codec: int = 0, **options: int) -> bytearray:
    return batches.build(
        [(None, b"v-%s" % (i or b"none"), () if i is None else (("x-message-id", i),)) for i in ids],
        options.pop("at", NOW_MS),
        codec=codec,
        **options,
    )


def test_a_message_id_is_taken_once_within_the_window(tmp_path: Path) -> None:
    clock = HandClock()

    async def main() -> None:
        async with broker_on(tmp_path / "a", clock) as broker:
            await broker.topics.create("t", 1, {"waystation.dedup.window.ms": "1000"})
            publish(broker, "t", with_id(b"a", b"b"))
            publish(broker, "t", with_id(b"a", b"c", b"c", None, None, codec=4))
            assert values(broker, "t") == [b"v-a", b"v-b", b"v-c", b"v-none", b"v-none"]
            assert [record.offset for record in read(broker, "t")] == [0, 1, 3, 5, 6]
            clock.ms += 1_000
            publish(broker, "t", with_id(b"a", at=clock.ms))
            assert len(values(broker, "t")) == 5
            clock.ms += 1
            publish(broker, "t", with_id(b"a", at=clock.ms))
            assert len(values(broker, "t")) == 6

    run(main())


def test_a_batch_of_nothing_but_duplicates_is_stored_empty(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"waystation.dedup.window.ms": "1000"})
            publish(broker, "t", with_id(b"a"))
            assert publish(broker, "t", with_id(b"a")).base_offset == 1
            log = log_of(broker.topics.get("t").partition(0))
            assert [(h.base_offset, h.record_count) for _, h in log.batches_from(0)] == [(0, 1), (1, 0)]
            assert publish(broker, "t", with_id(b"b")).base_offset == 2

    run(main())


def test_the_window_is_the_same_after_a_restart_and_a_kill(tmp_path: Path) -> None:
    clock = HandClock()

    async def main() -> None:
        async with broker_on(tmp_path / "a", clock) as broker:
            await broker.topics.create("t", 1, {"waystation.dedup.window.ms": "10000"})
            for i in range(10):
                publish(broker, "t", with_id(b"%d" % i, at=clock.ms))
                clock.ms += 2_000
            killed = snapshot(tmp_path / "a", "killed")
        for folder in (tmp_path / "a", killed):
            async with broker_on(folder, clock) as broker:
                for i in range(10):
                    publish(broker, "t", with_id(b"%d" % i, at=clock.ms))
                again = [record.value for record in read(broker, "t") if record.offset >= 10]
                assert again == [b"v-%d" % i for i in range(5)]  # those older than ten seconds

    run(main())


def test_an_idempotent_producers_retry_is_answered_with_its_first_offset(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"waystation.dedup.window.ms": "10000"})
            first = publish(broker, "t", with_id(b"a", b"b", producer_id=1, producer_epoch=0, base_sequence=0))
            again = publish(broker, "t", with_id(b"a", b"b", producer_id=1, producer_epoch=0, base_sequence=0))
            assert again.duplicate
            assert again.base_offset == first.base_offset
            third = publish(broker, "t", with_id(b"b", b"c", producer_id=1, producer_epoch=0, base_sequence=2))
            assert not third.duplicate
            assert values(broker, "t") == [b"v-a", b"v-b", b"v-c"]
            publish(broker, "t", with_id(b"d", producer_id=1, producer_epoch=0, base_sequence=4))

    run(main())


def test_what_was_not_stored_may_be_sent_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"waystation.dedup.window.ms": "10000"})
            log = log_of(broker.topics.get("t").partition(0))
            log.failure = StorageFailed("for a moment")
            with pytest.raises(StorageFailed):
                publish(broker, "t", with_id(b"a"))
            log.failure = None
            publish(broker, "t", with_id(b"a"))
            assert values(broker, "t") == [b"v-a"]

    run(main())


def test_an_id_of_an_aborted_transaction_is_free_also_when_nothing_is_left_of_that(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"waystation.dedup.window.ms": "10000"})
            partition = broker.topics.get("t").partition(0)
            for sequence, commit in enumerate((False, True)):
                named = b"aborted" if not commit else b"committed"
                publish(
                    broker, "t",
                    with_id(named, producer_id=1, producer_epoch=0, base_sequence=sequence, attributes=TRANSACTIONAL),
                )  # fmt: skip
                marker = batches.build_marker(1, 0, commit, 0, NOW_MS)
                partition.append(marker, batches.read_header(marker))
            publish(broker, "t", with_id(b"c"))
            await broker.durable(Receipt(partition, partition.end_offset))
            await partition.remove_all_before(partition.end_offset)
            assert len(partition.aborted) == 0
            for name in (b"aborted", b"committed"):
                publish(broker, "t", with_id(name))
            assert values(broker, "t") == [b"v-aborted"]

    run(main())


def test_batches_from_before_the_window_was_opened_do_not_get_in_the_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"waystation.validate.records": "crc"})
            publish(broker, "t", with_id(b"a"))
            garbage = batches.assemble(Header(0, 0, 0, 2, 0, 4, 0, NOW_MS, NOW_MS, -1, -1, -1, 1), b"not zstd")
            publish(broker, "t", garbage)
            await broker.topics.alter("t", {"waystation.dedup.window.ms": "10000"})
            publish(broker, "t", with_id(b"a"))
            publish(broker, "t", with_id(b"b"))
            log = log_of(broker.topics.get("t").partition(0))
            assert [header.record_count for _, header in log.batches_from(0)] == [1, 1, 0, 1]

    run(main())


def test_the_real_clock_is_in_milliseconds(tmp_path: Path) -> None:
    """Guards the tests above, whose clock is made by hand."""
    from waystation.world import SystemClock

    assert abs(SystemClock().now_ms() - time.time() * 1000) < 60_000
