"""The coordinator's promises to producers and operators, on a fake disk and under virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.transactions.kit import OFFSETS, Broker, Marker, run
from waystation.errors import Invalid, InvalidPattern, ProducerEpochStale, Unavailable
from waystation.transactions.errors import (
    ConcurrentTransactions,
    InvalidProducerMapping,
    InvalidTransactionTimeout,
    KeepPreparedUnsupported,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
    TwoPhaseCommitOff,
)
from waystation.transactions.listing import TransactionFilter
from waystation.transactions.machine import LAST_USABLE_EPOCH, MAX_EPOCH, Producer, TransactionState
from waystation.transactions.settings import PRODUCER_ID_BLOCK

MINUTE = 60_000
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


async def opened(broker: Broker, name: str = "shop", timeout_ms: int = MINUTE) -> Producer:
    """An old client with an open transaction over a-0 and a-1 and a batch in each."""
    producer = await broker.transactions.init_producer_id(name, timeout_ms)
    await broker.transactions.add_partitions(name, producer, [A0, A1])
    assert broker.write(producer, *A0, tag="t1")
    assert broker.write(producer, *A1, tag="t1")
    return producer


def test_a_committed_transaction_is_seen_on_every_partition_at_once() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        assert await broker.transactions.end("shop", producer, True, bumps_epoch=False) == producer
        assert broker.seen(*A0) == broker.seen(*A1) == [("t1", True)]
        assert broker.transactions.describe("shop").state is TransactionState.COMPLETE_COMMIT

    run(story)


def test_an_aborted_transaction_is_seen_as_aborted() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        await broker.transactions.end("shop", producer, False, bumps_epoch=False)
        assert broker.seen(*A0) == broker.seen(*A1) == [("t1", False)]

    run(story)


def test_the_end_of_a_new_client_comes_with_a_new_epoch_and_its_markers_carry_it() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await broker.transactions.init_producer_id("shop", MINUTE)
        await broker.transactions.add_implicitly("shop", *producer, "a", [0])
        broker.write(producer, *A0, tag="t1")
        after = await broker.transactions.end("shop", producer, True, bumps_epoch=True)
        assert after == Producer(producer.producer_id, 1)
        assert broker.disk.data[A0][-1] == Marker(*after, True)
        assert await broker.transactions.end("shop", producer, True, bumps_epoch=True) == after, "repeated"

    run(story)


def test_no_data_is_accepted_before_its_partition_is_durably_in_the_transaction() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await broker.transactions.init_producer_id("shop", MINUTE)
        assert not broker.write(producer, *A0, tag="t1")
        broker.disk.gate = asyncio.Event()
        adding = asyncio.create_task(broker.transactions.add_partitions("shop", producer, [A0]))
        again = asyncio.create_task(broker.transactions.add_implicitly("shop", *producer, "a", [0]))
        await asyncio.sleep(1)
        assert not adding.done()
        assert not again.done(), "a second request waits for the same flush"
        assert not broker.write(producer, *A0, tag="t1")
        broker.disk.gate.set()
        await asyncio.gather(adding, again)
        assert broker.write(producer, *A0, tag="t1")

    run(story)


def test_the_outcome_is_durable_before_any_marker_is_written() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        broker.disk.gate = asyncio.Event()
        ending = asyncio.create_task(broker.transactions.end("shop", producer, True, bumps_epoch=False))
        await asyncio.sleep(1)
        assert broker.seen(*A0) == [("t1", None)]
        with pytest.raises(ConcurrentTransactions):
            broker.write(producer, *A0, tag="t2")
        with pytest.raises(ConcurrentTransactions):
            await broker.transactions.add_partitions("shop", producer, [B0])
        repeated = asyncio.create_task(broker.transactions.end("shop", producer, True, bumps_epoch=False))
        broker.disk.gate.set()
        assert await ending == await repeated == producer
        assert broker.seen(*A0) == [("t1", True)]
        assert broker.disk.data[A0].count(Marker(*producer, True)) == 1

    run(story)


def test_a_client_that_goes_away_amid_its_end_does_not_stop_it() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        broker.disk.gate = asyncio.Event()
        ending = asyncio.create_task(broker.transactions.end("shop", producer, True, bumps_epoch=False))
        await asyncio.sleep(1)
        ending.cancel()
        broker.disk.gate.set()
        await asyncio.sleep(1)
        assert broker.seen(*A0) == broker.seen(*A1) == [("t1", True)]

    run(story)


def test_a_starting_producer_aborts_what_its_predecessor_left_open() -> None:
    async def story() -> None:
        broker = await Broker().start()
        old = await opened(broker)
        new = await broker.transactions.init_producer_id("shop", MINUTE)
        assert new.producer_id == old.producer_id
        assert new.epoch > old.epoch
        assert broker.seen(*A0) == [("t1", False)]
        with pytest.raises(ProducerEpochStale):
            broker.write(old, *A0, tag="zombie")
        with pytest.raises(ProducerFenced):
            await broker.transactions.end("shop", old, True, bumps_epoch=False)
        with pytest.raises(ProducerFenced):
            await broker.transactions.add_partitions("shop", old, [A0])
        with pytest.raises(ProducerEpochStale):
            await broker.transactions.add_implicitly("shop", *old, "a", [0])

    run(story)


def test_two_producers_that_start_at_once_get_different_epochs() -> None:
    async def story() -> None:
        broker = await Broker().start()
        await opened(broker)
        starts = [broker.transactions.init_producer_id("shop", MINUTE) for _ in range(5)]
        starts += [broker.transactions.init_producer_id("new", MINUTE) for _ in range(5)]
        producers = await asyncio.gather(*starts)
        assert len(set(producers)) == len(producers)

    run(story)


def test_a_transaction_that_takes_too_long_is_aborted_by_the_broker() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker, timeout_ms=5_000)
        await asyncio.sleep(4.9)
        assert broker.seen(*A0) == [("t1", None)]
        await asyncio.sleep(0.2)
        assert broker.seen(*A0) == broker.seen(*A1) == [("t1", False)]
        with pytest.raises(ProducerFenced):
            await broker.transactions.end("shop", producer, True, bumps_epoch=False)
        assert (await broker.transactions.init_producer_id("shop", MINUTE, producer)).epoch == 1

    run(story)


def test_a_new_client_goes_on_after_its_transaction_timed_out() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await broker.transactions.init_producer_id("shop", 5_000)
        await broker.transactions.add_implicitly("shop", *producer, "a", [0])
        await asyncio.sleep(6)
        with pytest.raises(TransactionAbortable):
            await broker.transactions.end("shop", producer, True, bumps_epoch=True)
        after = await broker.transactions.end("shop", producer, False, bumps_epoch=True)
        await broker.transactions.add_implicitly("shop", *after, "a", [0])
        assert broker.write(after, *A0, tag="t2")

    run(story)


@pytest.mark.parametrize("shift_ms", [-18_000_000, 18_000_000])
def test_a_wall_clock_that_is_set_ends_no_transaction_and_keeps_none_open(shift_ms: int) -> None:
    async def story() -> None:
        broker = await Broker().start()
        await opened(broker, timeout_ms=600_000)
        broker.clock.shift_ms = shift_ms
        await asyncio.sleep(590)
        assert broker.seen(*A0) == [("t1", None)], "it is open"
        await asyncio.sleep(11)
        assert broker.seen(*A0) == [("t1", False)]

    run(story)


def test_after_a_restart_with_a_clock_that_was_set_back_a_transaction_has_its_timeout_at_most() -> None:
    async def story() -> None:
        broker = await Broker().start()
        broker.clock.shift_ms = 18_000_000  # the next broker's clock is without it
        producer = await opened(broker, timeout_ms=20_000)
        broker = await broker.restarted()
        assert broker.write(producer, *A0, tag="t1")
        await asyncio.sleep(21)
        assert broker.seen(*A0) == [("t1", False)]

    run(story)


def test_timeouts_of_many_transactions_each_come_in_time() -> None:
    async def story() -> None:
        broker = await Broker().start()
        for i in (9, 1, 5):
            producer = await broker.transactions.init_producer_id(f"id-{i}", i * 1_000)
            await broker.transactions.add_partitions(f"id-{i}", producer, [("t", i)])
        seen = []
        for _ in range(12):
            await asyncio.sleep(1)
            seen.append(len(broker.transactions.listing(TransactionFilter(states=frozenset({"Ongoing"}))).transactions))
        assert seen == [3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0] or seen == [2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0]

    run(story)


def test_a_transaction_ends_once_the_disk_takes_writes_again() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        broker.disk.markers_failing = True
        with pytest.raises(Exception, match="disk full"):
            await broker.transactions.end("shop", producer, True, bumps_epoch=False)
        with pytest.raises(ConcurrentTransactions):
            await broker.transactions.end("shop", producer, True, bumps_epoch=False)
        with pytest.raises(ConcurrentTransactions):
            await broker.transactions.init_producer_id("shop", MINUTE)
        await asyncio.sleep(60)
        broker.disk.markers_failing = False
        broker.disk.failing = True
        await asyncio.sleep(60)
        assert broker.seen(*A0) == [("t1", None)]
        broker.disk.failing = False
        await asyncio.sleep(11)
        assert broker.seen(*A0) == broker.seen(*A1) == [("t1", True)]
        assert await broker.transactions.end("shop", producer, True, bumps_epoch=False) == producer

    run(story)


def test_a_partition_whose_addition_failed_is_not_written_to_until_it_is_added_again() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await broker.transactions.init_producer_id("shop", MINUTE)
        broker.disk.gate = asyncio.Event()
        adding = asyncio.create_task(broker.transactions.add_partitions("shop", producer, [A0]))
        await asyncio.sleep(1)
        broker.disk.failing = True
        broker.disk.gate.set()
        with pytest.raises(Exception, match="disk full"):
            await adding
        broker.disk.failing = False
        broker.disk.state.clear()  # the disk lost all of it
        assert not broker.write(producer, *A0, tag="t1")
        await broker.transactions.add_partitions("shop", producer, [A0])
        assert broker.write(producer, *A0, tag="t1")
        again = await broker.restarted()
        assert again.write(producer, *A0, tag="t1"), "the record is on the disk"

    run(story)


def test_an_open_transaction_survives_a_restart_and_its_timeout_runs_on() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker, timeout_ms=20_000)
        await asyncio.sleep(15)
        broker = await broker.restarted()
        assert broker.write(producer, *A0, tag="t1")
        await asyncio.sleep(6)
        assert broker.seen(*A0) == [("t1", False)]

    run(story)


def test_an_end_found_after_a_kill_is_made_durable_before_its_markers_are_written() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        broker.disk.gate = asyncio.Event()
        ending = asyncio.create_task(broker.transactions.end("shop", producer, True, bumps_epoch=False))
        await asyncio.sleep(1)
        disk = broker.disk.crashed(lambda n: n, lambda n: n, power=False)
        disk.gate = asyncio.Event()
        again = Broker(disk)
        starting = asyncio.create_task(again.start())
        await asyncio.sleep(1)
        assert again.seen(*A0) == [("t1", None)], "a power cut now would forget the Prepare"
        disk.gate.set()
        await starting
        assert again.seen(*A0) == again.seen(*A1) == [("t1", True)]
        ending.cancel()

    run(story)


def test_ids_epochs_and_producer_ids_survive_a_restart() -> None:
    async def story() -> None:
        broker = await Broker().start()
        first = await broker.transactions.init_producer_id("shop", MINUTE)
        loose = [(await broker.transactions.init_producer_id(None, MINUTE)).producer_id for _ in range(3)]
        broker = await broker.restarted()
        assert await broker.transactions.init_producer_id("shop", MINUTE) == Producer(first.producer_id, 1)
        later = (await broker.transactions.init_producer_id(None, MINUTE)).producer_id
        assert later not in {first.producer_id, *loose}

    run(story)


def test_a_producer_id_is_never_handed_out_twice_whatever_the_block() -> None:
    async def story() -> None:
        broker = await Broker().start()
        seen: list[int] = []
        for _ in range(3):
            wanted = [broker.transactions.init_producer_id(None, 0) for _ in range(PRODUCER_ID_BLOCK + 10)]
            seen += [producer.producer_id for producer in await asyncio.gather(*wanted)]
            broker = await Broker(broker.disk.crashed(lambda n: 0, lambda n: 0)).start()
        assert len(set(seen)) == len(seen)

    run(story)


def test_epochs_that_run_out_bring_a_fresh_producer_id() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await broker.transactions.init_producer_id("shop", MINUTE)
        old_id = producer.producer_id
        for _ in range(LAST_USABLE_EPOCH):
            producer = await broker.transactions.init_producer_id("shop", MINUTE, producer)
        assert producer == Producer(old_id, LAST_USABLE_EPOCH)
        await broker.transactions.add_implicitly("shop", *producer, "a", [0])
        broker.write(producer, *A0, tag="t1")
        after = await broker.transactions.end("shop", producer, True, bumps_epoch=True)
        assert after.epoch == 0
        assert after.producer_id != old_id
        assert broker.disk.data[A0][-1] == Marker(old_id, MAX_EPOCH, True)
        assert await broker.transactions.end("shop", producer, True, bumps_epoch=True) == after, "repeated"
        with pytest.raises(InvalidProducerMapping):
            broker.write(producer, *A0, tag="zombie")
        await broker.transactions.add_implicitly("shop", *after, "a", [0])
        assert broker.write(after, *A0, tag="t2")

    run(story)


def test_offsets_of_a_group_join_and_end_with_the_transaction() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        assert not broker.transactions.check_offsets("shop", producer, "abc")
        await broker.transactions.add_offsets("shop", producer, "abc")
        assert broker.transactions.check_offsets("shop", producer, "abc")
        await broker.transactions.end("shop", producer, True, bumps_epoch=False)
        assert broker.disk.data[(OFFSETS, 3)] == [Marker(*producer, True)]

        other = await broker.transactions.init_producer_id("new", MINUTE)
        await broker.transactions.add_offsets_implicitly("new", other, "abcde")
        await broker.transactions.end("new", other, False, bumps_epoch=True)
        assert broker.disk.data[(OFFSETS, 1)] == [Marker(other.producer_id, 1, False)]

    run(story)


def test_partitions_that_are_gone_do_not_hold_up_an_end() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        await broker.transactions.add_partitions("shop", producer, [B0])
        broker.markers.missing.add("a")
        await broker.transactions.end("shop", producer, True, bumps_epoch=False)
        assert broker.disk.data[B0] == [Marker(*producer, True)]

    run(story)


def test_deleted_topics_leave_open_transactions() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        await broker.transactions.add_partitions("shop", producer, [B0])
        broker.transactions.on_topics_deleted(["a"])
        assert broker.transactions.describe("shop").partitions == {B0}
        assert not broker.write(producer, *A0, tag="t1"), "a re-created topic has to be added again"

    run(story)


def test_idle_transactional_ids_are_forgotten_and_their_records_erased() -> None:
    async def story() -> None:
        broker = await Broker(settings={"transactional.id.expiration.ms": "7200000"}).start()
        idle = await broker.transactions.init_producer_id("idle", MINUTE)
        await opened(broker, "busy", timeout_ms=900_000)
        for _ in range(12):
            await asyncio.sleep(800)
            await broker.transactions.init_producer_id("busy", 900_000)
            await opened(broker, "busy", timeout_ms=900_000)
        with pytest.raises(TransactionalIdNotFound):
            broker.transactions.describe("idle")
        with pytest.raises(InvalidProducerMapping):
            await broker.transactions.add_partitions("idle", idle, [A0])
        broker = await broker.restarted()
        with pytest.raises(TransactionalIdNotFound):
            broker.transactions.describe("idle")
        again = await broker.transactions.init_producer_id("idle", MINUTE, idle)
        assert again.producer_id != idle.producer_id

    run(story)


def test_a_batch_is_matched_to_its_transactional_id_by_its_producer_id() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        assert broker.transactions.check_produce("shop", *producer, *A0)
        for name, producer_id in (("other", producer.producer_id), ("shop", 12345), (None, 12345)):
            with pytest.raises(InvalidProducerMapping):
                broker.transactions.check_produce(name, producer_id, 0, *A0)
        with pytest.raises(ProducerEpochStale):
            broker.transactions.check_produce("shop", producer.producer_id, 9, *A0)
        found = broker.transactions.verify_partitions("shop", producer, [A0, B0])
        assert found == {A0: True, B0: False}

    run(story)


def test_what_init_refuses() -> None:
    async def story() -> None:
        broker = await Broker(settings={"transaction.max.timeout.ms": "1000"}).start()
        init = broker.transactions.init_producer_id
        for timeout_ms in (0, -1, 1_001):
            with pytest.raises(InvalidTransactionTimeout):
                await init("shop", timeout_ms)
        for name in ("", "x" * 1_025):
            with pytest.raises(Invalid):
                await init(name, 1_000)
        with pytest.raises(TwoPhaseCommitOff):
            await init("shop", 1_000, two_phase=True)
        with pytest.raises(KeepPreparedUnsupported):
            await init("shop", 1_000, keep_prepared=True)
        with pytest.raises(InvalidProducerMapping):
            await broker.transactions.end("unknown", Producer(1, 0), True, bumps_epoch=False)
        with pytest.raises(Invalid):
            broker.transactions.describe("")

    run(story)


def test_a_closed_coordinator_says_so() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        await broker.transactions.close()
        with pytest.raises(Unavailable):
            await broker.transactions.init_producer_id(None, 1_000)
        with pytest.raises(Unavailable):
            await broker.transactions.end("shop", producer, True, bumps_epoch=False)

    run(story)


def test_listing_by_state_producer_and_duration() -> None:
    async def story() -> None:
        broker = await Broker().start()
        producer = await opened(broker)
        await broker.transactions.init_producer_id("empty", MINUTE)

        def names(wanted: TransactionFilter) -> list[str]:
            return sorted(txn.transactional_id for txn in broker.transactions.listing(wanted).transactions)

        assert names(TransactionFilter()) == ["empty", "shop"]
        assert names(TransactionFilter(states=frozenset({"Ongoing", "Nonsense"}))) == ["shop"]
        assert broker.transactions.listing(TransactionFilter(states=frozenset({"Nonsense"}))).unknown_states == (
            "Nonsense",
        )
        assert names(TransactionFilter(states=frozenset({"Nonsense"}))) == []
        assert names(TransactionFilter(producer_ids=frozenset({producer.producer_id}))) == ["shop"]
        await asyncio.sleep(5)
        assert names(TransactionFilter(min_duration_ms=4_000)) == ["shop"]
        assert names(TransactionFilter(min_duration_ms=6_000)) == []
        assert names(TransactionFilter(id_pattern="s.*p")) == ["shop"]
        assert names(TransactionFilter(id_pattern="sho")) == []
        with pytest.raises(InvalidPattern):
            names(TransactionFilter(id_pattern="(("))

    run(story)


def test_an_operator_ends_a_transaction_that_hangs_on_a_partition() -> None:
    async def story() -> None:
        broker = await Broker().start()
        broker.transactions.write_marker("a", 0, Producer(77, 3), False, 0)
        assert broker.disk.data[A0] == [Marker(77, 3, False)]

    run(story)
