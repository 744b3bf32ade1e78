"""Queues in the heart, under virtual time: what every protocol builds on.

Each test runs a whole broker on a simulated disk; `again()` stops it and starts it anew on the same disk, so that most
promises are also seen to survive.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import DAY_MS, HOUR_MS, ROOT, Inbox, Machine, consumer, on_a_machine, put
from waystation.broker.broker import Broker
from waystation.catalog.memory import MemoryCatalog
from waystation.config import BrokerSettings
from waystation.errors import Conflict, Full, Invalid, NotAllowed, NotFound, TooLarge
from waystation.message import Delivered, Message
from waystation.queues.failure_history import failure_history_of
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.topics.partitions.partition import log_of

# -- coming and going --------------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_queue_and_its_messages_survive_a_restart(machine: Machine) -> None:
    settings = QueueSettings(max_deliveries=3, dead_letter="dead")
    await machine.broker.queues.declare("jobs", settings)
    await put(machine.broker, "jobs", b"one", b"two")
    broker = await machine.again()
    info = broker.queues.describe("jobs")
    assert (info.ready, info.bytes, info.settings) == (2, 6, settings)
    async with consumer(broker, "jobs") as inbox:
        assert inbox.payloads == [b"one", b"two"]
        await inbox.ack(inbox.got[0])
    broker = await machine.again()
    async with consumer(broker, "jobs") as inbox:
        assert inbox.payloads == [b"two"]
        assert inbox.got[0].deliveries == 2


@on_a_machine
async def test_declaring_differently_is_a_conflict_that_says_what_differs(machine: Machine) -> None:
    queues = machine.broker.queues
    await queues.declare("jobs", QueueSettings(max_length=5))
    await queues.declare("jobs", QueueSettings(max_length=5))
    await queues.declare("jobs")
    with pytest.raises(Conflict, match="max_length is 5, not 6"):
        await queues.declare("jobs", QueueSettings(max_length=6))
    await queues.declare("jobs", QueueSettings(max_length=6), alter=True)
    assert (await machine.again()).queues.describe("jobs").settings.max_length == 6


@on_a_machine
async def test_an_unknown_queue_is_not_found(machine: Machine) -> None:
    await machine.broker.queues.declare("invoices")
    with pytest.raises(NotFound, match=r"^there is no queue 'invoice'$") as caught:
        machine.broker.queues.put("invoice", [Message(b"")])
    assert (caught.value.kind, caught.value.name) == ("queue", "invoice")
    with pytest.raises(NotFound):
        await machine.broker.queues.declare("other", passive=True)


@on_a_machine
async def test_a_deleted_queue_ends_its_consumers_and_stays_deleted(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    await put(machine.broker, "jobs", b"one")
    inbox = Inbox(machine.broker, "jobs")
    with pytest.raises(Conflict):
        await machine.broker.queues.delete("jobs", if_unused=True)
    with pytest.raises(Conflict):
        await machine.broker.queues.delete("jobs", if_empty=True)
    assert await machine.broker.queues.delete("jobs") == 1
    assert isinstance(inbox.ended[0], NotFound)
    await machine.broker.queues.declare("jobs")
    broker = await machine.again()
    assert len(broker.queues.peek("jobs", 10)) == 0


@on_a_machine
async def test_purging_leaves_what_is_in_flight(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    await put(machine.broker, "jobs", b"one", b"two", b"three")
    await put(machine.broker, "jobs", b"later", delay_ms=1000)
    async with consumer(machine.broker, "jobs", credit=1):
        assert await machine.broker.queues.purge("jobs") == 3
        assert machine.broker.queues.describe("jobs").held == 1
    assert (await machine.again()).queues.describe("jobs").ready == 1


@on_a_machine
async def test_exclusive_auto_deleted_and_expiring_queues_go(machine: Machine) -> None:
    queues = machine.broker.queues
    await queues.declare("mine", QueueSettings(exclusive=True), owner="me")
    with pytest.raises(NotAllowed):
        Inbox(machine.broker, "mine", owner="you")
    queues.release_owner("me")
    assert "mine" not in queues
    await queues.declare("fleeting", QueueSettings(auto_delete=True))
    async with consumer(machine.broker, "fleeting"):
        assert "fleeting" in queues
    assert "fleeting" not in queues
    await queues.declare("idle", QueueSettings(expires_ms=5000))
    await asyncio.sleep(4)
    assert "idle" in queues
    await queues.declare("idle")
    await asyncio.sleep(4)
    assert "idle" in queues
    await asyncio.sleep(2)
    assert "idle" not in queues
    await queues.declare("mine", QueueSettings(exclusive=True), owner="me")
    assert "mine" not in (await machine.again()).queues


# -- delivery ----------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_each_message_goes_to_one_consumer_in_turn(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    first, second = Inbox(machine.broker, "jobs"), Inbox(machine.broker, "jobs")
    for i in range(20):
        await put(machine.broker, "jobs", b"%d" % i)
    await asyncio.sleep(0.01)
    assert len(first.got) == len(second.got) == 10
    assert sorted(first.payloads + second.payloads, key=int) == [b"%d" % i for i in range(20)]


@on_a_machine
async def test_prefetch_bounds_what_a_consumer_holds(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    await put(machine.broker, "jobs", *[b"%d" % i for i in range(10)])
    async with consumer(machine.broker, "jobs", prefetch=3) as inbox:
        assert len(inbox.got) == 3
        await inbox.ack(inbox.got[1])
        await asyncio.sleep(0.01)
        assert len(inbox.got) == 4


@on_a_machine
async def test_a_hold_runs_out_unless_it_is_renewed(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs", QueueSettings(hold_ms=1000))
    await put(machine.broker, "jobs", b"one", b"two")
    async with consumer(machine.broker, "jobs", credit=2) as inbox:
        await asyncio.sleep(0.9)
        assert inbox.feed.touch([(inbox.got[0].tag, 1)]) == []
        await asyncio.sleep(0.5)
        assert machine.broker.queues.describe("jobs").held == 1
        settled = inbox.feed.settle(Verdict.ACK, [(inbox.got[0].tag, 2)])
        assert settled.unknown == [(inbox.got[1].tag, 1)]
    async with consumer(machine.broker, "jobs") as inbox:
        assert [(one.message.payload, one.deliveries) for one in inbox.got] == [(b"two", 2)]


@on_a_machine
async def test_a_foreign_ack_has_no_effect(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    await put(machine.broker, "jobs", b"one")
    async with consumer(machine.broker, "jobs") as holder, consumer(machine.broker, "jobs") as other:
        settled = other.feed.settle(Verdict.ACK, [(holder.got[0].tag, 1)])
        assert settled.unknown == [(holder.got[0].tag, 1)]
        assert machine.broker.queues.describe("jobs").held == 1
        await holder.ack(holder.got[0])


@on_a_machine
async def test_a_consumer_that_goes_leaves_its_messages_to_others_in_their_order(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    await put(machine.broker, "jobs", b"0", b"1", b"2", b"3")
    async with consumer(machine.broker, "jobs", credit=3) as inbox:
        await inbox.ack(inbox.got[1])
    async with consumer(machine.broker, "jobs") as inbox:
        assert [(one.message.payload, one.deliveries) for one in inbox.got] == [(b"0", 2), (b"2", 2), (b"3", 1)]


@on_a_machine
async def test_higher_priorities_come_first_and_within_one_the_oldest(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    for i, priority in enumerate((0, 5, 9, 5, 0)):
        await put(machine.broker, "jobs", b"%d" % i, priority=priority)
    broker = await machine.again()
    async with consumer(broker, "jobs") as inbox:
        assert inbox.payloads == [b"2", b"1", b"3", b"0", b"4"]


@on_a_machine
async def test_only_one_consumer_is_active_where_the_queue_says_so(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs", QueueSettings(single_active=True))
    first, second = Inbox(machine.broker, "jobs"), Inbox(machine.broker, "jobs")
    await put(machine.broker, "jobs", b"0", b"1")
    await asyncio.sleep(0.01)
    assert (len(first.got), len(second.got)) == (2, 0)
    first.feed.close()
    await asyncio.sleep(0.01)
    assert second.payloads == [b"0", b"1"]


@on_a_machine
async def test_a_getter_waits_for_what_comes(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    getter = machine.broker.queues.getter("jobs", "me")
    waiting = asyncio.ensure_future(getter.get(5, 10_000))
    await asyncio.sleep(3)
    await put(machine.broker, "jobs", b"one", b"two")
    assert [one.message.payload for one in await waiting] == [b"one", b"two"]
    assert await getter.get(5, 1000) == []
    await machine.broker.durable(getter.settle(Verdict.ACK, [(0, 2)]).receipt)
    assert machine.broker.queues.describe("jobs").held == 0


@on_a_machine
async def test_auto_acked_messages_do_not_come_back(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    await put(machine.broker, "jobs", b"one", b"two")
    async with consumer(machine.broker, "jobs", auto_ack=True, credit=1) as inbox:
        assert inbox.payloads == [b"one"]
    broker = await machine.again()
    async with consumer(broker, "jobs") as inbox:
        assert inbox.payloads == [b"two"]


# -- time --------------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_delayed_message_is_never_early_and_survives(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    start = machine.now_ms
    await put(machine.broker, "jobs", b"hours", deliver_at_ms=start + 3 * HOUR_MS)
    await put(machine.broker, "jobs", b"a minute", delay_ms=60_000)
    broker = await machine.again()
    assert [peeked.state for peeked in broker.queues.peek("jobs", 5)] == ["parked", "parked"]
    when: dict[bytes, int] = {}
    feed = broker.queues.open_feed(
        "jobs",
        "test",
        lambda got: when.update({one.message.payload: machine.now_ms for one in got}),
        on_end=lambda error: None,
        auto_ack=True,
    )
    feed.credit(10)
    await asyncio.sleep(4 * 3600)
    assert 60_000 <= when[b"a minute"] - start <= 60_050 + 1000
    assert 0 <= when[b"hours"] - start - 3 * HOUR_MS <= 50


@on_a_machine
async def test_a_delayed_message_comes_soon_after_the_calendar_was_set_forward(machine: Machine) -> None:
    """As after a machine has slept: the loop's own clock knows nothing of it."""
    await machine.broker.queues.declare("jobs")
    await put(machine.broker, "jobs", b"one", delay_ms=2 * HOUR_MS)
    async with consumer(machine.broker, "jobs") as inbox:
        machine.simulation.clock.jump_ms += 2 * HOUR_MS
        await asyncio.sleep(11)
        assert inbox.payloads == [b"one"]


@on_a_machine
async def test_a_delayed_message_is_found_and_cancelled_by_its_id(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    await put(machine.broker, "jobs", b"other", id="b", delay_ms=1000)
    await put(machine.broker, "jobs", b"mine", id="a", delay_ms=1000)
    await put(machine.broker, "jobs", b"nameless", delay_ms=1000)
    broker = await machine.again()
    found = broker.queues.find("a")
    assert found is not None
    assert (found.place, found.state) == ("queue:jobs", "parked")
    assert await broker.queues.cancel("jobs", "a")
    assert not await broker.queues.cancel("jobs", "a")
    assert await broker.queues.cancel("jobs", "jobs#2")
    broker = await machine.again()
    assert broker.queues.find("a") is None
    async with consumer(broker, "jobs") as inbox:
        await asyncio.sleep(2)
        assert inbox.payloads == [b"other"]


@on_a_machine
async def test_expired_messages_are_never_delivered(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs", QueueSettings(ttl_ms=5000))
    await put(machine.broker, "jobs", b"short", ttl_ms=1000)
    await put(machine.broker, "jobs", b"long")
    await asyncio.sleep(2)
    broker = await machine.again()
    async with consumer(broker, "jobs", credit=1) as inbox:
        assert inbox.payloads == [b"long"]
    await asyncio.sleep(4)
    assert broker.queues.describe("jobs").ready == 0


# -- retries and dead letters ------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_failing_message_is_retried_with_backoff_and_then_dead_with_its_story(machine: Machine) -> None:
    settings = QueueSettings(max_deliveries=3, retry_base_ms=1000, retry_factor=3.0, dead_letter="dead")
    await machine.broker.queues.declare("jobs", settings)
    await put(machine.broker, "jobs", b"one", headers={"a": "b"})
    times = []
    async with consumer(machine.broker, "jobs") as inbox:
        for attempt in range(3):
            while len(inbox.got) <= attempt:  # noqa: ASYNC110  # virtual time: it passes at once
                await asyncio.sleep(0.01)
            times.append(machine.now_ms)
            await inbox.settle(Verdict.REJECT, inbox.got[attempt], error=f"boom {attempt}")
    await asyncio.sleep(1)
    assert 1000 <= times[1] - times[0] < 1100
    assert 3000 <= times[2] - times[1] < 3100
    broker = await machine.again()
    assert len(broker.queues.peek("jobs", 1)) == 0
    (dead,) = broker.queues.peek("dead", 10)
    message = dead.delivered.message
    assert (message.payload, message.headers["a"], message.id) == (b"one", "b", "jobs#0")
    (death,) = failure_history_of(message)
    assert (death["queue"], death["reason"], death["count"], death["deliveries"]) == ("jobs", "delivery-limit", 1, 3)
    assert (death["error"], death["time"]) == ("boom 2", times[2])


@on_a_machine
async def test_what_is_given_back_without_fault_counts_towards_no_limit(machine: Machine) -> None:
    settings = QueueSettings(max_deliveries=2, retry_base_ms=1, dead_letter="dead")
    await machine.broker.queues.declare("jobs", settings)
    await put(machine.broker, "jobs", b"one", b"two")
    broker = machine.broker
    for turn in range(6):
        inbox = Inbox(broker, "jobs", credit=2)
        await asyncio.sleep(0.01)
        assert [(one.message.payload, one.deliveries) for one in inbox.got] == [(b"one", turn + 1), (b"two", turn + 1)]
        if turn % 2:
            inbox.feed.leave()  # a consumer that goes as it should
        else:
            await inbox.settle(Verdict.RELEASE, *inbox.got)
            inbox.feed.leave()
        if turn == 3:
            broker = await machine.again()
    for _ in range(2):
        inbox = Inbox(broker, "jobs", credit=2)
        await asyncio.sleep(0.01)
        assert len(inbox.got) == 2
        inbox.feed.close()  # a consumer that died: perhaps of this
    await asyncio.sleep(1)
    assert len(broker.queues.peek("dead", 5)) == 2


@on_a_machine
async def test_each_way_to_die_has_its_reason(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("a", QueueSettings(dead_letter="dead"))
    await broker.queues.declare("b", QueueSettings(dead_letter="dead", max_length=1, overflow="dead-letter"))
    await put(broker, "a", b"killed")
    async with consumer(broker, "a") as inbox:
        await inbox.settle(Verdict.KILL, inbox.got[0], error="no good")
    await put(broker, "a", b"expired", ttl_ms=10)
    await put(broker, "b", b"pushed out")
    await put(broker, "b", b"stays")
    await asyncio.sleep(2)
    reasons = {peeked.delivered.message.payload: failure_history_of(peeked.delivered.message)[0]["reason"]
               for peeked in broker.queues.peek("dead", 10)}  # fmt: skip
    assert reasons == {b"killed": "rejected", b"expired": "expired", b"pushed out": "overflow"}
    assert [peeked.delivered.message.payload for peeked in broker.queues.peek("b", 10)] == [b"stays"]


@on_a_machine
async def test_dead_letters_go_to_a_topic_too(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("a", QueueSettings(dead_letter="topic:dead.letters"))
    await put(broker, "a", b"expired", ttl_ms=10, key=b"k")
    await asyncio.sleep(2)
    history = broker.messages.history("dead.letters", 10)
    assert [(one.message.payload, one.message.key) for one in history] == [(b"expired", b"k")]
    assert failure_history_of(history[0].message)[0]["queue"] == "a"


@on_a_machine
async def test_dead_letters_never_go_round_in_a_cycle(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("a", QueueSettings(dead_letter="b", ttl_ms=100))
    await broker.queues.declare("b", QueueSettings(dead_letter="a", ttl_ms=100))
    await put(broker, "a", b"one")
    await asyncio.sleep(10)
    assert len(broker.queues.peek("a", 5)) == len(broker.queues.peek("b", 5)) == 0
    assert broker.queues.describe("b").put == 1


@on_a_machine
async def test_redrive_sends_back_what_is_chosen_and_a_dry_run_nothing(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(dead_letter="dead", max_deliveries=1))
    for i in range(6):
        await put(broker, "jobs", b"%d" % i, headers={"n": i})
    async with consumer(broker, "jobs") as inbox:
        await inbox.settle(Verdict.REJECT, *inbox.got, error="boom")
    await asyncio.sleep(1)
    answer = await broker.queues.redrive("dead", filter="headers.n >= 2", dry_run=True)
    assert (answer.matched, answer.moved) == (4, 0)
    answer = await broker.queues.redrive("dead", filter="headers.n >= 2", limit=3)
    assert (answer.matched, answer.moved) == (3, 3)
    answer = await broker.queues.redrive("dead", message_ids=["jobs#0"])
    assert answer.moved == 1
    broker = await machine.again()
    assert len(broker.queues.peek("dead", 10)) == 2
    async with consumer(broker, "jobs") as inbox:
        assert sorted(inbox.payloads) == [b"0", b"2", b"3", b"4"]
        await inbox.settle(Verdict.KILL, inbox.got[0])
    await asyncio.sleep(1)
    assert len(broker.queues.peek("dead", 10)) == 6  # the one, and the three that came back once too often


@on_a_machine
async def test_redrive_keeps_to_its_rate(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("dead")
    await broker.queues.declare("jobs")
    await put(broker, "dead", *[b"%d" % i for i in range(50)])
    before = machine.now_ms
    answer = await broker.queues.redrive("dead", to="jobs", rate=10.0)
    assert answer.moved == 50
    assert machine.now_ms - before >= 4_900


# -- bounds and bad input ----------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_full_queue_refuses_or_waits_or_drops_the_oldest(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("small", QueueSettings(max_length=2))
    await put(broker, "small", b"0", b"1")
    with pytest.raises(Full, match="max_length 2"):
        await put(broker, "small", b"2")
    waiting = asyncio.ensure_future(broker.queues.put_durable("small", [Message(b"2")], wait_ms=5000))
    await asyncio.sleep(1)
    async with consumer(broker, "small", credit=1) as inbox:
        await inbox.ack(inbox.got[0])
        assert (await waiting).count == 1
    await broker.queues.declare("bytes", QueueSettings(max_bytes=10, overflow="drop-oldest"))
    for i in range(5):
        await put(broker, "bytes", b"%d234" % i)
    broker = await machine.again()
    assert [one.delivered.message.payload for one in broker.queues.peek("bytes", 9)] == [b"3234", b"4234"]


@on_a_machine
async def test_ids_are_used_once_within_the_window_also_after_a_restart(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs", QueueSettings(dedup_window_ms=60_000))
    await put(machine.broker, "jobs", b"one", id="a")
    broker = await machine.again()
    answer = await broker.queues.put_durable("jobs", [Message(b"two", id="b"), Message(b"again", id="a")])
    assert (answer.count, answer.duplicates) == (1, [1])
    async with consumer(broker, "jobs") as inbox:
        await inbox.ack(*inbox.got)
        assert inbox.payloads == [b"one", b"two"]
    assert (await broker.queues.put_durable("jobs", [Message(b"again", id="a")])).count == 0
    await asyncio.sleep(61)
    assert (await broker.queues.put_durable("jobs", [Message(b"new", id="a")])).count == 1


@on_a_machine
async def test_bad_input_names_its_field_and_stores_nothing(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    for field, message in {
        "priority": Message(b"", priority=256),
        "delay_ms": Message(b"", delay_ms=-1),
        "ttl_ms": Message(b"", ttl_ms=0),
        "id": Message(b"", id=""),
        "max_deliveries": Message(b"", max_deliveries=-1),
    }.items():
        with pytest.raises(Invalid, match=f"^{field}"):
            broker.queues.put("jobs", [Message(b"good"), message])
    with pytest.raises(TooLarge, match="payload"):
        broker.queues.put("jobs", [Message(bytes(17_000_000))])
    with pytest.raises(Invalid):
        broker.queues.put("jobs", [])
    with pytest.raises(Invalid, match="hold_ms"):
        await broker.queues.declare("bad", QueueSettings(hold_ms=0))
    assert broker.queues.describe("jobs").ready == 0


# -- transactions ------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_transaction_over_queues_and_topics_happens_all_or_not_at_all(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("in")
    await broker.queues.declare("out")
    await broker.messages.ensure("events")
    await put(broker, "in", b"0", b"1")
    inbox = Inbox(broker, "in")
    await asyncio.sleep(0.01)
    for i, commit in enumerate((False, True)):
        tx = await broker.transacting.begin("t")
        await tx.put("out", [Message(b"out")])
        await tx.publish("events", [Message(b"event")])
        await tx.settle(inbox.feed, [(inbox.got[-1 if i else 0].tag, 1)])
        await tx.commit_offsets("group", [("events", 0, 7 + i)])
        assert broker.queues.describe("out").ready == 0
        await tx.end(commit)
        await asyncio.sleep(0.01)
    assert [(one.message.payload, one.deliveries) for one in inbox.got] == [(b"0", 1), (b"1", 1), (b"0", 2)]
    broker = await machine.again()
    assert (broker.queues.describe("out").ready, broker.queues.describe("in").ready) == (1, 1)
    assert [one.delivered.message.payload for one in broker.queues.peek("in", 9)] == [b"1"]


@on_a_machine
async def test_what_an_open_transaction_took_is_out_of_reach_also_after_a_restart(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("in")
    await put(broker, "in", b"0", b"1")
    inbox = Inbox(broker, "in", credit=1)
    await asyncio.sleep(0.01)
    tx = await broker.transacting.begin("t", timeout_ms=20_000)
    await tx.settle(inbox.feed, [(0, 1)])
    broker = await machine.again()
    async with consumer(broker, "in") as inbox:
        assert inbox.payloads == [b"1"]
        await inbox.ack(inbox.got[0])
        await asyncio.sleep(40)  # its time runs out: undone
        assert inbox.payloads == [b"1", b"0"]


# -- many --------------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_deep_queue_is_delivered_whole_and_in_order_after_snapshots_and_restarts(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("deep")
    for start in range(0, 20_000, 500):
        broker.queues.put("deep", [Message(b"%d" % i) for i in range(start, start + 500)])
    await broker.shards.checkpoint(force=True)
    broker.queues.put("deep", [Message(b"%d" % i) for i in range(20_000, 20_100)])
    broker = await machine.again()
    seen: list[int] = []

    def deliver(got: list[Delivered]) -> None:
        seen.extend(int(one.message.payload) for one in got)
        feed.settle(Verdict.ACK, [(got[0].tag, len(got))])
        feed.credit(len(got))

    feed = broker.queues.open_feed("deep", "test", deliver, on_end=lambda error: None)
    feed.credit(700)
    while len(seen) < 20_100:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert seen == list(range(20_100))
    assert broker.queues.describe("deep").bytes == 0
    assert len((await machine.again()).queues.peek("deep", 1)) == 0


@on_a_machine
async def test_room_is_freed_and_stragglers_are_written_forward(machine: Machine) -> None:
    broker = machine.broker
    await broker.stop()
    machine.catalog = MemoryCatalog()
    machine.simulation.disk.remove_tree(ROOT)
    settings = BrokerSettings({"waystation.queue.segment.bytes": "20000", "waystation.queue.shards": "1"})
    machine.simulation.disk.make_folder(ROOT)
    broker = machine.broker = Broker(machine.simulation.world, ROOT, settings, machine.catalog)
    await broker.start()
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"straggler", delay_ms=DAY_MS, id="s")
    async with consumer(broker, "jobs") as inbox:
        for turn in range(40):
            await put(broker, "jobs", *[bytes(500)] * 20)
            await asyncio.sleep(0.01)
            await inbox.ack(*inbox.got)
            inbox.feed.credit(len(inbox.got))
            inbox.got.clear()
            if turn % 5 == 4:
                for checkpointer in broker.shards.checkpointers:
                    await checkpointer.run(force=True, forward=True)
    (shard,) = broker.shards
    assert log_of(shard.log.partition).start_offset > 0
    assert log_of(shard.log.partition).size_bytes < 200_000
    broker = await machine.again()
    found = broker.queues.find("s")
    assert found is not None
    assert found.delivered.message.payload == b"straggler"
