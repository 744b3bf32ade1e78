"""Transactions over queues: what others see of them, what they see of others, and how they end when things go wrong."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import Inbox, Machine, consumer, on_a_machine, put
from tests.simulation.faults import Fault
from waystation.broker.broker import Broker
from waystation.errors import Conflict, Full, NotLeader, StorageFailed, WaystationError
from waystation.message import Message
from waystation.queues.redriving import Redrive
from waystation.queues.settings import QueueSettings
from waystation.transactions.transacting import Tx


def _payloads(broker: Broker, queue: str) -> list[bytes]:
    return [peeked.delivered.message.payload for peeked in broker.queues.peek(queue, 10_000)]


@on_a_machine
async def test_an_ack_of_something_not_in_flight_leaves_the_rest_in_flight(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("in")
    await put(broker, "in", b"0", b"1", b"2")
    inbox = Inbox(broker, "in", credit=2)
    await asyncio.sleep(0.01)
    tx = await broker.transacting.begin("t")
    with pytest.raises(Conflict, match="not in flight"):
        await tx.settle(inbox.feed, [(0, 3)])
    assert broker.queues.describe("in").held == 2
    await inbox.ack(*inbox.got)
    await tx.end(False)
    assert _payloads(broker, "in") == [b"2"]


@on_a_machine
async def test_an_end_that_the_disk_refused_is_not_taken_for_done_when_it_is_asked_again(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("out")
    tx = await broker.transacting.begin("t")
    await tx.put("out", [Message(b"one")])
    fault = machine.disk.inject(Fault("write", "__transaction_state", 28, times=1_000_000))
    with pytest.raises(WaystationError):
        await tx.end(True)
    machine.allow(fault)
    for _ in range(100):
        try:
            await tx.end(True)
            break
        except WaystationError:
            await asyncio.sleep(0.5)
    assert _payloads(broker, "out") == [b"one"]
    assert _payloads(await machine.again(), "out") == [b"one"]


@on_a_machine
async def test_undoing_is_possible_when_nothing_could_be_begun(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("out")
    for commit_first in (False, True):
        tx = await broker.transacting.begin("t")
        if commit_first:
            await tx.put("out", [Message(b"one")])
            await tx.end(True)
        fault = machine.disk.inject(Fault("write", "__transaction_state", 28, times=1_000_000))
        with pytest.raises(WaystationError):
            await tx.put("out", [Message(b"two")])
        machine.allow(fault)
        await asyncio.sleep(1)
        await tx.end(False)
        assert _payloads(broker, "out") == [b"one"] * commit_first


@on_a_machine
async def test_a_refused_take_leaves_what_was_held_in_reach(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("in")
    await put(broker, "in", b"0")
    inbox = Inbox(broker, "in", credit=1)
    await asyncio.sleep(0.2)
    tx = await broker.transacting.begin("t")
    fault = machine.refuse()
    with pytest.raises(StorageFailed):
        await tx.settle(inbox.feed, [(0, 1)])
    machine.allow(fault)
    await tx.end(False)
    async with consumer(broker, "in") as other:
        assert inbox.payloads + other.payloads == [b"0", b"0"]


@on_a_machine
async def test_the_bounds_of_a_queue_hold_for_what_transactions_will_put(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("small", QueueSettings(max_length=3))
    first, second = await broker.transacting.begin("a"), await broker.transacting.begin("b")
    await first.put("small", [Message(b"0")])
    await first.put("small", [Message(b"1")])
    with pytest.raises(Full):
        await second.put("small", [Message(b"x"), Message(b"y")])
    await second.put("small", [Message(b"2")])
    with pytest.raises(Full):
        await put(broker, "small", b"z")
    waiting = asyncio.ensure_future(broker.queues.put_durable("small", [Message(b"3")], wait_ms=5_000))
    await asyncio.sleep(1)
    await first.end(True)
    await second.end(False)  # and so there is room
    assert (await waiting).count == 1
    broker = await machine.again()
    assert sorted(_payloads(broker, "small")) == [b"0", b"1", b"3"]
    with pytest.raises(Full):
        await put(broker, "small", b"z")


@on_a_machine
async def test_ids_are_used_once_whatever_way_they_come(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("once", QueueSettings(dedup_window_ms=60_000))
    first, second = await broker.transacting.begin("a"), await broker.transacting.begin("b")
    await first.put("once", [Message(b"first", id="x"), Message(b"other", id="y")])
    await first.put("once", [Message(b"twice", id="y")])
    await second.put("once", [Message(b"second", id="x"), Message(b"plain")])
    await put(broker, "once", b"third", id="z")
    undone = await broker.transacting.begin("c")
    await undone.put("once", [Message(b"undone", id="u")])
    await undone.end(False)
    await first.end(True)
    await second.end(True)
    assert (await broker.queues.put_durable("once", [Message(b"x", id="x")])).count == 0
    await put(broker, "once", b"again", id="u")
    expected = [b"third", b"first", b"other", b"plain", b"again"]
    assert _payloads(broker, "once") == expected
    assert broker.queues.describe("once").bytes == sum(map(len, expected))
    broker = await machine.again()
    assert _payloads(broker, "once") == expected
    await put(broker, "once", b"end")
    await broker.shards.checkpoint(force=True)
    assert _payloads(await machine.again(), "once") == [*expected, b"end"]


@on_a_machine
async def test_a_queue_that_is_altered_or_deleted_meanwhile_takes_what_its_present_settings_say(
    machine: Machine,
) -> None:
    broker = machine.broker
    for name in ("a", "b"):
        await broker.queues.declare(name)
    tx = await broker.transacting.begin("t")
    await tx.put("a", [Message(b"%d" % i) for i in range(4)])
    await tx.put("b", [Message(b"lost")])
    await broker.queues.declare("a", QueueSettings(max_length=2, overflow="drop-oldest", ttl_ms=5_000), alter=True)
    await broker.queues.delete("b")
    await broker.queues.declare("b")
    await tx.end(True)
    assert (_payloads(broker, "a"), _payloads(broker, "b")) == ([b"2", b"3"], [])
    broker = await machine.again()
    assert (_payloads(broker, "a"), _payloads(broker, "b")) == ([b"2", b"3"], [])
    await asyncio.sleep(6)
    assert _payloads(broker, "a") == [], "its time to live counts for them, too"


@on_a_machine
async def test_what_a_transaction_took_counts_as_acked_and_what_died_does_not(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("in", QueueSettings(dead_letter="dead"))
    await put(broker, "in", b"0", b"1")
    await put(broker, "in", b"2", ttl_ms=10)
    inbox = Inbox(broker, "in", credit=1)
    tx = await broker.transacting.begin("t")
    await asyncio.sleep(2)
    await tx.settle(inbox.feed, [(0, 1)])
    await tx.end(True)
    info = broker.queues.describe("in")
    assert (info.acked, info.dead, info.ready, info.bytes) == (1, 1, 1, 1)


@on_a_machine
async def test_messages_whose_redrive_could_not_be_committed_are_ready_at_once(machine: Machine) -> None:
    """In a cluster, where a partition has got another leader meanwhile."""
    broker = machine.broker
    for name in ("jobs", "dead"):
        await broker.queues.declare(name)
    await put(broker, "dead", b"0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tx, "_until_replicated", _another_leads)
        with pytest.raises(NotLeader):
            await broker.dead_letters.redriving.redrive("dead", Redrive(to="jobs"), lambda _: True)
    described = broker.queues.describe("dead")
    assert (described.ready, described.held) == (1, 0)


async def _another_leads(_: Tx) -> None:
    raise NotLeader("another node leads it")
