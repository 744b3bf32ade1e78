"""Full queues that refuse single messages, and make dead letters of what they refuse; and queues that do not last."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import Inbox, Machine, on_a_machine, put
from waystation.broker.broker import Broker
from waystation.errors import Full, Invalid, StorageFailed
from waystation.message import Message
from waystation.queues.failure_history import failure_history_of
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings, check_settings
from waystation.queues.shard import shard as shard_module


def _payloads(broker: Broker, queue: str) -> list[bytes]:
    return [peeked.delivered.message.payload for peeked in broker.queues.peek(queue, 10_000)]


def _messages(count: int, size: int = 1) -> list[Message]:
    return [Message(b"%d" % i + bytes(size - 1)) for i in range(count)]


@on_a_machine
async def test_single_messages_are_refused_and_the_rest_is_kept(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_length=5))
    result = broker.queues.put_each("jobs", _messages(3))
    assert result.refused == []
    result = broker.queues.put_each("jobs", _messages(8))
    assert result.refused == [2, 3, 4, 5, 6, 7]
    await broker.durable(result.receipt)
    nothing = broker.queues.put_each("jobs", _messages(2))
    assert (nothing.receipt, nothing.refused) == (None, [0, 1])
    broker = await machine.again()
    assert _payloads(broker, "jobs") == [b"0", b"1", b"2", b"0", b"1"]


@on_a_machine
async def test_a_small_message_fits_where_a_large_one_does_not(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_bytes=10))
    messages = [Message(b"a" * 6), Message(b"b" * 6), Message(b"c"), Message(b"d" * 4), Message(b"e" * 3)]
    assert broker.queues.put_each("jobs", messages).refused == [1, 3]
    assert [payload[:1] for payload in _payloads(broker, "jobs")] == [b"a", b"c", b"e"]


@on_a_machine
async def test_a_queue_that_drops_the_oldest_takes_more_than_it_can_hold_one_by_one(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("last", QueueSettings(max_length=3, overflow="drop-oldest"))
    assert broker.queues.put_each("last", _messages(50)).refused == []
    assert _payloads(broker, "last") == [b"47", b"48", b"49"]
    await broker.queues.declare("kept", QueueSettings(max_length=3, overflow="dead-letter", dead_letter="dead"))
    assert broker.queues.put_each("kept", _messages(50)).refused == []
    await asyncio.sleep(1)
    assert _payloads(broker, "kept") == [b"47", b"48", b"49"]
    assert _payloads(broker, "dead") == [b"%d" % i for i in range(47)]


@on_a_machine
async def test_duplicates_need_no_room_and_bad_messages_are_nobodys_refusal(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("once", QueueSettings(max_length=2, dedup_window_ms=60_000))
    a, b, c = (Message(name.encode(), id=name) for name in "abc")
    assert broker.queues.put_each("once", [a, a, b, a, c, b]).refused == [4]
    assert _payloads(broker, "once") == [b"a", b"b"]
    with pytest.raises(Invalid, match="priority"):
        broker.queues.put_each("once", [c, Message(b"", priority=256)])
    assert broker.queues.put_each("once", [c]).refused == [0], "what was refused has not used its id"


@on_a_machine
async def test_a_disk_that_refuses_is_no_full_queue(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_length=5))
    fault = machine.refuse()
    with pytest.raises(StorageFailed):
        broker.queues.put_each("jobs", _messages(3))
    machine.allow(fault)
    assert broker.queues.put_each("jobs", _messages(3)).refused == []


# -- refused, and dead letters -----------------------------------------------------------------------------------------


@on_a_machine
async def test_what_is_refused_becomes_a_dead_letter_and_the_sender_is_told(machine: Machine) -> None:
    broker = machine.broker
    settings = QueueSettings(
        max_length=2, overflow="reject-dead-letter", dead_letter="dead", dedup_window_ms=60_000, max_bytes=1000
    )
    await broker.queues.declare("jobs", settings)
    with pytest.raises(Full):
        broker.queues.put("jobs", [Message(b"x", id="x"), Message(b"y", priority=3), Message(b"z", delay_ms=9_000)])
    await asyncio.sleep(1)
    assert _payloads(broker, "dead") == [b"x", b"y", b"z"]
    (death,) = failure_history_of(broker.queues.peek("dead", 1)[0].delivered.message)
    assert (death["reason"], death["queue"], death["deliveries"]) == ("overflow", "jobs", 0)
    info = broker.queues.describe("jobs")
    assert (info.ready, info.parked, info.bytes, info.put, info.dead) == (0, 0, 0, 0, 3)
    result = broker.queues.put_each("jobs", [Message(b"x", id="x"), Message(b"y"), Message(b"z"), Message(b"w")])
    assert result.refused == [2, 3], "an id that was refused is not used"
    await asyncio.sleep(1)
    assert _payloads(broker, "dead") == [b"x", b"y", b"z", b"z", b"w"]
    broker = await machine.again()
    assert (_payloads(broker, "jobs"), len(_payloads(broker, "dead"))) == ([b"x", b"y"], 5)
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(0.1)
    await inbox.ack(*inbox.got)
    assert broker.queues.put_each("jobs", _messages(2)).refused == []


@on_a_machine
async def test_dead_letters_that_wait_take_no_room_from_the_living_but_are_not_endless(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("dead", QueueSettings(max_length=1))
    await put(broker, "dead", b"there")
    await broker.queues.declare("jobs", QueueSettings(max_length=2, overflow="reject-dead-letter", dead_letter="dead"))
    assert broker.queues.put_each("jobs", _messages(6)).refused == [2, 3, 4, 5]
    await asyncio.sleep(5)
    inbox = Inbox(broker, "jobs", credit=1)
    await asyncio.sleep(0.1)
    await inbox.ack(*inbox.got)
    assert broker.queues.put_each("jobs", _messages(2)).refused == [1], "the dead that wait are not counted"
    most = shard_module.MAX_REFUSED_DEAD
    try:
        shard_module.MAX_REFUSED_DEAD = 6
        assert broker.queues.put_each("jobs", _messages(5)).refused == [0, 1, 2, 3, 4]
        assert len(broker.queues.peek("jobs", 100, state="leaving")) == 5
    finally:
        shard_module.MAX_REFUSED_DEAD = most
    broker = await machine.again()
    assert len(broker.queues.peek("jobs", 100, state="leaving")) == 5
    await broker.queues.declare("dead", QueueSettings(), alter=True)
    await asyncio.sleep(60)
    assert len(_payloads(broker, "dead")) == 6


@on_a_machine
async def test_who_waits_for_room_is_a_dead_letter_only_when_the_wait_was_in_vain(machine: Machine) -> None:
    broker = machine.broker
    settings = QueueSettings(max_length=1, overflow="reject-dead-letter", dead_letter="dead")
    await broker.queues.declare("jobs", settings)
    await put(broker, "jobs", b"first")
    waiting = asyncio.ensure_future(broker.queues.put_durable("jobs", [Message(b"patient")], wait_ms=5_000))
    await asyncio.sleep(1)
    await broker.queues.purge("jobs")
    await waiting
    assert _payloads(broker, "jobs") == [b"patient"]
    with pytest.raises(Full):
        await broker.queues.put_durable("jobs", [Message(b"in vain")], wait_ms=1_000)
    await asyncio.sleep(1)
    assert _payloads(broker, "dead") == [b"in vain"]


@on_a_machine
async def test_without_a_target_or_in_a_transaction_a_refusal_is_a_refusal(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_length=1, overflow="reject-dead-letter"))
    assert broker.queues.put_each("jobs", _messages(2)).refused == [1]
    settings = QueueSettings(max_length=1, overflow="reject-dead-letter", dead_letter="dead")
    await broker.queues.declare("jobs", settings, alter=True)
    tx = await broker.transacting.begin("tx")
    with pytest.raises(Full):
        await tx.put("jobs", _messages(1))
    await tx.end(commit=False)
    await asyncio.sleep(1)
    assert "dead" not in broker.queues


@on_a_machine
async def test_a_disk_that_refuses_a_refused_message_changes_nothing(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_length=1, overflow="reject-dead-letter", dead_letter="dead"))
    await put(broker, "jobs", b"there")
    fault = machine.refuse()
    with pytest.raises(Full):
        broker.queues.put("jobs", [Message(b"lost")])
    machine.allow(fault)
    await asyncio.sleep(1)
    assert "dead" not in broker.queues
    broker = await machine.again()
    assert _payloads(broker, "jobs") == [b"there"]


# -- queues that do not last -------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_queue_that_is_not_durable_goes_with_the_broker(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("gone", QueueSettings(durable=False, dead_letter="dead", ttl_ms=1))
    await broker.queues.declare("kept")
    await broker.routing.bind("amq.fanout", "queue:gone")
    await broker.routing.bind("amq.fanout", "queue:kept")
    await put(broker, "gone", b"a")
    await put(broker, "kept", b"b")
    broker = await machine.again()
    assert "gone" not in broker.queues
    assert [target for _, target, _, _ in broker.routing.listing().bindings] == ["queue:kept"]
    assert _payloads(broker, "kept") == [b"b"]
    await broker.queues.declare("gone", QueueSettings(durable=False))
    broker = await machine.again()
    await broker.queues.declare("gone")
    assert _payloads(broker, "gone") == []


# -- priorities that a queue tells apart -------------------------------------------------------------------------------


@on_a_machine
async def test_a_queue_tells_as_many_priorities_apart_as_it_says(machine: Machine) -> None:
    broker = machine.broker
    order = {
        0: [0, 1, 2, 9, 10, 15, 16, 100, 255],
        2: [2, 9, 10, 15, 16, 100, 255, 1, 0],
        9: [9, 10, 15, 16, 100, 255, 2, 1, 0],
        15: [15, 16, 100, 255, 10, 9, 2, 1, 0],
        99: [100, 255, 16, 15, 10, 9, 2, 1, 0],
        255: [255, 100, 16, 15, 10, 9, 2, 1, 0],
    }
    for highest, expected in order.items():
        await broker.queues.declare(f"q{highest}", QueueSettings(max_priority=highest))
        for priority in sorted(order[0]):
            await put(broker, f"q{highest}", b"%d" % priority, priority=priority)
        if highest in (2, 15, 99, 255):
            broker = await machine.again()
        inbox = Inbox(broker, f"q{highest}", credit=100)
        await asyncio.sleep(0.1)
        assert [int(payload) for payload in inbox.payloads] == expected, highest
        assert [one.message.priority for one in inbox.got] == expected
        await inbox.settle(Verdict.RELEASE, *inbox.got)
        await asyncio.sleep(0.1)
        assert [int(payload) for payload in inbox.payloads] == expected * 2
        inbox.feed.close()


@on_a_machine
async def test_what_was_put_before_a_change_keeps_its_level(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_priority=0))
    await put(broker, "jobs", b"old", priority=200)
    await broker.queues.declare("jobs", QueueSettings(max_priority=20), alter=True)
    await put(broker, "jobs", b"low", priority=1)
    await put(broker, "jobs", b"high", priority=30)
    await put(broker, "jobs", b"middle", priority=10)
    broker = await machine.again()
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(0.1)
    assert inbox.payloads == [b"high", b"middle", b"low", b"old"]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (QueueSettings(max_priority=-1), "max_priority"),
        (QueueSettings(max_priority=256), "max_priority"),
        (QueueSettings(overflow="dead-letter"), "overflow"),
        (QueueSettings(dead_letter="a", dead_letter_exchange="b"), "dead_letter_exchange"),
        (QueueSettings(dead_letter_key="b"), "dead_letter_key"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: QueueSettings, field: str) -> None:
    with pytest.raises(Invalid, match=f"^{field}"):
        check_settings(settings)
    check_settings(QueueSettings(overflow="dead-letter", dead_letter_exchange="", dead_letter_key="x"))
