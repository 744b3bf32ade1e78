"""Checkpoints of queues: a broker that is killed again and again does not replay more and more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.broker.kit import broker_on, snapshot
from waystation.message import Message

LIFE_BYTES = 3 * 1024 * 1024
"""Less than what makes a checkpoint worth its while within one life, more in three."""


def test_what_was_replayed_counts_towards_the_next_checkpoint(tmp_path: Path) -> None:
    """Else a broker whose lives are shorter than that keeps its whole log of queues, and reads all of it each time."""

    async def life(folder: Path, after: Path) -> tuple[int, int]:
        async with broker_on(folder, waystation_queue_shards="1", waystation_queue_segment_bytes="1000000") as broker:
            await broker.queues.declare("jobs")
            (shard,) = broker.shards
            for _ in range(LIFE_BYTES // 100_000):
                await broker.queues.put_durable("jobs", [Message(bytes(100_000))])
                await broker.queues.purge("jobs")
            await broker.shards.checkpoint()
            snapshot(folder, after.name)
            return shard.log.replayed_bytes, shard.log.log.size_bytes

    async def lives() -> list[tuple[int, int]]:
        return [await life(tmp_path / f"life-{n}", tmp_path / f"life-{n + 1}") for n in range(8)]

    found = asyncio.run(lives())
    assert max(replayed for replayed, _ in found) <= 4 * LIFE_BYTES, found
    assert max(size for _, size in found) <= 8 * LIFE_BYTES, found
    assert found[2][0] > LIFE_BYTES, "these were crashes: there was something to replay"
