"""One transactional id as the running coordinator holds it: its present value, and how much of it the disk holds.

A change is applied in memory before it is durable, so the memory may be ahead of the disk. `ready` is the one thing
that must not be: data may be written to a partition only when the log durably says that the partition belongs to the
transaction. Otherwise a crash could leave data of a transaction that nobody remembers, and that is never ended.
"""

from __future__ import annotations

import asyncio

import msgspec

from waystation.groups.machines.errors import NotCoordinator
from waystation.log.state import StateLog
from waystation.transactions.machine import Producer, TopicPartition, Transaction, TransactionState
from waystation.transactions.records import encode_key, encode_value


class TransactionEntry(msgspec.Struct, eq=False):
    """Owned by the coordinator; the state log is that of the id's partition."""

    txn: Transaction
    log: StateLog
    ready: set[TopicPartition] = msgspec.field(default_factory=set)
    """Partitions that are durably part of the present transaction."""
    serial: int = 0
    """Counts transactions, so that who waited for the disk knows whether the transaction is still the same."""
    unsaved: bool = False
    """The newest record may not have reached the disk, and never will by itself."""
    deadline_ms: int = 0
    """When an open transaction is aborted, by the monotonic clock. Stored is when it began, by the wall clock."""
    finishing: asyncio.Task[Producer] | None = None
    retries: int = 0
    reopening: bool = False
    """It was open when its log was replayed, and is not durably so yet."""
    dropped: bool = False
    """Another broker coordinates the id: whoever still holds this one may do nothing more with it."""

    def append(self, txn: Transaction) -> None:
        """Writes and applies a new value, or raises StorageFailed or NotCoordinator and changes nothing."""
        self._check_led()
        self.log.append([(encode_key(txn.transactional_id), encode_value(txn))])
        self.assume(txn)
        self.unsaved = False

    def assume(self, txn: Transaction) -> None:
        """Applies a new value that the log does not hold under this id."""
        if self.txn.state is not TransactionState.ONGOING or txn.state is not TransactionState.ONGOING:
            self.ready.clear()
            self.serial += 1
        self.txn = txn

    def append_tombstone(self) -> None:
        self._check_led()
        self.log.append([(encode_key(self.txn.transactional_id), None)])

    async def committed(self) -> None:
        """Waits until all that was appended is durable. Raises NotCoordinator if nobody can tell any more: another
        broker has the id by now."""
        try:
            await self.log.committed()
        except Exception:
            self.unsaved = True
            self._check_led()
            raise
        self._check_led()

    def _check_led(self) -> None:
        if self.dropped:
            raise NotCoordinator(
                f"this broker is not the coordinator of transactional id {self.txn.transactional_id!r} any more; "
                "ask which one is"
            )

    def may_write(self, partition: TopicPartition) -> bool:
        return self.txn.state is TransactionState.ONGOING and partition in self.ready
