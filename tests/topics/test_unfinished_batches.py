"""Large batches are decoded in pieces: every message once and in order, and little is kept in between."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tests.broker.kit import NOW_MS, broker_on, publish, run
from waystation.log.batches import batch as batches
from waystation.topics.partitions.unfinished_batches import UnfinishedBatch, UnfinishedBatches
from waystation.topics.reading import CHUNK_RECORDS, decode, read_away, read_chunk, read_stored
from waystation.topics.records.record_reading import BEGIN

COUNT = 2 * CHUNK_RECORDS + 500


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_of_many_records_is_read_in_pieces(tmp_path: Path, codec: int) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            for _ in range(2):
                publish(broker, "t", batches.build([(None, b"%d" % i, ()) for i in range(COUNT)], NOW_MS, codec=codec))
            partition = broker.topics.get("t").partition(0)
            found: list[int] = []
            at = 0
            while at < 2 * COUNT:
                chunk = await read_away(broker.world.offload, partition, at)
                assert 0 < len(chunk.messages) <= CHUNK_RECORDS
                found += [one.offset for one in chunk.messages]
                at = chunk.next
            assert found == list(range(2 * COUNT))
            assert partition.unfinished.size == 0

    run(main())


def test_no_more_is_decoded_than_is_wanted(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            publish(broker, "t", batches.build([(None, b"%d" % i, ()) for i in range(5000)], NOW_MS, codec=4))
            partition = broker.topics.get("t").partition(0)
            for offset in (0, 4000, 17):  # forwards, and back again
                decoded = decode(read_stored(partition, offset, most=2))
                assert [one.offset for one in decoded.chunk.messages] == [offset, offset + 1]
                assert decoded.chunk.next == offset + 2
                chunk = read_chunk(partition, offset, most=2)
                assert [one.message.payload for one in chunk.messages] == [b"%d" % offset, b"%d" % (offset + 1)]

    run(main())


def test_what_is_kept_of_half_read_batches_is_bounded() -> None:
    kept = UnfinishedBatches(most_bytes=1000)
    for index in range(10):
        kept.keep(UUID(int=1), index, UnfinishedBatch(0, 0, bytes(300), BEGIN))
        assert kept.size <= 1000
    assert kept.of(UUID(int=1), 0) is None
    assert kept.of(UUID(int=1), 9) is not None
    kept.keep(UUID(int=1), 9, None)
    assert kept.size == 600
