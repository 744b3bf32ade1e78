"""Checkpoints of queues: a broker that is killed again and again does not replay more and more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.broker.kit import broker_on, snapshot
from tests.broker.queue_kit import Machine, consumer, on_a_machine, put
from waystation.log.cleaning import retention
from waystation.log.log import Log
from waystation.message import Message
from waystation.queues.feed import Verdict
from waystation.queues.shard.checkpoint import FIRST_BYTES, KEPT
from waystation.queues.shard.stragglers import Stragglers
from waystation.topics.partitions.partition import log_of

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
            return shard.log.replayed_bytes, log_of(shard.log.partition).size_bytes

    async def lives() -> list[tuple[int, int]]:
        return [await life(tmp_path / f"life-{n}", tmp_path / f"life-{n + 1}") for n in range(8)]

    found = asyncio.run(lives())
    assert max(replayed for replayed, _ in found) <= 4 * LIFE_BYTES, found
    assert max(size for _, size in found) <= 8 * LIFE_BYTES, found
    assert found[2][0] > LIFE_BYTES, "these were crashes: there was something to replay"


def test_no_segment_is_freed_before_the_end_of_its_messages_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut would bring back messages that nobody can read any more."""
    found: list[tuple[int, int]] = []  # where the acknowledgements ended, how far the log was durable
    ended: list[int] = []
    remove_before = retention.remove_before

    async def watched(log: Log, offset: int) -> int:
        found.append((ended[0], log.durable_offset))
        return await remove_before(log, offset)

    @on_a_machine
    async def story(machine: Machine) -> None:
        broker = await machine.anew(shards="1", segment_bytes="3000")
        await broker.queues.declare("jobs")
        (shard,) = broker.shards
        (checkpointer,) = broker.shards.checkpointers
        await put(broker, "jobs", *[bytes(500)] * 20)
        for _ in range(2):
            await put(broker, "jobs", bytes(500))
            await checkpointer.run(force=True)
        async with consumer(broker, "jobs") as inbox:
            await put(broker, "jobs", bytes(500))
            await asyncio.sleep(0.01)
            oldest_living = Stragglers.oldest_living

            async def acked_meanwhile(self: Stragglers, limit: int) -> int:
                inbox.feed.settle(Verdict.ACK, [(one.tag, 1) for one in inbox.got])
                ended.append(log_of(shard.log.partition).end_offset)
                return await oldest_living(self, limit)

            monkeypatch.setattr(Stragglers, "oldest_living", acked_meanwhile)
            monkeypatch.setattr(retention, "remove_before", watched)
            await checkpointer.run(force=True)

    story()
    assert found, "nothing was freed: this shows nothing"
    assert all(durable >= end for end, durable in found)


@on_a_machine
async def test_a_shard_with_nothing_to_do_and_nothing_in_it_takes_no_room(machine: Machine) -> None:
    broker = await machine.anew(shards="1", segment_bytes="100000000")
    await broker.queues.declare("jobs")
    (shard,) = broker.shards
    log = log_of(shard.log.partition)
    for _ in range(10):
        await put(broker, "jobs", bytes(1_000_000))
    await broker.queues.purge("jobs")
    await broker.shards.checkpoint()
    assert log.size_bytes > FIRST_BYTES, "it may be busy again at once"
    await broker.shards.checkpoint()
    assert log.size_bytes == 0
    await put(broker, "jobs", b"later")
    broker = await machine.again()
    async with consumer(broker, "jobs") as inbox:
        assert inbox.payloads == [b"later"]


@on_a_machine
async def test_a_shard_with_nothing_to_do_and_little_in_it_takes_little_room(machine: Machine) -> None:
    """As with a few dead letters that nobody looks at, beside queues through which gigabytes have passed."""
    broker = await machine.anew(shards="1", segment_bytes="100000000")
    await broker.queues.declare("jobs")
    await broker.queues.declare("dead")
    (shard,) = broker.shards
    log = log_of(shard.log.partition)
    await put(broker, "dead", b"first")
    for _ in range(10):
        await put(broker, "jobs", bytes(1_000_000))
    await put(broker, "dead", b"last")
    await broker.queues.purge("jobs")
    await broker.shards.checkpoint()
    assert log.size_bytes > FIRST_BYTES, "it may be busy again at once"
    await broker.shards.checkpoint()
    assert log.size_bytes < 10_000
    moved = log.end_offset
    for _ in range(3):
        await broker.shards.checkpoint()
    assert log.end_offset == moved, "once is enough"
    assert [peeked.delivered.message.payload for peeked in broker.queues.peek("dead", 9)] == [b"first", b"last"]
    broker = await machine.again()
    async with consumer(broker, "dead") as inbox:
        assert inbox.payloads == [b"first", b"last"]


@on_a_machine
async def test_a_shard_in_which_much_lives_is_left_alone(machine: Machine) -> None:
    broker = await machine.anew(shards="1", segment_bytes="100000000")
    await broker.queues.declare("jobs")
    await broker.queues.declare("kept")
    (shard,) = broker.shards
    log = log_of(shard.log.partition)
    for name in ("kept", "jobs"):
        for _ in range(10):
            await put(broker, name, bytes(1_000_000))
    await broker.queues.purge("jobs")
    end = log.end_offset
    for _ in range(3):
        await broker.shards.checkpoint()
    assert (log.size_bytes > 2 * FIRST_BYTES, log.end_offset) == (True, end)


@on_a_machine
async def test_after_a_shard_was_cut_back_either_of_its_snapshots_will_do(machine: Machine) -> None:
    broker = await machine.anew(shards="1", segment_bytes="3000")
    await broker.queues.declare("jobs")
    await put(broker, "jobs", bytes(2_000))
    await broker.queues.purge("jobs")
    (checkpointer,) = broker.shards.checkpointers
    await checkpointer.cut_back()
    assert len(checkpointer._kept) == KEPT
    newest = checkpointer._kept[-1][1]
    await broker.stop()
    machine.disk.replace_file(newest, b"rotten")
    broker = await machine.start()
    assert "jobs" in broker.queues
    await put(broker, "jobs", b"later")
    assert [peeked.delivered.message.payload for peeked in broker.queues.peek("jobs", 9)] == [b"later"]
