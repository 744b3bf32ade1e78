"""All transactional ids, findable by name and by producer id, and how they come back from the log.

Every change of a value goes through `apply`, so that the log, the entry and the indexes never disagree. Batches carry
only a producer id; `writer` finds the transaction they claim to belong to. Used by the coordinator and by `Ends`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from waystation.errors import Corrupt
from waystation.log.state import StateLog
from waystation.transactions.decision_records import Decision, decode_decision, decode_decision_key
from waystation.transactions.entry import TransactionEntry
from waystation.transactions.errors import InvalidProducerMapping
from waystation.transactions.fences import decode_fence, decode_fence_key
from waystation.transactions.machine import Transaction, TransactionState
from waystation.transactions.records import (
    ReservationKey,
    TransactionKey,
    decode_key,
    decode_reservation,
    decode_value,
)


class ReplayedIds(msgspec.Struct):
    """What a state log says besides transactions."""

    ids_end: int = 0
    """Producer ids below this may have been handed out."""
    decisions: dict[str, Decision] = msgspec.field(default_factory=dict)
    """The last one of every name."""
    fences: dict[str, int] = msgspec.field(default_factory=dict)
    """When a run was fenced, by the prefix of its transactional ids."""


class Table:
    """The coordinator's memory."""

    def __init__(self, home: Callable[[str], int]) -> None:
        """`home` says on which partition the state of a transactional id is."""
        self._home = home
        self._by_name: dict[str, TransactionEntry] = {}
        self._by_producer: dict[int, TransactionEntry] = {}
        self.ongoing: dict[TransactionEntry, None] = {}  # in the order in which they began

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[TransactionEntry]:
        return iter(self._by_name.values())

    def find(self, transactional_id: str) -> TransactionEntry | None:
        return self._by_name.get(transactional_id)

    def get(self, transactional_id: str) -> TransactionEntry:
        """The entry, or the error that a producer gets whose id is not (or no longer) known."""
        entry = self._by_name.get(transactional_id)
        if entry is None:
            raise InvalidProducerMapping(f"transactional id {transactional_id!r} is not known; restart the producer")
        return entry

    def writer(self, transactional_id: str | None, producer_id: int) -> TransactionEntry:
        """Whose transactional batch this is."""
        entry = self._by_producer.get(producer_id)
        if entry is None or (transactional_id is not None and entry.txn.transactional_id != transactional_id):
            raise InvalidProducerMapping(
                f"producer id {producer_id} is not the one of {transactional_id!r}; restart the producer"
            )
        return entry

    def create(self, txn: Transaction, log: StateLog) -> TransactionEntry:
        """A new transactional id, written to its log. Raises StorageFailed and keeps nothing if it cannot be."""
        entry = TransactionEntry(txn, log)
        entry.append(txn)
        self._index(entry)
        return entry

    def apply(self, entry: TransactionEntry, txn: Transaction) -> None:
        """The next value: to the log, the entry and the indexes. Raises StorageFailed, and then changes nothing."""
        before = entry.txn.producer.producer_id
        entry.append(txn)
        if txn.producer.producer_id != before:
            self._by_producer.pop(before, None)
        self._index(entry)

    def assume(self, entry: TransactionEntry, txn: Transaction) -> None:
        """The next value, in memory alone: the log says it in another way, by a decision."""
        entry.assume(txn)
        self._index(entry)

    def forget(self, entry: TransactionEntry, txn: Transaction) -> None:
        """An expired id: a tombstone, and it is removed."""
        entry.append_tombstone()
        self._drop(entry)
        entry.txn = txn

    def drop_topics(self, topics: frozenset[str]) -> None:
        for entry in self.ongoing:
            entry.txn = entry.txn.without_topics(topics)
            entry.ready = {partition for partition in entry.ready if partition[0] not in topics}

    def drop(self, partition: int) -> list[TransactionEntry]:
        """The ids of a partition are another broker's; returns them."""
        dropped = [entry for entry in self if entry.log.partition == partition]
        for entry in dropped:
            entry.dropped = True
            self._drop(entry)
        return dropped

    def replay(self, log: StateLog) -> ReplayedIds:
        """Reads a state log; the newest record of an id wins."""
        found = ReplayedIds()
        for batch in log.replay():
            try:
                for key, value in batch.records:
                    self._replay_record(found, log, key, value)
            except Corrupt as error:
                raise Corrupt(f"__transaction_state-{log.partition} at offset {batch.base_offset}: {error}") from error
        return found

    def _replay_record(self, found: ReplayedIds, log: StateLog, key: bytes, value: bytes | None) -> None:
        name = decode_decision_key(key)
        if name is not None:
            if value is None:
                found.decisions.pop(name, None)
            else:
                found.decisions[name] = decode_decision(name, value)
            return
        fenced = decode_fence_key(key)
        if fenced is not None:
            if value is None:
                found.fences.pop(fenced, None)
            else:
                found.fences[fenced] = decode_fence(fenced, value)
            return
        kind = decode_key(key)
        if isinstance(kind, ReservationKey) and value is not None:
            found.ids_end = max(found.ids_end, decode_reservation(value))
        if isinstance(kind, TransactionKey):
            self._replay_transaction(log, kind.transactional_id, value)

    def _replay_transaction(self, log: StateLog, transactional_id: str, value: bytes | None) -> None:
        known = self._by_name.get(transactional_id)
        if known is not None:
            if known.log is not log and known.log.partition == self._home(transactional_id):
                return  # an id with a slash was elsewhere in earlier versions: what its home says is newer
            self._drop(known)
        if value is not None:
            self._index(TransactionEntry(decode_value(transactional_id, value), log))

    def _index(self, entry: TransactionEntry) -> None:
        txn = entry.txn
        self._by_name[txn.transactional_id] = entry
        self._by_producer[txn.producer.producer_id] = entry
        if txn.state is TransactionState.ONGOING:
            self.ongoing[entry] = None
        else:
            self.ongoing.pop(entry, None)

    def _drop(self, entry: TransactionEntry) -> None:
        del self._by_name[entry.txn.transactional_id]
        self._by_producer.pop(entry.txn.producer.producer_id, None)
        self.ongoing.pop(entry, None)
