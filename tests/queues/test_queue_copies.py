"""What an exchange sends to several queues is written once for each shard, and is each queue's own all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.broker.queue_kit import DAY_MS, Machine, consumer, on_a_machine, put
from waystation.broker.broker import Broker
from waystation.errors import Full
from waystation.message import Message
from waystation.queues.settings import QueueSettings
from waystation.queues.shard import commands
from waystation.queues.shard.commands import FanOut
from waystation.topics.partitions.partition import log_of

LARGE = bytes(100_000)


async def fan(broker: Broker, *settings: QueueSettings, count: int = 0) -> list[str]:
    """A fanout exchange with so many queues."""
    await broker.routing.declare_exchange("fan", "fanout")
    names = [f"copy.{number}" for number in range(max(count, len(settings)))]
    for number, name in enumerate(names):
        await broker.queues.declare(name, settings[number] if settings else QueueSettings())
        await broker.routing.bind("fan", f"queue:{name}")
    return names


async def publish(broker: Broker, *payloads: bytes, **fields: object) -> Sequence[str]:
    messages = [Message(payload, **fields) for payload in payloads]  # type: ignore[arg-type]
    return (await broker.routing.publish("fan", "", messages)).queues


def log_bytes(broker: Broker) -> int:
    return sum(log_of(shard.log.partition).size_bytes for shard in broker.shards)


def payloads(broker: Broker, name: str) -> list[bytes]:
    return [peeked.delivered.message.payload for peeked in broker.queues.peek(name, 1_000)]


@on_a_machine
async def test_a_large_message_to_many_queues_is_written_once_for_each_shard(machine: Machine) -> None:
    broker = machine.broker
    names = await fan(broker, count=60)
    before = log_bytes(broker)
    assert await publish(broker, LARGE) == names
    assert log_bytes(broker) - before < len(broker.shards) * (len(LARGE) + 5_000)
    broker = await machine.again()
    for name in names:
        assert payloads(broker, name) == [LARGE]
        assert broker.queues.describe(name).bytes == len(LARGE)


@on_a_machine
async def test_a_transaction_writes_them_once_too_and_all_queues_or_none_have_them(machine: Machine) -> None:
    broker = machine.broker
    names = await fan(broker, count=60)
    before = log_bytes(broker)
    tx = await broker.transacting.begin("t")
    assert await tx.put_same(names, [Message(LARGE)]) == set(names)
    assert not any(payloads(broker, name) for name in names)
    await tx.end(True)
    assert await tx.put_same(names, [Message(b"undone")]) == set(names)
    await tx.end(False)
    assert log_bytes(broker) - before < len(broker.shards) * (len(LARGE) + 20_000)
    for _ in range(2):
        assert all(payloads(broker, name) == [LARGE] for name in names)
        broker = await machine.again()


@on_a_machine
async def test_what_ends_in_one_queue_is_still_in_the_others(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    first, second, third = await fan(broker, count=3)
    await publish(broker, b"0", b"1")
    async with consumer(broker, first) as inbox:
        await inbox.ack(*inbox.got)
    await broker.queues.purge(second)
    for _ in range(2):
        assert [payloads(broker, name) for name in (first, second, third)] == [[], [], [b"0", b"1"]]
        broker = await machine.again()
    await broker.queues.delete(third)
    assert await publish(broker, b"2") == [first, second]
    broker = await machine.again()
    assert [payloads(broker, name) for name in (first, second)] == [[b"2"], [b"2"]]


@on_a_machine
async def test_every_queue_goes_by_its_own_settings(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    plain, brief, ranked, short, once, full = await fan(
        broker,
        QueueSettings(),
        QueueSettings(ttl_ms=1_000),
        QueueSettings(max_priority=9),
        QueueSettings(max_length=2, overflow="drop-oldest"),
        QueueSettings(dedup_window_ms=DAY_MS),
        QueueSettings(max_length=2, overflow="reject"),
    )
    await publish(broker, b"0", id="a", priority=1)
    await publish(broker, b"1", id="b", priority=5)
    with pytest.raises(Full):
        await publish(broker, b"2", id="a")
    await asyncio.sleep(2)
    for _ in range(2):
        assert payloads(broker, plain) == [b"0", b"1", b"2"]
        assert payloads(broker, brief) == []
        assert payloads(broker, short) == [b"1", b"2"]
        assert payloads(broker, once) == [b"0", b"1"], "the third has an id that was used"
        assert payloads(broker, full) == [b"0", b"1"]
        async with consumer(broker, ranked, credit=1) as inbox:
            assert inbox.payloads == [b"1"]
        broker = await machine.again()


@on_a_machine
async def test_copies_are_counted_once_in_memory_and_leave_it_with_the_last(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    names = await fan(broker, count=20)
    await publish(broker, LARGE)
    (shard,) = broker.shards
    assert shard.bodies.cost < 2 * len(LARGE)
    for name in names:
        assert shard.bodies.cached == 1
        async with consumer(broker, name) as inbox:
            assert inbox.payloads == [LARGE]
            await inbox.ack(*inbox.got)
    assert shard.bodies.cached == 0


@on_a_machine
async def test_a_segment_goes_only_when_no_queue_has_a_copy_in_it(machine: Machine) -> None:
    broker = await machine.anew(shards="1", segment_bytes="20000")
    first, second = await fan(broker, count=2)
    await publish(broker, b"kept", id="k")
    async with consumer(broker, first) as inbox:
        await inbox.ack(*inbox.got)
    (shard,) = broker.shards
    await broker.queues.declare("busy")
    async with consumer(broker, "busy") as inbox:
        for turn in range(40):
            await put(broker, "busy", *[bytes(500)] * 20)
            await asyncio.sleep(0.01)
            await inbox.ack(*inbox.got)
            inbox.feed.credit(len(inbox.got))
            inbox.got.clear()
            if turn % 5 == 4:
                for checkpointer in broker.shards.checkpointers:
                    await checkpointer.run(force=True, forward=True)
    assert log_of(shard.log.partition).start_offset > 0
    broker = await machine.again()
    assert [payloads(broker, name) for name in (first, second)] == [[], [b"kept"]]


@on_a_machine
async def test_the_disk_refuses_and_no_queue_has_them(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    names = await fan(broker, count=3)
    fault = machine.refuse()
    with pytest.raises(Exception, match="No space left"):
        await publish(broker, b"0")
    machine.allow(fault)
    assert [payloads(broker, name) for name in names] == [[]] * 3
    await publish(broker, b"1")
    broker = await machine.again()
    assert [payloads(broker, name) for name in names] == [[b"1"]] * 3


@on_a_machine
async def test_a_publish_of_many_megabytes_to_two_queues_is_several_blocks(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    names = await fan(broker, count=2)
    await publish(broker, b"before")
    sent = [b"%d" % number + bytes(400_000) for number in range(7)]
    await publish(broker, *sent)
    for _ in range(2):
        for name in names:
            assert payloads(broker, name) == [b"before", *sent]
        broker = await machine.again()


def test_a_fan_out_says_what_enqueues_would_say() -> None:
    raw = commands.encode_messages([Message(b"x")])
    stored = commands.decode(commands.encode(FanOut([(4, 0), (9, 17)], 1, 5, True, 1, raw)))
    assert [(each.queue, each.first, each.count) for each in commands.changes_of(stored)] == [(4, 0, 1), (9, 17, 1)]  # type: ignore[union-attr]
