"""Messages for topics that wait in the broker until they are due: each comes once, never early, whatever happens."""

from __future__ import annotations

import asyncio

from tests.broker.queue_kit import Machine, on_a_machine
from waystation.broker.broker import Broker
from waystation.message import Message
from waystation.queues.delayed import QUEUE as WAITING


async def _publish(broker: Broker, topic: str, *messages: Message) -> None:
    await broker.messages.ensure(topic)
    await broker.durable(*broker.messages.publish(topic, messages).receipts)


def _there(broker: Broker, topic: str) -> list[bytes]:
    return [delivered.message.payload for delivered in broker.messages.history(topic, 10_000)]


@on_a_machine
async def test_each_comes_when_it_is_due_also_after_a_restart(machine: Machine) -> None:
    message = Message(b"one", id="x", key=b"k", headers={"a": "b"}, delay_ms=60_000, priority=3, max_deliveries=2)
    await _publish(machine.broker, "later", message, Message(b"now"), Message(b"two", delay_ms=1000))
    assert _there(machine.broker, "later") == [b"now"]
    broker = await machine.again()
    await asyncio.sleep(59)
    assert _there(broker, "later") == [b"now", b"two"]
    await asyncio.sleep(2)
    (*_, last) = broker.messages.history("later", 5)
    found = last.message
    assert (found.payload, found.id, found.key, found.headers["a"]) == (b"one", "x", b"k", "b")
    assert (found.priority, found.max_deliveries, found.delay_ms, found.deliver_at_ms) == (3, 2, 0, None)
    assert len(broker.queues.peek(WAITING, 5)) == 0


@on_a_machine
async def test_a_disk_that_refuses_for_a_while_loses_none_however_seldom_it_may_be_delivered(machine: Machine) -> None:
    broker = machine.broker
    messages = [Message(b"%d" % i, delay_ms=1000, max_deliveries=1) for i in range(20)]
    await _publish(broker, "later", *messages)
    faults = [machine.refuse(path_part="later"), machine.refuse()]
    await asyncio.sleep(30)
    assert _there(broker, "later") == []
    machine.allow(*faults)
    await asyncio.sleep(30)
    assert sorted(_there(broker, "later"), key=int) == [b"%d" % i for i in range(20)]
    assert (await machine.again()).queues.describe(WAITING).parked == 0


@on_a_machine
async def test_one_that_its_topic_does_not_take_waits_and_keeps_no_other_waiting(machine: Machine) -> None:
    broker = machine.broker
    await _publish(broker, "later", Message(bytes(5000), delay_ms=1000), Message(b"small", delay_ms=1000))
    await broker.topics.alter("later", {"max.message.bytes": "1000"})
    await asyncio.sleep(10)
    assert _there(broker, "later") == [b"small"]
    await broker.topics.alter("later", {"max.message.bytes": "100000"})
    await asyncio.sleep(100)
    assert _there(broker, "later") == [b"small", bytes(5000)]


@on_a_machine
async def test_one_whose_topic_is_gone_is_dropped(machine: Machine) -> None:
    broker = machine.broker
    await _publish(broker, "later", Message(b"one", delay_ms=1000))
    await _publish(broker, "other", Message(b"two", delay_ms=1000))
    await broker.topics.delete("later")
    await asyncio.sleep(5)
    assert _there(broker, "other") == [b"two"]
    assert len(broker.queues.peek(WAITING, 5)) == 0


@on_a_machine
async def test_a_mistake_does_not_end_the_task(machine: Machine) -> None:
    broker = machine.broker
    begin = broker.transacting.begin

    async def broken(*_: object, **__: object) -> None:
        raise KeyError("a mistake of ours")

    broker.transacting.begin = broken  # type: ignore[assignment,method-assign]
    await _publish(broker, "later", Message(b"one", delay_ms=1000))
    await asyncio.sleep(5)
    broker.transacting.begin = begin  # type: ignore[method-assign]
    await asyncio.sleep(5)
    assert _there(broker, "later") == [b"one"]


@on_a_machine
async def test_many_that_are_due_at_once_all_come(machine: Machine) -> None:
    broker = machine.broker
    due = machine.now_ms + 10_000
    for start in range(0, 3000, 500):
        await _publish(broker, "later", *[Message(b"%d" % i, deliver_at_ms=due) for i in range(start, start + 500)])
    await asyncio.sleep(60)
    assert sorted(_there(broker, "later"), key=int) == [b"%d" % i for i in range(3000)]
