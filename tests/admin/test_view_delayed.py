"""Messages that wait, in the order of their times: against plain sorting, with many of them, and while time passes."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.broker.queue_kit import HOUR_MS, Machine, on_a_machine
from waystation.admin.views.view_delayed import (
    SLICE,
    DelayedPlace,
    DelayedQuery,
    cancel_delayed,
    delayed_view,
    first_delayed,
    waiting_for_topics,
)
from waystation.errors import NotFound
from waystation.message import Message
from waystation.queues.ledger.ledger import Ledger

START = 1_700_000_000_000


def read_all(ledger: Ledger, count: int) -> list[DelayedPlace]:
    async def work() -> list[DelayedPlace]:
        found: list[DelayedPlace] = []
        after: DelayedPlace = (0, -1)
        while page := await first_delayed(ledger, after, count):
            assert len(page) <= count
            found += page
            after = page[-1]
        return found

    return asyncio.run(work())


@pytest.mark.parametrize("horizon_ms", [900, 50_000, 5 * HOUR_MS, 9_000 * HOUR_MS])
def test_pages_are_complete_and_in_order_over_any_horizon(horizon_ms: int) -> None:
    random = Random(horizon_ms)
    ledger = Ledger()
    waits: dict[int, int] = {}
    now = START
    ledger.lapse(now)
    for entry in range(0, SLICE + 3_000, 3):
        due = now + 1 + random.randrange(horizon_ms)
        ledger.admit_run(entry, 3, deliver_at_ms=due)
        waits.update(dict.fromkeys(range(entry, entry + 3), due))
    for entry in random.sample(sorted(waits), 1_000):
        if entry % 2:
            ledger.cancel(entry)
            del waits[entry]
        else:
            waits[entry] = now + 1 + random.randrange(horizon_ms)
            ledger.delay(entry, waits[entry])
    for step in range(3):
        wanted = sorted((due, entry) for entry, due in waits.items())
        assert read_all(ledger, 5_000) == wanted
        assert asyncio.run(first_delayed(ledger, (0, -1), 7)) == wanted[:7]
        if wanted:
            middle = wanted[len(wanted) // 2]
            behind = [place for place in wanted if place > middle]
            assert asyncio.run(first_delayed(ledger, middle, 100)) == behind[:100]
        now += horizon_ms // 7 * (step + 1)
        ledger.lapse(now)
        waits = {entry: due for entry, due in waits.items() if due > now}


@on_a_machine
async def test_they_are_found_after_a_restart_when_no_body_is_in_memory(machine: Machine) -> None:
    queues = machine.broker.queues
    await queues.declare("jobs")
    for first in range(0, 300, 100):
        messages = [
            Message(b"x" * n, id=f"m{n}", delay_ms=HOUR_MS + 1000 * (n * 7 % 300)) for n in range(first, first + 100)
        ]
        await queues.put_durable("jobs", messages)
    before = await delayed_view(machine.broker, DelayedQuery(queue="jobs", limit=1000))
    broker = await machine.again()
    after = await delayed_view(broker, DelayedQuery(queue="jobs", limit=1000))
    assert after == before
    assert [one.bytes * 7 % 300 for one in after.messages] == list(range(300))
    assert {one.why for one in after.messages} == {"delayed"}


@on_a_machine
async def test_one_that_was_published_cannot_be_cancelled_any_more(machine: Machine) -> None:
    broker = machine.broker
    await broker.messages.ensure("later")
    published = broker.messages.publish("later", [Message(b"x", id="one", delay_ms=1000)])
    await broker.durable(*published.receipts)
    assert waiting_for_topics(broker) == 1
    fault = machine.refuse(path_part="later")
    await asyncio.sleep(1.5)
    with pytest.raises(NotFound):
        await cancel_delayed(broker, "other", "one")
    machine.allow(fault)
    await asyncio.sleep(120)
    assert [each.message.payload for each in broker.messages.history("later", 5)] == [b"x"]
    with pytest.raises(NotFound, match="may have been published"):
        await cancel_delayed(broker, "later", "one")
