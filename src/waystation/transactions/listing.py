"""Which transactions an operator wants to see (ListTransactions), as a pure filter over the coordinator's values."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from waystation.routing.matching.regex import Regex
from waystation.transactions.machine import PREPARED, Transaction, TransactionState

_BY_LABEL = {state.label: state for state in TransactionState}


class TransactionFilter(msgspec.Struct, frozen=True):
    """Empty means: all."""

    states: frozenset[str] = frozenset()
    """By Kafka's spelling, for instance `Ongoing`."""
    producer_ids: frozenset[int] = frozenset()
    min_duration_ms: int = -1
    """Only transactions that have been open for longer."""
    id_pattern: str = ""
    """A regular expression, as for subscriptions, that the whole transactional id has to match."""


class Listing(msgspec.Struct, frozen=True):
    transactions: tuple[Transaction, ...]
    unknown_states: tuple[str, ...]
    """States in the filter that do not exist."""


def select(transactions: Iterable[Transaction], wanted: TransactionFilter, now_ms: int) -> Listing:
    """Raises InvalidPattern if the pattern is none."""
    pattern = Regex(wanted.id_pattern) if wanted.id_pattern else None
    states = {_BY_LABEL[label] for label in wanted.states if label in _BY_LABEL}
    unknown = tuple(sorted(label for label in wanted.states if label not in _BY_LABEL))
    chosen = [
        txn
        for txn in transactions
        if (not wanted.states or txn.state in states)
        and (not wanted.producer_ids or txn.producer.producer_id in wanted.producer_ids)
        and (wanted.min_duration_ms < 0 or _open_for_longer(txn, wanted.min_duration_ms, now_ms))
        and (pattern is None or pattern.matches(txn.transactional_id))
    ]
    return Listing(tuple(chosen), unknown)


def _open_for_longer(txn: Transaction, duration_ms: int, now_ms: int) -> bool:
    return (txn.state is TransactionState.ONGOING or txn.state in PREPARED) and now_ms - txn.started_ms > duration_ms
