"""A queue's reader: what it claims is nobody else's, is no delivery, and can be claimed again after any crash."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.queue_kit import Inbox, Machine, on_a_machine, put
from waystation.broker.broker import Broker
from waystation.errors import Conflict, Invalid, StorageFailed, WaystationError
from waystation.message import Run
from waystation.protocol import EntriesAnswer
from waystation.queues.feed import Verdict
from waystation.queues.inspection import read_entries
from waystation.queues.ledger.runs import common, runs_of, without
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.queue_reader import QueueReader


def reader_of(broker: Broker, queue: str = "jobs") -> QueueReader:
    ended: list[WaystationError] = []
    return broker.queues.open_reader(queue, "spark", on_end=ended.append)


def payloads(answer: EntriesAnswer) -> list[bytes]:
    return [delivered.message.payload for delivered in answer.messages]


async def ack(broker: Broker, reader: QueueReader, runs: list[Run]) -> list[Run]:
    settled = reader.settle(Verdict.ACK, runs)
    await broker.durable(settled.receipt)
    return settled.unknown


def counts(broker: Broker, queue: str = "jobs") -> tuple[int, int, int]:
    info = broker.queues.describe(queue)
    return info.ready, info.parked, info.held


@on_a_machine
async def test_what_a_reader_acks_is_gone_for_good_and_the_rest_is_as_it_was(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_deliveries=1))
    await put(broker, "jobs", *[b"%d" % i for i in range(10)])
    reader = reader_of(broker)
    assert await reader.claim(4, 0, 0) == [(0, 4)]
    assert await reader.claim(4, 0, 0) == [(4, 4)]
    assert counts(broker) == (2, 0, 8)
    assert await ack(broker, reader, [(0, 4), (90, 2)]) == [(90, 2)]
    # The crash of a reader is no delivery: with a limit of one they would be dead otherwise.
    for _ in range(3):
        broker = await machine.again()
        reader = reader_of(broker)
        assert reader.claim_these([(2, 6)]) == [(4, 4)]
        assert payloads(read_entries(*broker.queues.get("jobs"), [(0, 10)], 100, 100)) == [
            b"%d" % i for i in range(4, 10)
        ]
    assert await ack(broker, reader, [(4, 4)]) == []
    broker = await machine.again()
    assert await reader_of(broker).claim(100, 0, 0) == [(8, 2)]


@on_a_machine
async def test_nothing_takes_what_is_claimed(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(ttl_ms=1000, max_length=3, overflow="drop-oldest"))
    await put(broker, "jobs", b"a", b"b", b"c")
    reader = reader_of(broker)
    with pytest.raises(Conflict, match="exclusive"):
        Inbox(broker, "jobs")
    assert await reader.claim(2, 0, 0) == [(0, 2)]
    assert broker.queues.getter("jobs", "amqp", silent=True).take(1)[0].message.payload == b"c"
    assert await broker.queues.purge("jobs") == 0
    for payload in (b"d", b"e", b"f", b"g"):
        await put(broker, "jobs", payload)
    await asyncio.sleep(5)
    assert payloads(read_entries(*broker.queues.get("jobs"), [(0, 2)], 100, 100)) == [b"a", b"b"]
    # What expired meanwhile does so when it is given back.
    reader.close()
    await asyncio.sleep(1)
    assert read_entries(*broker.queues.get("jobs"), [(0, 2)], 100, 100).messages == []


@on_a_machine
async def test_a_reader_waits_for_what_comes_or_becomes_due(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    reader = reader_of(broker)
    assert await reader.claim(5, 0, 50) == []
    waiting = asyncio.create_task(reader.claim(5, 0, 60_000))
    await asyncio.sleep(0.1)
    with pytest.raises(Conflict, match="waits"):
        await reader.claim(1, 0, 0)
    await put(broker, "jobs", b"later", delay_ms=5000)
    await put(broker, "jobs", b"now")
    assert await waiting == [(1, 1)]
    assert counts(broker) == (0, 1, 1)
    assert await reader.claim(5, 0, 60_000) == [(0, 1)]


@on_a_machine
async def test_priorities_go_first_and_bytes_are_counted(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    for i in range(6):
        await put(broker, "jobs", b"x" * 10, priority=i % 2)
    reader = reader_of(broker)
    assert await reader.claim(2, 0, 0) == [(1, 1), (3, 1)]
    assert await reader.claim(100, 25, 0) == [(0, 1), (2, 1)]
    assert await reader.claim(100, 5, 0) == [(4, 1)]
    assert await reader.claim(100, 5, 0) == [(5, 1)]
    reader.settle(Verdict.RELEASE, [(0, 6)])
    assert await reader.claim(100, 0, 0) == [(0, 6)]
    with pytest.raises(Invalid, match="can ack"):
        reader.settle(Verdict.REJECT, [(0, 1)])


@on_a_machine
async def test_a_reader_that_goes_gives_everything_back_and_is_told_when_its_queue_is_deleted(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"a", b"b")
    reader = reader_of(broker)
    await reader.claim(2, 0, 0)
    reader.close()
    assert counts(broker) == (2, 0, 0)
    assert reader.settle(Verdict.ACK, [(0, 2)]).unknown == [(0, 2)]
    reader = reader_of(broker)
    await reader.claim(2, 0, 0)
    waiting = asyncio.create_task(reader.claim(1, 0, 60_000))
    await asyncio.sleep(0.1)
    await broker.queues.delete("jobs")
    with pytest.raises(Conflict, match="was deleted"):
        await waiting


@on_a_machine
async def test_an_ack_that_the_disk_refuses_has_not_happened(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"a", b"b")
    reader = reader_of(broker)
    await reader.claim(2, 0, 0)
    fault = machine.refuse()
    with pytest.raises(StorageFailed):
        reader.settle(Verdict.ACK, [(0, 2)])
    machine.allow(fault)
    assert await ack(broker, reader, [(0, 2)]) == []
    assert counts(broker) == (0, 0, 0)


@on_a_machine
async def test_claims_in_a_snapshot_are_ready_after_it(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_deliveries=1))
    await put(broker, "jobs", *[b"%d" % i for i in range(100)])
    reader = reader_of(broker)
    await reader.claim(50, 0, 0)
    await broker.shards.checkpoint(force=True)
    broker = await machine.again()
    assert counts(broker) == (100, 0, 0)
    assert reader_of(broker).claim_these([(0, 50)]) == [(0, 50)]


ENTRIES = st.lists(st.integers(0, 40), max_size=30)


@given(ENTRIES, ENTRIES)
def test_runs_in_common_and_apart_are_those_of_sets(some: list[int], others: list[int]) -> None:
    mine, theirs = runs_of([*some]), runs_of([*others])
    assert common(mine, theirs) == runs_of([*set(some) & set(others)])
    assert without(mine, theirs) == runs_of([*set(some) - set(others)])
