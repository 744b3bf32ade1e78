"""Somebody sets the machine's time, or it is set by NTP: what lives in memory does not notice, what is stored is never
early by the wall clock, and nothing is stuck."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import Inbox, Machine, on_a_machine, put
from waystation.queues.settings import QueueSettings

FIVE_HOURS_MS = 5 * 3600 * 1000
NOTICED_S = 1.1
"""A clock that was set forward is noticed within a second."""


def _set_clock(machine: Machine, by_ms: int) -> None:
    machine.simulation.clock.jump_ms += by_ms


@pytest.mark.parametrize("by_ms", [-FIVE_HOURS_MS, FIVE_HOURS_MS])
def test_a_visibility_timeout_takes_its_time_whatever_the_wall_clock_says(by_ms: int) -> None:
    @on_a_machine
    async def check(machine: Machine) -> None:
        broker = machine.broker
        await broker.queues.declare("jobs", QueueSettings(hold_ms=3_000, max_deliveries=2, dead_letter="dead"))
        await put(broker, "jobs", b"one")
        inbox = Inbox(broker, "jobs")
        await asyncio.sleep(1)
        _set_clock(machine, by_ms)
        await put(broker, "jobs", b"two")  # a busy queue looks at the time
        await asyncio.sleep(1.9)
        assert inbox.payloads == [b"one", b"two"]
        await asyncio.sleep(0.2)
        assert inbox.payloads == [b"one", b"two", b"one"], "redelivered after its three seconds"
        await inbox.ack(inbox.got[2])
        assert broker.queues.describe("jobs").dead == 0

    check()


@pytest.mark.parametrize("by_ms", [-FIVE_HOURS_MS, FIVE_HOURS_MS])
def test_more_time_that_a_consumer_asked_for_is_real_time(by_ms: int) -> None:
    @on_a_machine
    async def check(machine: Machine) -> None:
        broker = machine.broker
        await broker.queues.declare("jobs", QueueSettings(hold_ms=1_000))
        await put(broker, "jobs", b"one")
        inbox = Inbox(broker, "jobs")
        await asyncio.sleep(0.5)
        assert inbox.feed.touch([(0, 1)], 10_000) == []
        _set_clock(machine, by_ms)
        await asyncio.sleep(9.9)
        assert len(inbox.got) == 1
        await asyncio.sleep(0.2)
        assert len(inbox.got) == 2

    check()


@pytest.mark.parametrize("by_ms", [-FIVE_HOURS_MS, FIVE_HOURS_MS])
def test_an_unused_queue_is_deleted_after_real_time(by_ms: int) -> None:
    @on_a_machine
    async def check(machine: Machine) -> None:
        broker = machine.broker
        await broker.queues.declare("brief", QueueSettings(expires_ms=5_000))
        _set_clock(machine, by_ms)
        await asyncio.sleep(4.9)
        assert "brief" in broker.queues
        await asyncio.sleep(0.2)
        assert "brief" not in broker.queues

    check()


@on_a_machine
async def test_a_delayed_message_is_delivered_soon_after_the_clock_passed_its_time_at_once(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"in four hours", delay_ms=FIVE_HOURS_MS - 3600 * 1000)
    await put(broker, "jobs", b"in six hours", delay_ms=FIVE_HOURS_MS + 3600 * 1000)
    inbox = Inbox(broker, "jobs", auto_ack=True)
    await asyncio.sleep(5)
    _set_clock(machine, FIVE_HOURS_MS)
    await asyncio.sleep(NOTICED_S)
    assert inbox.payloads == [b"in four hours"]
    await asyncio.sleep(3600)
    assert inbox.payloads == [b"in four hours", b"in six hours"]


@on_a_machine
async def test_after_a_jump_back_a_delayed_message_waits_for_the_wall_clock(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"one", delay_ms=10_000)
    due_ms = machine.now_ms + 10_000
    inbox = Inbox(broker, "jobs", auto_ack=True)
    _set_clock(machine, -60_000)
    await put(broker, "jobs", b"two", delay_ms=5_000)
    await asyncio.sleep(4.9)
    assert inbox.payloads == []
    await asyncio.sleep(0.2)
    assert inbox.payloads == [b"two"], "what is put now is not kept back by what was put before"
    await asyncio.sleep((due_ms - machine.now_ms) / 1000 - 0.1)
    assert inbox.payloads == [b"two"], "never early by the wall clock"
    await asyncio.sleep(0.2)
    assert inbox.payloads == [b"two", b"one"]


@on_a_machine
async def test_expiry_goes_by_the_wall_clock(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(dead_letter="dead"))
    await put(broker, "jobs", b"one", ttl_ms=60_000)
    _set_clock(machine, -FIVE_HOURS_MS)
    await asyncio.sleep(120)
    assert broker.queues.describe("jobs").ready == 1
    _set_clock(machine, FIVE_HOURS_MS)
    await asyncio.sleep(NOTICED_S + 1)
    assert [one.delivered.message.payload for one in broker.queues.peek("dead", 5)] == [b"one"]


@pytest.mark.parametrize("by_ms", [-FIVE_HOURS_MS, FIVE_HOURS_MS])
def test_what_is_stored_keeps_its_time_over_a_restart_with_another_clock(by_ms: int) -> None:
    @on_a_machine
    async def check(machine: Machine) -> None:
        broker = machine.broker
        await broker.queues.declare("jobs", QueueSettings(hold_ms=3_000))
        await put(broker, "jobs", b"in flight")
        inbox = Inbox(broker, "jobs")
        await put(broker, "jobs", b"delayed", delay_ms=FIVE_HOURS_MS + 10_000)
        due_ms = machine.now_ms + FIVE_HOURS_MS + 10_000
        await asyncio.sleep(1)
        assert inbox.payloads == [b"in flight"]
        _set_clock(machine, by_ms)
        broker = await machine.again()
        inbox = Inbox(broker, "jobs")
        await asyncio.sleep(1)
        assert inbox.payloads == [b"in flight"], "nobody has it after a restart: it is redelivered at once"
        await inbox.ack(inbox.got[0])
        await asyncio.sleep((due_ms - machine.now_ms) / 1000 - 0.1)
        assert inbox.payloads == [b"in flight"]
        await asyncio.sleep(0.2)
        assert inbox.payloads == [b"in flight", b"delayed"]

    check()
