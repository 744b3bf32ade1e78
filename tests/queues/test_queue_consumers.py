"""Consumers of queues that fail, give up, share and take turns."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import Inbox, Machine, consumer, on_a_machine, put
from waystation.errors import Conflict, NotFound, Unavailable, WaystationError
from waystation.message import Delivered, Message
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings


@on_a_machine
async def test_a_consumer_that_cannot_be_given_anything_goes_and_others_get_it(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    ended: list[WaystationError] = []

    def broken(got: list[Delivered]) -> None:
        raise KeyError("a mistake of ours")

    feed = broker.queues.open_feed("jobs", "broken", broken, on_end=ended.append)
    feed.credit(10)
    good = Inbox(broker, "jobs")
    await put(broker, "jobs", *[b"%d" % i for i in range(10)])
    await asyncio.sleep(0.1)
    assert isinstance(ended[0], Unavailable)
    assert sorted(good.payloads) == [b"%d" % i for i in range(10)]


@on_a_machine
async def test_a_hold_can_be_made_shorter(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(hold_ms=60_000))
    await put(broker, "jobs", b"one")
    inbox = Inbox(broker, "jobs", credit=1)
    await asyncio.sleep(0.1)
    assert inbox.feed.touch([(0, 1)], 1000) == []
    await asyncio.sleep(1.5)
    assert broker.queues.describe("jobs").held == 0


@on_a_machine
async def test_whoever_stops_waiting_gives_back_what_came_in_that_moment(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    getter = broker.queues.getter("jobs", "me")
    waiting = asyncio.ensure_future(getter.get(5, 10_000))
    await asyncio.sleep(1)
    broker.queues.put("jobs", [Message(b"one")])
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(0.1)
    assert (broker.queues.describe("jobs").held, broker.queues.describe("jobs").ready) == (0, 1)
    assert [one.message.payload for one in await getter.get(1, 0)] == [b"one"]


@on_a_machine
async def test_several_may_wait_with_one_getter_and_each_gets_its_own(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    getter = broker.queues.getter("jobs", "me")
    waiting = [asyncio.ensure_future(getter.get(2, 5_000)) for _ in range(4)]
    await asyncio.sleep(1)
    await put(broker, "jobs", *[b"%d" % i for i in range(5)])
    answers = [await one for one in waiting]
    assert sorted(one.message.payload for answer in answers for one in answer) == [b"%d" % i for i in range(5)]
    assert all(len(answer) <= 2 for answer in answers)
    await put(broker, "jobs", b"more")
    assert broker.queues.describe("jobs").ready == 1, "nobody waits any more"
    waiting = [asyncio.ensure_future(getter.get(1, 60_000)) for _ in range(2)]
    await asyncio.sleep(1)
    await broker.queues.delete("jobs")
    with pytest.raises(NotFound):
        await waiting[1]
    with pytest.raises(Conflict):
        await getter.get(1, 0)
    await asyncio.wait(waiting)


@on_a_machine
async def test_a_getter_that_holds_nothing_lets_another_be_the_active_one(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(single_active=True))
    getter = broker.queues.getter("jobs", "me")
    assert await getter.get(1, 100) == []
    inbox = Inbox(broker, "jobs", credit=1)
    await put(broker, "jobs", b"0", b"1")
    await asyncio.sleep(0.1)
    assert inbox.payloads == [b"0"]
    assert await getter.get(1, 100) == [], "now it is the other one's turn"
    inbox.feed.close()
    assert [one.message.payload for one in await getter.get(2, 100)] == [b"0", b"1"]


@on_a_machine
async def test_ready_messages_behind_a_deep_backlog_of_one_consumer_reach_the_others(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    for _ in range(20):
        broker.queues.put("jobs", [Message(b"x")] * 1000)
    greedy, modest = Inbox(broker, "jobs", credit=1_000_000), Inbox(broker, "jobs", credit=100)
    await asyncio.sleep(0.1)
    assert (len(greedy.got), len(modest.got)) == (19_900, 100)


@on_a_machine
async def test_a_settled_or_closed_consumer_changes_nothing_any_more(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"0", b"1")
    async with consumer(broker, "jobs") as inbox:
        await inbox.ack(inbox.got[0])
        assert inbox.feed.settle(Verdict.ACK, [(0, 1)]).unknown == [(0, 1)]
    assert inbox.feed.settle(Verdict.ACK, [(1, 1)]).unknown == [(1, 1)]
    assert inbox.feed.touch([(1, 1)]) == [(1, 1)]
    inbox.feed.close()
    assert broker.queues.describe("jobs").ready == 1


@on_a_machine
async def test_a_queue_does_not_expire_while_somebody_waits_at_it(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("short", QueueSettings(expires_ms=2_000))
    getter = broker.queues.getter("short", "me")
    assert await getter.get(1, 10_000) == []
    assert "short" in broker.queues
    getter.close()
    await asyncio.sleep(1.9)
    assert "short" in broker.queues
    await asyncio.sleep(0.2)
    assert "short" not in broker.queues


@on_a_machine
async def test_a_message_that_expires_in_somebodys_hands_is_theirs_to_finish(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(dead_letter="dead", hold_ms=60_000))
    await put(broker, "jobs", b"acked", b"released", ttl_ms=1000)
    async with consumer(broker, "jobs") as inbox:
        await asyncio.sleep(5)
        await inbox.ack(inbox.got[0])
        await inbox.settle(Verdict.RELEASE, inbox.got[1])
        await asyncio.sleep(1)
        assert inbox.payloads == [b"acked", b"released"]
    assert [one.delivered.message.payload for one in broker.queues.peek("dead", 5)] == [b"released"]
    assert broker.queues.describe("jobs").bytes == 0


@on_a_machine
async def test_an_ack_that_the_disk_refused_may_be_repeated_when_there_is_room(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"0", b"1")
    async with consumer(broker, "jobs") as inbox:
        fault = machine.refuse()
        with pytest.raises(WaystationError):
            inbox.feed.settle(Verdict.ACK, [(0, 1)])
        machine.allow(fault)
        await inbox.ack(inbox.got[1])
        await inbox.ack(inbox.got[0])
    await broker.stop()
    for path in machine.disk.content():
        if path.endswith(".queues"):
            machine.disk.remove(path)  # the log alone has to say it
    assert (await machine.start()).queues.peek("jobs", 5) == []
