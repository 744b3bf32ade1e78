"""Consumers that go first, that are retired but still have messages in flight, and getters that nobody counts."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import Inbox, Machine, on_a_machine, put
from waystation.errors import Conflict, NotFound, StorageFailed
from waystation.queues.failure_history import failure_history_of
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings

# -- priorities of consumers -------------------------------------------------------------------------------------------


@on_a_machine
async def test_consumers_of_a_higher_priority_are_served_first_while_they_have_credit(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    low = Inbox(broker, "jobs", credit=100)
    high = [Inbox(broker, "jobs", credit=3, priority=5) for _ in range(2)]
    await put(broker, "jobs", *[b"%d" % i for i in range(10)])
    await asyncio.sleep(0.1)
    assert [len(inbox.got) for inbox in high] == [3, 3]
    assert low.payloads == [b"6", b"7", b"8", b"9"]
    high[1].feed.credit(1)
    await put(broker, "jobs", b"next", b"last")
    await asyncio.sleep(0.1)
    assert (high[1].payloads[-1], low.payloads[-1]) == (b"next", b"last")


@on_a_machine
async def test_a_prefetch_that_is_used_up_lets_lower_priorities_have_the_rest(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    high = Inbox(broker, "jobs", prefetch=2, priority=1)
    low = Inbox(broker, "jobs", priority=-7)
    await put(broker, "jobs", *[b"%d" % i for i in range(5)])
    await asyncio.sleep(0.1)
    assert (high.payloads, low.payloads) == ([b"0", b"1"], [b"2", b"3", b"4"])
    await high.ack(*high.got)
    await put(broker, "jobs", b"5")
    await asyncio.sleep(0.1)
    assert high.payloads[-1] == b"5"


@on_a_machine
async def test_equals_take_turns_also_among_others(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    inboxes = [Inbox(broker, "jobs", priority=priority) for priority in (1, 0, 1, 1, 0)]
    for i in range(30):
        await put(broker, "jobs", b"%d" % i)
        await asyncio.sleep(0.01)
    assert [len(inbox.got) for inbox in inboxes] == [10, 0, 10, 10, 0]
    for i in (0, 2, 3):
        inboxes[i].feed.close()
    await asyncio.sleep(0.1)
    assert sorted(len(inbox.got) for inbox in inboxes if not inbox.feed.closed) == [10, 20]


# -- retired consumers -------------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_retired_consumer_gets_no_more_and_settles_what_it_holds(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"a", b"b", b"c")
    inbox = Inbox(broker, "jobs", credit=10)
    await asyncio.sleep(0.1)
    inbox.feed.retire()
    inbox.feed.retire()
    inbox.feed.credit(10)
    await put(broker, "jobs", b"d")
    await asyncio.sleep(0.1)
    assert inbox.payloads == [b"a", b"b", b"c"]
    info = broker.queues.describe("jobs")
    assert (info.consumers, info.held, info.ready) == (0, 3, 1)
    await inbox.ack(inbox.got[0])
    await inbox.settle(Verdict.REJECT, inbox.got[1], delay_ms=0)
    assert inbox.feed.touch([(2, 1)]) == []
    inbox.feed.close()
    assert inbox.ended == []
    other = Inbox(broker, "jobs")
    await asyncio.sleep(0.1)
    assert [(one.message.payload, one.deliveries) for one in other.got] == [(b"b", 2), (b"c", 2), (b"d", 1)]


@on_a_machine
async def test_a_retired_consumer_is_in_nobodys_way(machine: Machine) -> None:
    queues = machine.broker.queues
    await queues.declare("jobs", QueueSettings(single_active=True))
    await put(machine.broker, "jobs", b"a")
    first = Inbox(machine.broker, "jobs")
    second = Inbox(machine.broker, "jobs")
    await asyncio.sleep(0.1)
    await put(machine.broker, "jobs", b"b")
    await asyncio.sleep(0.1)
    assert (first.payloads, second.payloads) == ([b"a", b"b"], [])
    first.feed.retire()
    await put(machine.broker, "jobs", b"c")
    await asyncio.sleep(0.1)
    assert (first.payloads, second.payloads) == ([b"a", b"b"], [b"c"])

    await queues.declare("lonely")
    alone = Inbox(machine.broker, "lonely", exclusive=True)
    with pytest.raises(Conflict):
        Inbox(machine.broker, "lonely")
    alone.feed.retire()
    Inbox(machine.broker, "lonely", exclusive=True)


@on_a_machine
async def test_an_auto_deleted_queue_goes_when_its_last_consumer_retires(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("brief", QueueSettings(auto_delete=True))
    await put(broker, "brief", b"a")
    one, two = Inbox(broker, "brief"), Inbox(broker, "brief")
    await asyncio.sleep(0.1)
    one.feed.retire()
    assert "brief" in broker.queues
    two.feed.retire()
    assert "brief" not in broker.queues
    busy = one if one.got else two
    assert busy.feed.settle(Verdict.ACK, [(0, 1)]).unknown == [(0, 1)]
    assert (one.ended, two.ended) == ([], []), "who retired expects no word"
    await broker.queues.declare("brief", QueueSettings(auto_delete=True))
    one.feed.close()
    assert "brief" in broker.queues, "it is another one"


@on_a_machine
async def test_the_hold_of_a_retired_consumer_runs_out(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(hold_ms=1000))
    await put(broker, "jobs", b"a")
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(0.1)
    inbox.feed.retire()
    await asyncio.sleep(2)
    assert broker.queues.describe("jobs").ready == 1
    assert inbox.feed.settle(Verdict.ACK, [(0, 1)]).unknown == [(0, 1)]


@on_a_machine
async def test_what_a_retired_consumer_holds_can_be_settled_in_a_transaction(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"a", b"b")
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(0.1)
    inbox.feed.retire()
    tx = await broker.transacting.begin("tx")
    await tx.settle(inbox.feed, [(0, 1)])
    await tx.end(commit=True)
    inbox.feed.close()
    assert [one.delivered.message.payload for one in broker.queues.peek("jobs", 10)] == [b"b"]


# -- getters that nobody counts ----------------------------------------------------------------------------------------


@on_a_machine
async def test_a_silent_getter_takes_what_is_there_and_counts_as_nobody(machine: Machine) -> None:
    queues = machine.broker.queues
    await queues.declare("jobs", QueueSettings(auto_delete=True))
    getter = queues.getter("jobs", "me", silent=True)
    assert getter.take(5) == []
    await put(machine.broker, "jobs", b"a", b"b", b"c")
    taken = getter.take(2)
    assert [(one.message.payload, one.deliveries) for one in taken] == [(b"a", 1), (b"b", 1)]
    info = queues.describe("jobs")
    assert (info.consumers, info.ready, info.held) == (0, 1, 2)
    alone = Inbox(machine.broker, "jobs", credit=0, exclusive=True)
    assert [one.message.payload for one in queues.getter("jobs", "other", silent=True).take(9)] == [b"c"]
    getter.settle(Verdict.ACK, [(taken[0].tag, 1)])
    getter.close()
    assert "jobs" in queues, "its last consumer is still there"
    alone.feed.credit(5)
    await asyncio.sleep(0.1)
    assert [(one.message.payload, one.deliveries) for one in alone.got] == [(b"b", 2)]
    with pytest.raises(Conflict):
        await getter.get(1, 0)
    with pytest.raises(Conflict):
        getter.take(1)
    alone.feed.close()
    assert "jobs" not in queues


@on_a_machine
async def test_a_silent_getter_does_not_keep_a_queue_from_being_deleted_but_uses_it(machine: Machine) -> None:
    queues = machine.broker.queues
    await queues.declare("jobs", QueueSettings(expires_ms=1000))
    getter = queues.getter("jobs", "me", silent=True)
    for _ in range(4):
        await asyncio.sleep(0.7)
        getter.take(1)
    assert "jobs" in queues
    await asyncio.sleep(1.5)
    assert "jobs" not in queues
    with pytest.raises(Conflict, match="was deleted"):
        getter.take(1)
    await queues.declare("other")
    queues.getter("other", "me", silent=True)
    assert await queues.delete("other", if_unused=True) == 0
    with pytest.raises(NotFound):
        queues.getter("other", "me", silent=True)


@on_a_machine
async def test_a_silent_getter_takes_from_a_queue_with_one_active_consumer_and_is_never_it(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(single_active=True))
    await put(broker, "jobs", b"a", b"b")
    getter = broker.queues.getter("jobs", "me", silent=True)
    assert [one.message.payload for one in getter.take(1)] == [b"a"]
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(0.1)
    assert inbox.payloads == [b"b"]


@on_a_machine
async def test_taking_lets_time_pass_first_and_sets_its_own_end(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(hold_ms=500))
    await put(broker, "jobs", b"old", ttl_ms=100)
    await put(broker, "jobs", b"late", delay_ms=100)
    getter = broker.queues.getter("jobs", "me", silent=True)
    await asyncio.sleep(0.2)
    assert [one.message.payload for one in getter.take(5)] == [b"late"]
    await asyncio.sleep(1)
    assert [(one.message.payload, one.deliveries) for one in getter.take(5)] == [(b"late", 2)]


@on_a_machine
async def test_an_auto_acked_take_that_the_disk_refuses_leaves_everything_where_it_was(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_deliveries=1))
    await put(broker, "jobs", b"a")
    getter = broker.queues.getter("jobs", "me", auto_ack=True, silent=True)
    fault = machine.refuse()
    with pytest.raises(StorageFailed):
        getter.take(1)
    machine.allow(fault)
    assert broker.queues.describe("jobs").ready == 1
    assert [one.message.payload for one in getter.take(1)] == [b"a"]
    assert (broker.queues.describe("jobs").ready, broker.queues.describe("jobs").held) == (0, 0)
    broker = await machine.again()
    assert broker.queues.peek("jobs", 10) == []


# -- places and counts -------------------------------------------------------------------------------------------------


@on_a_machine
async def test_what_comes_back_keeps_its_place_and_counts_its_deliveries(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", *[b"%d" % i for i in range(6)])
    inbox = Inbox(broker, "jobs", credit=4)
    await asyncio.sleep(0.1)
    await inbox.settle(Verdict.REJECT, inbox.got[2], delay_ms=0)
    await inbox.settle(Verdict.RELEASE, inbox.got[1])
    info = broker.queues.describe("jobs")
    assert (info.ready, info.held) == (4, 2)
    assert await broker.queues.purge("jobs") == 4
    assert (broker.queues.describe("jobs").ready, broker.queues.describe("jobs").held) == (0, 2)
    inbox.feed.close()
    assert broker.queues.describe("jobs").ready == 2
    await put(broker, "jobs", b"new")
    other = Inbox(broker, "jobs")
    await asyncio.sleep(0.1)
    assert [(one.message.payload, one.deliveries) for one in other.got] == [(b"0", 2), (b"3", 2), (b"new", 1)]


@on_a_machine
async def test_what_was_in_hands_for_the_last_time_when_the_broker_ended_is_dead(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_deliveries=2, dead_letter="dead"))
    await put(broker, "jobs", b"a", b"b", b"c")
    await put(broker, "jobs", b"own", max_deliveries=1)
    first = Inbox(broker, "jobs", credit=1)
    await asyncio.sleep(0.1)
    await first.settle(Verdict.REJECT, *first.got, delay_ms=0)
    first.feed.credit(2)
    await asyncio.sleep(0.1)
    Inbox(broker, "jobs", credit=2)
    await asyncio.sleep(0.1)
    broker = await machine.again()
    await asyncio.sleep(1)
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(0.1)
    assert [(one.message.payload, one.deliveries) for one in inbox.got] == [(b"b", 2), (b"c", 2)]
    letters = [one.delivered.message for one in broker.queues.peek("dead", 10)]
    assert [
        (one.payload, failure_history_of(one)[0]["reason"], failure_history_of(one)[0]["deliveries"]) for one in letters
    ] == [
        (b"a", "delivery-limit", 2),
        (b"own", "delivery-limit", 1),
    ]
