"""Transactions whose producers keep them together themselves, by producer ids and epochs. `Access.transactions`.

Whoever writes in a transaction is asked about its transactional id. The broker's own transactions (`Access.begin`) need
none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from waystation.broker.access.messaging.family import Family, in_order
from waystation.errors import NotAllowed
from waystation.groups.machines.calls import OffsetResult, OffsetToCommit
from waystation.topics.partitions.partition import Receipt
from waystation.topics.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from waystation.transactions.errors import TransactionAbortable
from waystation.transactions.listing import Listing, TransactionFilter
from waystation.transactions.machine import Producer, Transaction
from waystation.transactions.transacting import check_not_own
from waystation.transactions.writers import CheckProduce

NamedPartition = tuple[str, int]


class TransactionAccess(Family):
    """Made by `Access`."""

    __slots__ = ()

    def coordinator(self, transactional_id: str) -> int:
        """The node that coordinates transactions of this id, used before or not. NOBODY: none does now."""
        self._ask("describe", "transactional-id", transactional_id)
        return self._leader(TRANSACTIONS_TOPIC, self._broker.transactions.partition_of(transactional_id))

    # -- producers --------------------------------------------------------------------------------------------------

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        expected: Producer | None = None,
        *,
        two_phase: bool = False,
        keep_prepared: bool = False,
    ) -> Producer:
        """A producer starts. With a transactional id it fences its predecessors; without one it only gets an id, which
        is for whoever may write to some topic, or has Kafka's old right for it.

        `expected` is who the producer says it is when it goes on after an error (KIP-360).
        """
        if transactional_id is not None:
            self._ask("write", "transactional-id", transactional_id)
            check_not_own(transactional_id)
        elif not self._broker.permissions.allows_some(self._principal, "write", "topic"):
            self._ask_cluster("idempotent-write")
        return await self._broker.transactions.init_producer_id(
            transactional_id, timeout_ms, expected, two_phase=two_phase, keep_prepared=keep_prepared
        )

    async def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Sequence[NamedPartition]
    ) -> None:
        """Partitions join the transaction; durable when this returns."""
        self._ask_writing(transactional_id, {topic for topic, _ in partitions})
        await self._broker.transactions.add_partitions(transactional_id, producer, partitions)

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[NamedPartition]
    ) -> dict[NamedPartition, bool]:
        """Which of the partitions are in the present transaction."""
        self._ask("write", "transactional-id", transactional_id)
        return self._broker.transactions.verify_partitions(transactional_id, producer, partitions)

    def producing(self, transactional_id: str | None) -> CheckProduce:
        """Asked once for a request; what is returned says of each batch whether its partition is in the transaction.
        Who does not say whose transaction it is may not write in it, as with Kafka.

        The append has to follow that without an `await` between, else the transaction may have ended before it."""
        if transactional_id is None:
            raise NotAllowed(
                "a transactional batch came without a transactional id; name it in the request", "transactional-id"
            )
        self._ask("write", "transactional-id", transactional_id)
        return self._broker.writers.check_for(transactional_id)

    def elsewhere(self, transactional_id: str) -> bool:
        """Whether another broker coordinates it: then a batch has to be announced to that one (`add_producing`) before
        the first one of a transaction in each partition. Asks nobody: it is about the name alone, and whether a batch
        is transactional is not known yet."""
        return self._broker.writers.elsewhere(transactional_id)

    async def add_producing(
        self, transactional_id: str, producer: Producer, topic: str, index: int, *, joins: bool = True
    ) -> None:
        """A partition joins because data for it arrived (KIP-890); durable when this returns. Not `joins`: it has to be
        in the transaction, or InvalidTransactionState."""
        self._ask_writing(transactional_id, {topic})
        await self._broker.writers.join(transactional_id, producer, topic, index, joins=joins)

    async def add_offsets(self, transactional_id: str, producer: Producer, group_id: str) -> None:
        """A group's offsets join the transaction; durable when this returns."""
        self._ask_committing(transactional_id, group_id)
        await self._broker.transactions.add_offsets(transactional_id, producer, group_id)

    async def commit_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        *,
        joins: bool,
        member_id: str = "",
        generation_id: int = -1,
        group_instance_id: str | None = None,
    ) -> list[OffsetResult]:
        """Offsets that are seen when the transaction is committed. `joins`: they join it by this (KIP-890), else they
        have to be part of it. One result for each, in the same order."""
        self._ask_committing(transactional_id, group_id)
        allowed, refused = self._readable(offsets)
        transactions, writers = self._broker.transactions, self._broker.writers
        if writers.elsewhere(transactional_id):
            place = OFFSETS_TOPIC, self._broker.groups.partition_for(group_id)
            if not writers.check_for(transactional_id)(transactional_id, *producer, *place):
                await writers.join(transactional_id, producer, *place, joins=joins)
        elif joins:
            await transactions.add_offsets_implicitly(transactional_id, producer, group_id)
        elif not transactions.check_offsets(transactional_id, producer, group_id):
            raise TransactionAbortable("the group's offsets are not part of the transaction")
        done = await self._broker.groups.commit_transactional_offsets(
            group_id,
            *producer,
            allowed,
            member_id=member_id,
            generation_id=generation_id,
            group_instance_id=group_instance_id,
        )
        return in_order(offsets, [*done, *refused])

    async def end(self, transactional_id: str, producer: Producer, commit: bool, *, bumps_epoch: bool) -> Producer:
        """Commits or aborts; durable when this returns. Who the producer is from now on: with `bumps_epoch`, at a new
        epoch."""
        self._ask("write", "transactional-id", transactional_id)
        return await self._broker.transactions.end(transactional_id, producer, commit, bumps_epoch=bumps_epoch)

    # -- operators --------------------------------------------------------------------------------------------------

    async def write_marker(
        self, topic: str, index: int, producer: Producer, commit: bool, coordinator_epoch: int
    ) -> None:
        """Ends a transaction that hangs on one partition; durable when this returns."""
        self._ask_cluster("cluster-action")
        partition = self._broker.topics.partition(topic, index)
        self._broker.transactions.write_marker(topic, index, producer, commit, coordinator_epoch)
        await self._broker.durable(Receipt(partition, partition.end_offset))

    def check_describe(self, transactional_id: str) -> None:
        """Raises if the principal may not look at it, whether it is there or not."""
        self._ask("describe", "transactional-id", transactional_id)

    def describe(self, transactional_id: str) -> Transaction:
        """What there is to know of a transactional id; TransactionalIdNotFound if no producer uses it."""
        self._ask("describe", "transactional-id", transactional_id)
        return self._broker.transactions.describe(transactional_id)

    def listing(self, wanted: TransactionFilter) -> Listing:
        """The transactional ids that the filter selects and the principal may see."""
        found = self._broker.transactions.listing(wanted)
        return replace(
            found,
            transactions=tuple(
                txn for txn in found.transactions if self._sees("transactional-id", txn.transactional_id)
            ),
        )

    # -- may it -----------------------------------------------------------------------------------------------------

    def _ask_writing(self, transactional_id: str, topics: Iterable[str]) -> None:
        self._ask("write", "transactional-id", transactional_id)
        for topic in topics:
            self._ask("write", "topic", topic)

    def _ask_committing(self, transactional_id: str, group_id: str) -> None:
        self._ask("write", "transactional-id", transactional_id)
        self._ask("read", "group", group_id)
