"""The life of one transactional id, told as stories on the pure state machine."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from waystation.transactions.errors import (
    ConcurrentTransactions,
    InvalidProducerMapping,
    InvalidTransactionState,
    ProducerFenced,
    TransactionAbortable,
)
from waystation.transactions.machine import (
    LAST_USABLE_EPOCH,
    MAX_EPOCH,
    MOVES,
    Next,
    Producer,
    Transaction,
    TransactionState,
    moves_table,
)

ORDERS = ("orders", 0)
PAYMENTS = ("payments", 3)


def born(epoch: int = 0) -> Transaction:
    return Transaction("shop", Producer(7, epoch), timeout_ms=60_000, updated_ms=0)


def moved(step: Transaction | Next) -> Transaction:
    assert isinstance(step, Transaction)
    return step


def opened(epoch: int = 0, *, bumps_epoch: bool = False) -> Transaction:
    txn = born(epoch)
    return txn.add(txn.producer, [ORDERS], 10, bumps_epoch=bumps_epoch)


def ended(txn: Transaction, commit: bool, *, bumps_epoch: bool, fresh_id: int | None = None) -> Transaction:
    return moved(txn.end(txn.producer, commit, bumps_epoch, 20, fresh_id)).completed(30)


def test_the_moves_can_be_printed_and_an_outcome_never_changes() -> None:
    table = moves_table()
    assert "PrepareCommit" in table
    assert len(table.splitlines()) == len(TransactionState) + 1
    for (state, _), target in MOVES.items():
        if state is TransactionState.PREPARE_COMMIT:
            assert target is TransactionState.COMPLETE_COMMIT
        if state is TransactionState.PREPARE_ABORT:
            assert target is TransactionState.COMPLETE_ABORT
    assert not any(state is TransactionState.DEAD for state, _ in MOVES)


def test_an_old_client_keeps_its_epoch_for_many_transactions() -> None:
    txn = born()
    for _ in range(3):
        txn = txn.add(txn.producer, [ORDERS], 1).add(txn.producer, [PAYMENTS], 2)
        assert txn.partitions == {ORDERS, PAYMENTS}
        txn = moved(txn.end(txn.producer, True, False, 3))
        assert (txn.state, txn.producer) == (TransactionState.PREPARE_COMMIT, Producer(7, 0))
        txn = txn.completed(4)
        assert (txn.state, txn.producer, txn.partitions) == (
            TransactionState.COMPLETE_COMMIT,
            Producer(7, 0),
            frozenset(),
        )


def test_a_new_client_gets_an_epoch_with_every_end() -> None:
    txn = opened(bumps_epoch=True)
    txn = moved(txn.end(Producer(7, 0), True, True, 3))
    assert txn.producer == Producer(7, 1), "the markers carry the new epoch already"
    txn = txn.completed(4)
    assert txn.producer == Producer(7, 1)
    with pytest.raises(ProducerFenced):
        txn.add(Producer(7, 0), [ORDERS], 5)
    txn = txn.add(Producer(7, 1), [ORDERS], 5, bumps_epoch=True)
    assert moved(txn.end(Producer(7, 1), False, True, 6)).completed(7).producer == Producer(7, 2)


@pytest.mark.parametrize("bumps_epoch", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_a_repeated_end_is_answered_like_the_first(commit: bool, bumps_epoch: bool) -> None:
    first = opened(bumps_epoch=bumps_epoch)
    prepared = moved(first.end(first.producer, commit, bumps_epoch, 20))
    assert prepared.end(first.producer, commit, bumps_epoch, 21) is Next.WAIT
    completed = prepared.completed(22)
    assert completed.end(first.producer, commit, bumps_epoch, 23) is Next.DONE


@pytest.mark.parametrize("bumps_epoch", [False, True])
def test_the_other_outcome_is_refused_once_one_is_prepared(bumps_epoch: bool) -> None:
    first = opened(bumps_epoch=bumps_epoch)
    for txn in (moved(first.end(first.producer, True, bumps_epoch, 20)), ended(first, True, bumps_epoch=bumps_epoch)):
        with pytest.raises(InvalidTransactionState):
            txn.end(first.producer, False, bumps_epoch, 23)


def test_nothing_joins_while_an_end_is_carried_out() -> None:
    txn = opened()
    txn = moved(txn.end(txn.producer, True, False, 20))
    with pytest.raises(ConcurrentTransactions):
        txn.add(txn.producer, [PAYMENTS], 21)
    assert txn.init(None, 60_000, 21) is Next.WAIT


def test_ending_what_was_never_begun() -> None:
    txn = born()
    for commit in (True, False):
        with pytest.raises(InvalidTransactionState):
            txn.end(txn.producer, commit, False, 1)
    with pytest.raises(InvalidTransactionState):
        txn.end(txn.producer, True, True, 1)
    # A new client aborts when its first writes failed, and relies on the new epoch to keep them out.
    aborted = ended(txn, False, bumps_epoch=True)
    assert (aborted.state, aborted.producer) == (TransactionState.COMPLETE_ABORT, Producer(7, 1))
    again = ended(aborted, False, bumps_epoch=True)
    assert again.producer == Producer(7, 2)


def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction() -> None:
    txn = opened(epoch=4)
    old = txn.producer
    assert txn.init(None, 30_000, 50) is Next.ABORT
    txn = txn.fenced_by_init(None, 50)
    assert (txn.state, txn.producer) == (TransactionState.PREPARE_ABORT, Producer(7, 5))
    txn = txn.completed(51)
    txn = moved(txn.init(None, 30_000, 52))
    assert (txn.state, txn.producer, txn.timeout_ms) == (TransactionState.EMPTY, Producer(7, 6), 30_000)
    with pytest.raises(ProducerFenced):
        txn.add(old, [ORDERS], 53)
    with pytest.raises(ProducerFenced):
        txn.end(old, True, False, 53)
    with pytest.raises(ProducerFenced):
        txn.init(old, 30_000, 53)


def test_a_producer_goes_on_with_a_new_epoch_after_an_error() -> None:
    txn = born(epoch=4)
    txn = moved(txn.init(Producer(7, 4), 60_000, 1))
    assert txn.producer == Producer(7, 5)
    repeated = moved(txn.init(Producer(7, 4), 60_000, 2))
    assert repeated.producer == Producer(7, 5), "the lost answer is given again"
    with pytest.raises(ProducerFenced):
        repeated.init(Producer(7, 3), 60_000, 3)
    newcomer = moved(repeated.init(None, 60_000, 4))
    with pytest.raises(ProducerFenced):
        newcomer.init(Producer(7, 4), 60_000, 5)


def test_a_producer_that_goes_on_amid_its_own_transaction_keeps_its_claim() -> None:
    txn = opened(epoch=4)
    me = txn.producer
    assert txn.init(me, 60_000, 50) is Next.ABORT
    txn = txn.fenced_by_init(me, 50).completed(51)
    txn = moved(txn.init(me, 60_000, 52))
    assert txn.producer == Producer(7, 5)
    with pytest.raises(ProducerFenced):
        opened(epoch=5).init(me, 60_000, 53)


def test_a_stranger_with_another_producer_id_is_told_so() -> None:
    txn = opened()
    with pytest.raises(InvalidProducerMapping):
        txn.add(Producer(8, 0), [ORDERS], 1)
    with pytest.raises(InvalidProducerMapping):
        txn.end(Producer(8, 0), True, True, 1)
    with pytest.raises(ProducerFenced):
        ended(txn, True, bumps_epoch=False).init(Producer(8, 0), 60_000, 1)


def test_an_old_client_that_timed_out_is_fenced_and_may_ask_for_a_new_epoch() -> None:
    txn = opened(epoch=4)
    me = txn.producer
    assert txn.deadline_ms == 10 + 60_000
    txn = moved(txn.timed_out(70_000))
    assert (txn.state, txn.producer) == (TransactionState.PREPARE_ABORT, Producer(7, 5))
    txn = txn.completed(70_001)
    with pytest.raises(ProducerFenced):
        txn.end(me, True, False, 70_002)
    assert moved(txn.init(me, 60_000, 70_003)).producer == Producer(7, 5)


def test_a_new_client_that_timed_out_learns_it_from_its_commit_and_goes_on_after_aborting() -> None:
    txn = opened(epoch=4, bumps_epoch=True)
    me = txn.producer
    txn = moved(txn.timed_out(70_000)).completed(70_001)
    with pytest.raises(TransactionAbortable):
        txn.end(me, True, True, 70_002)
    assert txn.end(me, False, True, 70_003) is Next.DONE
    assert txn.producer == Producer(7, 5)


def test_the_highest_epoch_is_never_given_away_and_a_fresh_producer_id_takes_over() -> None:
    txn = opened(epoch=LAST_USABLE_EPOCH, bumps_epoch=True)
    me = txn.producer
    assert txn.end(me, True, True, 20) is Next.PRODUCER_ID
    prepared = moved(txn.end(me, True, True, 20, fresh_id=99))
    assert prepared.producer == Producer(7, MAX_EPOCH), "the markers fence the old id for good"
    assert prepared.end(me, True, True, 21) is Next.WAIT
    txn = prepared.completed(22)
    assert txn.producer == Producer(99, 0)
    assert txn.end(me, True, True, 23) is Next.DONE
    assert moved(txn.init(me, 60_000, 24)).producer == Producer(99, 0)
    assert moved(txn.timed_out(25) if txn.state is TransactionState.ONGOING else txn).producer == Producer(99, 0)


def test_starting_at_the_last_epoch_takes_a_fresh_producer_id() -> None:
    txn = born(epoch=LAST_USABLE_EPOCH)
    assert txn.init(None, 60_000, 1) is Next.PRODUCER_ID
    assert moved(txn.init(None, 60_000, 1, fresh_id=99)).producer == Producer(99, 0)
    going_on = moved(txn.init(Producer(7, LAST_USABLE_EPOCH), 60_000, 1, fresh_id=99))
    assert going_on.producer == Producer(99, 0)
    repeated = moved(going_on.init(Producer(7, LAST_USABLE_EPOCH), 60_000, 2))
    assert repeated.producer == Producer(99, 0)


def test_fencing_at_the_last_epoch_uses_the_spare_one() -> None:
    txn = opened(epoch=LAST_USABLE_EPOCH)
    txn = txn.fenced_by_init(txn.producer, 20).completed(21)
    assert txn.producer == Producer(7, MAX_EPOCH)
    with pytest.raises(ProducerFenced):
        txn.add(Producer(7, MAX_EPOCH), [ORDERS], 22)
    assert moved(txn.init(Producer(7, LAST_USABLE_EPOCH), 60_000, 23, fresh_id=99)).producer == Producer(99, 0)


def test_idle_ids_expire_and_busy_ones_do_not() -> None:
    assert born().may_expire(now_ms=1_000, idle_ms=1_000)
    assert not born().may_expire(now_ms=999, idle_ms=1_000)
    assert not opened().may_expire(now_ms=10**9, idle_ms=1_000)
    assert born().expired(1_000).state is TransactionState.DEAD
    with pytest.raises(InvalidProducerMapping):
        born().expired(1_000).add(Producer(7, 0), [ORDERS], 1_001)


def test_deleted_topics_leave_an_open_transaction() -> None:
    txn = opened().add(Producer(7, 0), [PAYMENTS], 11)
    assert txn.without_topics(frozenset({"orders"})).partitions == {PAYMENTS}
    assert txn.without_topics(frozenset({"other"})) is txn
    prepared = moved(txn.end(txn.producer, True, False, 12))
    assert prepared.without_topics(frozenset({"orders"})) is prepared


def test_adding_what_is_in_already_changes_nothing() -> None:
    txn = opened()
    assert txn.add(txn.producer, [ORDERS], 99) is txn


def test_a_wall_clock_that_is_set_back_does_not_make_a_value_younger() -> None:
    assert replace(born(), updated_ms=500).add(Producer(7, 0), [ORDERS], 100).updated_ms == 500
