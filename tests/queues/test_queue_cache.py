"""The cache of queue messages: what is done is not kept in memory, and what is kept is counted as what it takes."""

from __future__ import annotations

import asyncio
import tracemalloc

import msgspec
import pytest

from tests.broker.queue_kit import Machine, consumer, on_a_machine, put
from waystation.broker.broker import Broker
from waystation.message import Message
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.bodies import Bodies


def cached(broker: Broker) -> int:
    """Messages that are in memory."""
    return sum(shard.bodies.cached for shard in broker.shards)


@on_a_machine
async def test_messages_that_were_put_singly_leave_memory_when_they_are_acked(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    for number in range(50):
        await put(broker, "jobs", b"%d" % number)
    assert cached(broker) == 50
    async with consumer(broker, "jobs") as inbox:
        await asyncio.sleep(0.01)
        for delivered in inbox.got[:49]:
            await inbox.ack(delivered)
        assert cached(broker) == 1
        await inbox.ack(inbox.got[49])
    assert cached(broker) == 0


@on_a_machine
async def test_messages_that_were_put_together_leave_memory_when_the_last_of_them_is_acked(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", *(b"%d" % number for number in range(10)))
    async with consumer(broker, "jobs") as inbox:
        await asyncio.sleep(0.01)
        await inbox.ack(*inbox.got[5:])
        for delivered in inbox.got[1:5]:
            await inbox.ack(delivered)
        assert cached(broker) == 10
        await inbox.ack(inbox.got[0])
    assert cached(broker) == 0


@on_a_machine
async def test_purged_dead_and_moved_messages_leave_memory_too(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("dead")
    await broker.queues.declare("jobs", QueueSettings(dead_letter="dead"))
    await put(broker, "jobs", b"bad", b"good")
    async with consumer(broker, "jobs") as inbox:
        await asyncio.sleep(0.01)
        bad, good = inbox.got
        await inbox.settle(Verdict.KILL, bad)
        tx = await broker.transacting.begin("t")
        await tx.settle(inbox.feed, [(good.tag, 1)])
        await tx.end(True)
    while broker.queues.describe("dead").ready < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert cached(broker) <= 1  # the dead letter itself
    await broker.queues.purge("dead")
    assert cached(broker) == 0


@on_a_machine
async def test_redelivered_messages_are_still_readable_after_others_of_their_block_left(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"0", b"1", b"2")
    async with consumer(broker, "jobs") as inbox:
        await asyncio.sleep(0.01)
        await inbox.ack(inbox.got[0], inbox.got[2])
        await inbox.settle(Verdict.RELEASE, inbox.got[1])
        await asyncio.sleep(0.01)
        assert inbox.payloads[3:] == [b"1"]
        await inbox.ack(inbox.got[3])
    assert cached(broker) == 0


@on_a_machine
async def test_messages_of_a_transaction_are_in_memory_until_they_are_done_or_undone(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(dedup_window_ms=60_000))
    await put(broker, "jobs", b"first", id="a")
    tx = await broker.transacting.begin("t")
    await tx.put("jobs", [Message(b"1", id="b"), Message(b"2", id="c")])
    undone = await broker.transacting.begin("u")
    await undone.put("jobs", [Message(b"undone")])
    assert cached(broker) == 4
    await undone.end(False)
    assert cached(broker) == 3
    await put(broker, "jobs", b"again", id="c")  # so the second one of the transaction is left out
    await tx.end(True)
    async with consumer(broker, "jobs") as inbox:
        await asyncio.sleep(0.01)
        assert inbox.payloads == [b"first", b"again", b"1"]
        await inbox.ack(*inbox.got)
    assert cached(broker) == 0


@on_a_machine
async def test_what_was_read_ahead_has_a_part_of_the_room_only(machine: Machine) -> None:
    """A backlog is read in strides, in which messages of other queues lie that are done long since."""
    room = 400_000
    broker = await machine.anew(cache_bytes=str(room), shards="1")
    for name in ("done", "left"):
        await broker.queues.declare(name)
    async with consumer(broker, "done") as inbox:
        for number in range(100):
            await put(broker, "left", b"%d" % number)
            for _ in range(20):
                await put(broker, "done", bytes(100))
            await asyncio.sleep(0.001)
            await inbox.ack(*inbox.got)
            inbox.feed.credit(len(inbox.got))
            inbox.got.clear()
    broker = await machine.again()
    (shard,) = broker.shards
    async with consumer(broker, "left", credit=1) as inbox:
        for number in range(100):
            await asyncio.sleep(0.001)
            assert inbox.payloads == [b"%d" % number]
            await inbox.ack(*inbox.got)
            inbox.got.clear()
            inbox.feed.credit(1)
            assert shard.bodies.cost <= room // 4 + 1_000
    assert shard.bodies.cost > room // 8, "the strides were read"


@on_a_machine
async def test_backlog_that_is_worked_through_is_read_in_strides_and_leaves_nothing_behind(machine: Machine) -> None:
    broker = await machine.anew(cache_bytes="400000", shards="1")
    await broker.queues.declare("deep")
    for number in range(3000):
        await put(broker, "deep", b"%d" % number)
    broker = await machine.again()
    assert cached(broker) == 0
    seen: list[bytes] = []
    async with consumer(broker, "deep", credit=50) as inbox:
        while len(seen) < 3000:
            await asyncio.sleep(0.001)
            seen += inbox.payloads
            await inbox.ack(*inbox.got)
            inbox.feed.credit(len(inbox.got))
            inbox.got.clear()
            assert sum(shard.bodies.cost for shard in broker.shards) <= 400_000
    assert seen == [b"%d" % number for number in range(3000)]
    assert cached(broker) == 0


def plain(number: int) -> Message:
    return Message(b"%06d" % number)


def identified(number: int) -> Message:
    return Message(b"%06d" % number, id=f"0123456789abcdef-{number:08d}", content_type="application/json")


def routed(number: int) -> Message:
    headers = {f"header-{n}": f"value-{number}-{n}" for n in range(15)}
    return Message(bytes(300), headers=headers, exchange="tasks", routing_key="work", id=f"{number:032d}")


@pytest.mark.parametrize("make", [plain, identified, routed])
@pytest.mark.parametrize("together", [1, 10, 100])
def test_what_the_cache_counts_is_what_it_takes(make: type, together: int) -> None:
    """Within a third: else `waystation.queue.cache.bytes` would be another bound than it says."""
    count = 5000
    raw = [msgspec.msgpack.encode([make(n + i) for i in range(together)]) for n in range(0, count, together)]
    payloads = len(make(0).payload) * together
    decoder = msgspec.msgpack.Decoder(list[Message])
    bodies = Bodies(None, 1 << 40)  # type: ignore[arg-type]  # nothing is read back here
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for at, encoded in enumerate(raw, 1_000_000):
            bodies.keep(at, 1_700_000_000_000 + at, decoder.decode(encoded), payloads, len(encoded))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.75 * taken < bodies.cost < 1.35 * taken, f"{bodies.cost / count:.0f} counted, {taken / count:.0f} taken"
