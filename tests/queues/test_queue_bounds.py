"""What queues refuse, what they bound, and that no work on a deep queue stops everything else."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import Inbox, Machine, consumer, on_a_machine, put, turns
from waystation.admin.views.view_delayed import cancel_delayed
from waystation.errors import Conflict, Full, Invalid, NotAllowed, TooLarge, WaystationError
from waystation.message import Delivered, Message
from waystation.queues.delayed import QUEUE as WAITING
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.topics.partitions.partition import log_of

HUGE = 1 << 70
CENTURIES_MS = 1 << 60


# -- what is the broker's own ------------------------------------------------------------------------------------------


@on_a_machine
async def test_the_brokers_own_queues_are_out_of_reach(machine: Machine) -> None:
    broker = machine.broker
    await broker.messages.ensure("later")
    broker.messages.publish("later", [Message(b"one", id="x", delay_ms=60_000)])
    queues = broker.queues
    for name in (WAITING, "__other"):
        with pytest.raises(NotAllowed):
            await queues.declare(name)
        with pytest.raises(NotAllowed):
            await queues.declare(name, QueueSettings(ttl_ms=1), alter=True)
        with pytest.raises(NotAllowed):
            await queues.put_durable(name, [Message(b"")])
        with pytest.raises(NotAllowed):
            Inbox(broker, name)
        with pytest.raises(NotAllowed):
            queues.getter(name, "me")
        with pytest.raises(NotAllowed):
            await queues.delete(name)
        with pytest.raises(NotAllowed):
            await queues.purge(name)
        with pytest.raises(NotAllowed):
            await queues.redrive(name, to="x")
    tx = await broker.transacting.begin("t")
    with pytest.raises(NotAllowed):
        await tx.put(WAITING, [Message(b"")])
    with pytest.raises(NotAllowed):
        await queues.cancel(WAITING, "x")
    await cancel_delayed(broker, "later", "x")  # by the topic it is for, it may be cancelled
    await asyncio.sleep(100)
    assert broker.messages.history("later", 5) == []


@on_a_machine
async def test_retention_never_touches_queues(machine: Machine) -> None:
    """Neither what somebody wants for the topic behind them, nor what goes for all topics."""
    broker = await machine.anew(shards="1", segment_bytes="2000")
    with pytest.raises(NotAllowed):
        await broker.topics.alter("__queues", {"retention.ms": "1"})
    await broker.alter_settings({"log.retention.bytes": "1", "log.retention.ms": "1"})
    await broker.queues.declare("jobs")
    for _ in range(20):
        await put(broker, "jobs", bytes(500))
    await asyncio.sleep(5)
    await broker.housekeeping.retain()
    assert len(broker.queues.peek("jobs", 100)) == 20


@on_a_machine
async def test_the_largest_message_is_what_the_broker_says(machine: Machine) -> None:
    broker = await machine.again({"waystation.queue.message.max.bytes": "1000"})
    await broker.queues.declare("jobs")
    await put(broker, "jobs", bytes(1000))
    with pytest.raises(TooLarge, match="1000"):
        await put(broker, "jobs", bytes(1001))


# -- bad input ---------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_settings_without_measure_are_refused_by_name(machine: Machine) -> None:
    for settings in (
        QueueSettings(ttl_ms=CENTURIES_MS),
        QueueSettings(hold_ms=CENTURIES_MS),
        QueueSettings(expires_ms=CENTURIES_MS),
        QueueSettings(dedup_window_ms=CENTURIES_MS),
        QueueSettings(retry_base_ms=CENTURIES_MS),
        QueueSettings(retry_max_ms=CENTURIES_MS),
        QueueSettings(max_length=HUGE),
        QueueSettings(max_bytes=HUGE),
        QueueSettings(max_deliveries=HUGE),
        QueueSettings(retry_factor=float("nan")),
        QueueSettings(retry_factor=float("inf")),
        QueueSettings(retry_jitter=float("nan")),
    ):
        (field,) = [
            name
            for name in settings.__struct_fields__
            if repr(getattr(settings, name)) != repr(getattr(QueueSettings(), name))
        ]
        with pytest.raises(Invalid, match=f"^{field}"):
            await machine.broker.queues.declare("bad", settings)
    for name in ("", "a\x00", "x" * 256, "\ud800"):
        with pytest.raises(Invalid, match=r"^queue"):
            await machine.broker.queues.declare(name)
    await machine.broker.queues.declare("one")
    with pytest.raises(Conflict, match="exclusive"):
        await machine.broker.queues.declare("one", QueueSettings(exclusive=True), alter=True)


@on_a_machine
async def test_messages_that_cannot_be_stored_are_refused_and_the_next_snapshot_is_whole(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    for message in (
        Message(b"", deliver_at_ms=1 << 62),
        Message(b"", timestamp_ms=HUGE),
        Message(b"", max_deliveries=HUGE),
        Message(b"", headers={"n": HUGE}),
        Message(b"", headers={"n": object()}),
        Message(b"", id="\ud800"),
    ):
        with pytest.raises(Invalid):
            broker.queues.put("jobs", [Message(b"good"), message])
    await put(broker, "jobs", b"far", deliver_at_ms=1 << 60)
    await broker.shards.checkpoint(force=True)
    assert (await machine.again()).queues.describe("jobs").parked == 1


@on_a_machine
async def test_verdicts_without_measure_are_refused_or_harmless(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_deliveries=5))
    await put(broker, "jobs", *[b"%d" % i for i in range(10)])
    inbox = Inbox(broker, "jobs", credit=5)
    await asyncio.sleep(0.01)
    for verdict in (Verdict.RELEASE, Verdict.REJECT):
        for delay_ms in (-1, CENTURIES_MS):
            with pytest.raises(Invalid, match=r"^delay_ms"):
                inbox.feed.settle(verdict, [(0, 1)], delay_ms=delay_ms)
    for timeout_ms in (0, -5, CENTURIES_MS):
        with pytest.raises(Invalid, match=r"^hold_ms"):
            inbox.feed.touch([(0, 1)], timeout_ms)
        with pytest.raises(Invalid, match=r"^hold_ms"):
            Inbox(broker, "jobs", visibility_timeout_ms=timeout_ms)
    with pytest.raises(Invalid, match=r"^count"):
        await broker.queues.getter("jobs", "me").get(0, 0)
    assert broker.queues.describe("jobs").held == 5
    everything = [(0, 1 << 50)]
    settled = inbox.feed.settle(Verdict.REJECT, everything, error="all of it")
    assert settled.unknown == [(5, (1 << 50) - 5)]
    assert broker.queues.describe("jobs").parked == 5
    assert inbox.feed.settle(Verdict.KILL, everything).unknown == everything
    assert inbox.feed.settle(Verdict.ACK, everything).unknown == everything
    assert inbox.feed.touch(everything) == everything
    assert broker.queues.find("jobs#" + "9" * 5000) is None


@on_a_machine
async def test_a_rejected_batch_is_one_command_and_each_waits_as_it_should(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(retry_base_ms=1000, max_deliveries=3))
    await put(broker, "jobs", *[b"%d" % i for i in range(100)])
    inbox = Inbox(broker, "jobs", credit=100)
    await asyncio.sleep(0.01)
    await broker.durable(inbox.feed.settle(Verdict.RELEASE, [(10, 5)]).receipt)
    inbox.feed.credit(5)
    await asyncio.sleep(0.01)
    (before,) = {log_of(shard.log.partition).end_offset for shard in broker.shards if shard.queues}
    settled = inbox.feed.settle(Verdict.REJECT, [(50, 50), (0, 50)], error="no")
    await broker.durable(settled.receipt)
    (after,) = {log_of(shard.log.partition).end_offset for shard in broker.shards if shard.queues}
    assert (settled.unknown, after - before <= 6) == ([], True)
    inbox.feed.credit(100)
    await asyncio.sleep(1.5)
    assert len(inbox.got) == 105 + 95
    await asyncio.sleep(1)
    assert [(one.tag, one.deliveries) for one in inbox.got[200:]] == [(tag, 3) for tag in range(10, 15)]


# -- room --------------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_publishers_that_wait_for_room_leave_no_trace_and_hear_of_every_way_to_get_it(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("small", QueueSettings(max_length=1))
    queue = broker.queues.get("small")[1]
    await put(broker, "small", b"0", ttl_ms=10_000)
    for _ in range(5):
        with pytest.raises(Full):
            await broker.queues.put_durable("small", [Message(b"1")], wait_ms=100)
    assert not queue.waiting_room
    waiting = asyncio.ensure_future(broker.queues.put_durable("small", [Message(b"1")], wait_ms=60_000))
    await asyncio.sleep(11)
    assert waiting.done(), "an expiry makes room"
    waiting = asyncio.ensure_future(broker.queues.put_durable("small", [Message(b"2")], wait_ms=60_000))
    await asyncio.sleep(1)
    await broker.queues.declare("small", QueueSettings(max_length=2), alter=True)
    await asyncio.sleep(1)
    assert waiting.done(), "a change of the settings makes room"
    waiting = asyncio.ensure_future(broker.queues.put_durable("small", [Message(b"3")], wait_ms=60_000))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not queue.waiting_room
    waiting = asyncio.ensure_future(broker.queues.put_durable("small", [Message(b"3")], wait_ms=60_000))
    await asyncio.sleep(1)
    await broker.queues.delete("small")
    with pytest.raises(WaystationError):
        await waiting


@on_a_machine
async def test_a_message_that_pushes_others_out_is_not_pushed_out_itself(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("latest", QueueSettings(max_length=1, overflow="drop-oldest"))
    await put(broker, "latest", b"0")
    async with consumer(broker, "latest", credit=1) as inbox:
        assert inbox.payloads == [b"0"]
        await put(broker, "latest", b"1")
        await put(broker, "latest", b"2")
        assert [one.delivered.message.payload for one in broker.queues.peek("latest", 5)] == [b"0", b"2"]
    await put(broker, "latest", b"low")
    await put(broker, "latest", b"high", priority=9)
    assert [one.delivered.message.payload for one in broker.queues.peek("latest", 5)] == [b"high"]
    await put(broker, "latest", b"low")
    assert [one.delivered.message.payload for one in broker.queues.peek("latest", 5)] == [b"low"]


@on_a_machine
async def test_delayed_messages_do_not_pile_up_in_a_queue_that_drops(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("small", QueueSettings(max_length=2, overflow="drop-oldest"))
    await put(broker, "small", b"0", b"1", delay_ms=60_000)
    with pytest.raises(Full, match="delayed"):
        await put(broker, "small", b"2", delay_ms=60_000)
    assert broker.queues.describe("small").parked == 2


@on_a_machine
async def test_used_ids_are_forgotten_also_when_nobody_puts(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("once", QueueSettings(dedup_window_ms=1000))
    await put(broker, "once", b"x", id="first")
    for i in range(30):
        await broker.queues.put_durable("once", [Message(b"x", id=f"{i}.{j}") for j in range(100)])
    queue = broker.queues.get("once")[1]
    assert len(queue.ids or ()) > 3000
    await asyncio.sleep(3)
    assert (await broker.queues.put_durable("once", [Message(b"x", id="29.0")])).count == 1
    assert (await broker.queues.put_durable("once", [Message(b"x", id="29.0")])).count == 0
    await asyncio.sleep(3)
    for _ in range(5):
        await put(broker, "once", b"plain")
        await broker.shards.checkpoint(force=True)
    assert not queue.ids
    await put(broker, "once", b"x", id="a")
    await broker.queues.declare("once", QueueSettings(), alter=True)
    assert queue.ids is None


@on_a_machine
async def test_the_alarm_keeps_one_moment_for_a_queue(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    await broker.queues.declare("jobs", QueueSettings(hold_ms=100, retry_base_ms=0))
    await put(broker, "jobs", b"next year", delay_ms=365 * 24 * 3600 * 1000)
    await put(broker, "jobs", b"now")
    inbox = Inbox(broker, "jobs", credit=1_000_000)
    await asyncio.sleep(500)
    assert len(inbox.got) > 4000
    (shard,) = broker.shards
    assert len(shard.alarm) < 2000
    for i in range(3000):
        await broker.queues.declare(f"q{i}")
        broker.queues.put(f"q{i}", [Message(b"", delay_ms=10**9)])
        await broker.queues.delete(f"q{i}")
    assert len(shard.alarm) < 2000, "a deleted queue is not remembered until its last message would be due"


# -- deep queues -------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_deep_queue_is_purged_a_part_at_a_time(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("deep", QueueSettings(dead_letter="dead"))
    for _ in range(60):
        broker.queues.put("deep", [Message(b"x")] * 4000)
        broker.queues.put("deep", [Message(b"late", delay_ms=10**9)])
        broker.queues.put("deep", [Message(b"y")])
    inbox = Inbox(broker, "deep", credit=10)
    await asyncio.sleep(0.01)
    before = turns()
    purging = asyncio.ensure_future(broker.queues.purge("deep"))
    await asyncio.sleep(0)
    broker.queues.put("deep", [Message(b"new")])
    assert await purging == 60 * 4002 - 10
    assert before - turns() > 10
    info = broker.queues.describe("deep")
    assert (info.ready, info.parked, info.held, info.bytes) == (1, 0, 10, 13)
    await inbox.ack(*inbox.got)
    assert [one.delivered.message.payload for one in (await machine.again()).queues.peek("deep", 5)] == [b"new"]


@on_a_machine
async def test_a_consumer_that_always_wants_more_does_not_stop_the_loop(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("deep")
    for _ in range(50):
        broker.queues.put("deep", [Message(b"x")] * 1000)
    seen = 0

    def deliver(got: list[Delivered]) -> None:
        nonlocal seen
        seen += len(got)
        feed.settle(Verdict.ACK, [(got[0].tag, len(got))])
        feed.credit(len(got))

    feed = broker.queues.open_feed("deep", "test", deliver, on_end=lambda error: None)
    feed.credit(2000)
    before = turns()
    while seen < 50_000:  # noqa: ASYNC110  # virtual time: it passes at once
        await asyncio.sleep(0)
    assert before - turns() > 5


@on_a_machine
async def test_many_queues_that_are_due_at_once_do_not_stop_the_loop(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    for i in range(2000):
        await broker.queues.declare(f"q{i}", QueueSettings(ttl_ms=60_000))
    due = machine.now_ms + 30_000
    for i in range(2000):
        broker.queues.put(f"q{i}", [Message(b"", deliver_at_ms=due)])
    await asyncio.sleep(29)
    before = turns()
    await asyncio.sleep(1.01)
    assert before - turns() > 10
    assert sum(info.ready for info in broker.queues.list("q", limit=5000)) == 2000


@on_a_machine
async def test_a_mistake_with_one_queue_does_not_stop_the_clock_of_the_others(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    (shard,) = broker.shards
    for name in ("a", "b"):
        await broker.queues.declare(name)
        await put(broker, name, b"x", ttl_ms=1000)
    broken = broker.queues.get("a")[1].open_ledger()
    let_pass = shard._let_pass

    def fail(queue: object, now_ms: int) -> None:
        if getattr(queue, "ledger", None) is broken:
            raise KeyError("a mistake of ours")
        let_pass(queue, now_ms)  # type: ignore[arg-type]

    shard._let_pass = fail  # type: ignore[method-assign]
    await asyncio.sleep(3)
    assert broker.queues.describe("b").ready == 0
    shard._let_pass = let_pass  # type: ignore[method-assign]
    await put(broker, "a", b"y", ttl_ms=1000)
    await asyncio.sleep(3)
    assert broker.queues.describe("a").ready == 0
