"""A coordinator leads some state logs and not others: what it leads it knows from the log, and of what it does not lead
it says who is to be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.transactions.kit import PARTITIONS, Broker, FakeStateLog, run
from tests.transactions.test_decisions import MINUTE, NAMES, PLACES, ends, stage, stage_all
from waystation.errors import StorageFailed
from waystation.groups.machines.errors import NotCoordinator
from waystation.protocols.kafka.requests.errors_map import code_of
from waystation.transactions.decision_records import Staged
from waystation.transactions.listing import TransactionFilter
from waystation.transactions.machine import Producer
from waystation.transactions.records import partition_for, partition_for_name

SHOP = partition_for("shop", PARTITIONS)
JOB = partition_for_name("job", PARTITIONS)


async def begun(broker: Broker, name: str = "shop", tag: object = "first") -> Producer:
    producer = await broker.transactions.init_producer_id(name, MINUTE)
    await broker.transactions.add_partitions(name, producer, PLACES)
    for place in PLACES:
        assert broker.write(producer, *place, tag=tag)
    return producer


async def lead(broker: Broker, partition: int, epoch: int = 0) -> None:
    await broker.transactions.lead(FakeStateLog(broker.disk, partition, epoch))


def test_what_is_committed_together_has_one_coordinator() -> None:
    assert {partition_for(name, PARTITIONS) for name in NAMES} == {JOB}
    assert partition_for("/", PARTITIONS) == partition_for_name("/", PARTITIONS)


def test_what_is_not_led_is_refused_with_the_code_that_makes_clients_look_for_the_coordinator() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await begun(broker)
        transactions = broker.transactions
        transactions.drop(SHOP)
        transactions.drop(JOB)
        asks: list[Callable[[], Awaitable[object]]] = [
            lambda: transactions.init_producer_id("shop", MINUTE),
            lambda: transactions.add_partitions("shop", producer, PLACES),
            lambda: transactions.add_implicitly("shop", *producer, "a", [0]),
            lambda: transactions.add_offsets("shop", producer, "g"),
            lambda: transactions.end("shop", producer, True, bumps_epoch=False),
            lambda: transactions.commit_all("job", 0, []),
            lambda: transactions.abort_all([Staged("shop", *producer)]),
        ]
        for ask in asks:
            with pytest.raises(NotCoordinator) as refused:
                await ask()
            assert code_of(refused.value).name == "not_coordinator"
        for look in (
            lambda: transactions.describe("shop"),
            lambda: transactions.decided("job"),
            lambda: transactions.check_produce("shop", *producer, "a", 0),
            lambda: transactions.verify_partitions("shop", producer, PLACES),
        ):
            with pytest.raises(NotCoordinator):
                look()
        assert not transactions.listing(TransactionFilter()).transactions
        await begun(broker, next(name for name in map(str, range(100)) if partition_for(name, PARTITIONS) != SHOP))

    run(story)


def test_a_log_that_is_led_again_is_what_it_says_and_time_runs_again() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await begun(broker)
        broker.transactions.drop(SHOP)
        await asyncio.sleep(30)
        assert broker.seen("a", 0) == [("first", None)]
        await lead(broker, SHOP)
        assert broker.write(producer, "a", 0, tag="first"), "it is still open, and goes on"
        await asyncio.sleep(40)
        assert broker.seen("a", 0) == [("first", False)], "its time has run out"

    run(story)


def test_nobody_ends_a_transaction_while_another_broker_leads_it() -> None:
    async def story() -> None:
        broker = await Broker().start()
        await begun(broker)
        broker.transactions.drop(SHOP)
        await asyncio.sleep(600)
        assert broker.seen("a", 0) == [("first", None)]

    run(story)


def test_an_end_that_was_prepared_is_carried_out_by_the_next_leader_and_by_nobody_else() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await begun(broker)
        broker.disk.gate = asyncio.Event()
        ending = asyncio.create_task(broker.transactions.end("shop", producer, True, bumps_epoch=False))
        await asyncio.sleep(0.01)
        broker.transactions.drop(SHOP)
        broker.disk.gate.set()
        with pytest.raises(NotCoordinator):
            await ending
        await asyncio.sleep(60)
        assert broker.seen("a", 0) == [("first", None)]
        await lead(broker, SHOP, epoch=7)
        assert broker.seen("a", 0) == [("first", True)]
        assert broker.markers.epochs == [7] * len(PLACES), "each marker carries the epoch of who leads the log"

    run(story)


def test_an_end_that_waits_for_the_disk_stops_when_the_log_is_dropped() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await begun(broker)
        broker.disk.markers_failing = True
        with pytest.raises(StorageFailed):
            await broker.transactions.end("shop", producer, True, bumps_epoch=False)
        broker.transactions.drop(SHOP)
        broker.disk.markers_failing = False
        await asyncio.sleep(600)
        assert broker.seen("a", 0) == [("first", None)]
        await lead(broker, SHOP)
        assert broker.seen("a", 0) == [("first", True)]

    run(story)


def test_a_decision_that_is_under_way_is_carried_out_whole_by_the_next_leader() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        broker.disk.gate = asyncio.Event()
        committing = asyncio.create_task(broker.transactions.commit_all("job", 1, staged))
        await asyncio.sleep(0.01)
        broker.transactions.drop(JOB)
        broker.disk.gate.set()
        with pytest.raises(NotCoordinator):
            await committing
        await asyncio.sleep(600)
        assert ends(broker) == {name: {None} for name in NAMES}
        await lead(broker, JOB)
        assert ends(broker) == {name: {True} for name in NAMES}
        assert await broker.transactions.commit_all("job", 1, staged), "the same request, repeated"
        again = [await stage(broker, NAMES[0], "again")]
        assert not await broker.transactions.commit_all("job", 1, again), "others come too late"

    run(story)


def test_what_was_staged_and_not_decided_is_still_staged_under_the_next_leader() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        broker.transactions.drop(JOB)
        await lead(broker, JOB)
        assert ends(broker) == {name: {None} for name in NAMES}
        assert await broker.transactions.commit_all("job", 1, staged)
        assert ends(broker) == {name: {True} for name in NAMES}

    run(story)


def test_producer_ids_are_handed_out_once_whoever_leads() -> None:
    async def story() -> None:
        broker = await Broker().start()
        seen = {(await broker.transactions.init_producer_id(None, 0)).producer_id for _ in range(5)}
        broker.transactions.drop(0)
        await lead(broker, 0)
        more = {(await broker.transactions.init_producer_id(None, 0)).producer_id for _ in range(5)}
        assert len(seen | more) == 10

    run(story)


def test_an_id_that_was_kept_elsewhere_by_an_earlier_version_is_found_and_moves_when_it_is_made_again() -> None:
    async def story() -> None:
        home = partition_for("shop/1", PARTITIONS)
        old = next(number for number in range(PARTITIONS) if number != home)
        broker = await Broker().start()
        producer = await broker.transactions.init_producer_id("shop/1", MINUTE)
        broker.disk.state[old] = [*broker.disk.state.get(old, []), *broker.disk.state.pop(home)]
        broker = await broker.restarted()
        newer = await broker.transactions.init_producer_id("shop/1", MINUTE)
        assert (newer.producer_id, newer.epoch) == (producer.producer_id, producer.epoch + 1)
        broker.clock.shift_ms = 30 * 86_400_000
        assert broker.transactions.expire_idle() == ["shop/1"]
        fresh = await broker.transactions.init_producer_id("shop/1", MINUTE)
        broker = await broker.restarted()
        assert broker.transactions.describe("shop/1").producer == fresh

    run(story)
