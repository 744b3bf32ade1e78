"""Who may write a transaction's data to a partition that this broker leads: the coordinator says it, wherever that is.

A batch of a transaction is taken only if the coordinator durably has the partition in that transaction: else nobody
would ever end it there (KIP-890). Where this broker coordinates, that is a look into memory. Where another one does, it
is asked once for each transaction and partition; from then on the log says it, since the producer has a transaction
open there with the same epoch.

Between the coordinator's answer and the append the transaction may end. Then its marker is in the log already, and what
is appended behind it would stay open for ever. So an answer counts only as long as no transaction has ended in that log
since it was asked for, and the log has the same leader epoch.

On the event loop. `Access` asks before each transactional append.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from waystation.cluster.links.peer import JoinTransaction
from waystation.errors import ProducerEpochStale, Unavailable
from waystation.groups.machines.errors import NotCoordinator
from waystation.topics.partitions.partition import Partition
from waystation.transactions.coordinator import TransactionCoordinator
from waystation.transactions.errors import ConcurrentTransactions, CoordinatorAway, InvalidTransactionState
from waystation.transactions.machine import Producer

CheckProduce = Callable[[str | None, int, int, str, int], bool]
"""Of transactional id, producer id, producer epoch, topic, partition: may a batch be appended, or join first?"""

MAX_GUARDS = 10_000
"""Answers that were not used yet, or not cleared away. One that is forgotten is asked for again."""


class CoordinatorLink(Protocol):
    """To the coordinators on other brokers."""

    def home_of(self, transactional_id: str) -> int | None:
        """The broker that coordinates it; None: this one. CoordinatorAway: nobody does now."""

    async def join(self, node_id: int, asked: JoinTransaction) -> None:
        """Asks that broker; what it refuses is raised here. Unavailable if it cannot be asked."""


class _Guard(NamedTuple):
    """What must not have changed since the coordinator was asked."""

    producer_epoch: int
    leader_epoch: int
    ended: int


class Writers:
    """One per broker."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        find: Callable[[str, int], Partition],
        link: CoordinatorLink | None,
    ) -> None:
        """`link` None: this broker coordinates everything."""
        self._coordinator = coordinator
        self._find = find
        self._link = link
        self._guards: dict[tuple[str, int, int], _Guard] = {}

    def elsewhere(self, transactional_id: str | None) -> bool:
        """Whether another broker coordinates it, and so has to be asked before the first batch."""
        return self._home(transactional_id) is not None

    def _home(self, transactional_id: str | None) -> int | None:
        if self._link is None or transactional_id is None:
            return None
        return self._link.home_of(transactional_id)

    def check_for(self, transactional_id: str | None) -> CheckProduce:
        """What says of each batch whether it may be appended. The append has to follow that without an `await`
        between."""
        return self._check if self.elsewhere(transactional_id) else self._coordinator.check_produce

    def _check(
        self, transactional_id: str | None, producer_id: int, producer_epoch: int, topic: str, index: int
    ) -> bool:
        partition = self._find(topic, index)
        state = partition.producers.by_id.get(producer_id)
        if state is not None and producer_epoch < state.epoch:
            raise ProducerEpochStale(
                f"{topic}-{index}: the batch carries epoch {producer_epoch} of producer {producer_id}, but"
                f" {state.epoch} was seen"
            )
        if state is not None and producer_epoch == state.epoch and state.transaction_start is not None:
            return True
        return self._guards.get((topic, index, producer_id)) == _guard(partition, producer_epoch)

    async def join(
        self, transactional_id: str | None, producer: Producer, topic: str, index: int, *, joins: bool
    ) -> None:
        """Returns when the check is true for the partition, until the caller awaits something else. `joins`: because
        data for it arrived (Produce 12 and up); else it has to be in the transaction, or InvalidTransactionState."""
        asked = JoinTransaction(transactional_id or "", *producer, topic, index, joins)
        home = self._home(transactional_id)
        if self._link is None or home is None:
            await self.answer(asked)
            return
        partition = self._find(topic, index)
        before = _guard(partition, producer.epoch)
        try:
            await self._link.join(home, asked)
        except ConcurrentTransactions:
            raise
        except (NotCoordinator, Unavailable) as error:
            raise CoordinatorAway(f"the coordinator of {transactional_id!r}, node {home}: {error}") from error
        if _guard(partition, producer.epoch) != before:
            raise ConcurrentTransactions(f"{topic}-{index}: a transaction ended meanwhile; ask again")
        self._remember((topic, index, producer.producer_id), before)

    def _remember(self, key: tuple[str, int, int], guard: _Guard) -> None:
        self._guards.pop(key, None)
        if len(self._guards) >= MAX_GUARDS:
            del self._guards[next(iter(self._guards))]
        self._guards[key] = guard

    async def answer(self, asked: JoinTransaction) -> None:
        """What the coordinator does when it is asked, from here or by another broker."""
        producer = Producer(asked.producer_id, asked.producer_epoch)
        transactional_id = asked.transactional_id or None
        if asked.joins:
            await self._coordinator.add_implicitly(transactional_id, *producer, asked.topic, [asked.index])
        elif not self._coordinator.check_produce(transactional_id, *producer, asked.topic, asked.index):
            raise InvalidTransactionState(f"{asked.topic}-{asked.index} is not part of the producer's transaction")


def _guard(partition: Partition, producer_epoch: int) -> _Guard:
    return _Guard(producer_epoch, partition.epoch, partition.producers.ended)
