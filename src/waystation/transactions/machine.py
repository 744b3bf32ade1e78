"""The life of one transactional id as a pure state machine: an immutable value, and the moves it can make.

A transactional id names a producer across its restarts. It owns a producer id and an epoch; whoever holds the newest
epoch is the producer, all others are fenced. A transaction is opened by the first partition that is added, and ends in
two steps so that a crash between them loses nothing: *prepare* decides the outcome, *complete* says that every
partition has been told. The moves are the table `MOVES`; `print(moves_table())` shows it.

There are two ways of using epochs, and the client chooses by the version it speaks:

* Old clients keep one epoch for many transactions. It is bumped when a producer (re)starts.
* New clients (KIP-890, transaction version 2; `bumps_epoch` here) get a new epoch with every end of a transaction, so
  that a write that was delayed in the network can never slip into the next one. The markers of a transaction carry the
  new epoch already, and its end is answered with it. A client that lost this answer repeats its request with the old
  epoch, which is then `last`.

Epochs are 16 bits. The highest is never given to a client, so that there is always one left to fence it with; when
epochs run out, the transactional id gets a fresh producer id and starts again at epoch 0.

Invariants: an outcome once prepared never changes; epochs of a producer id only grow; only `producer` can add to or
end a transaction. Nothing here does I/O: the coordinator persists each value and carries out what `Next` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from waystation.transactions.errors import (
    ConcurrentTransactions,
    InvalidProducerMapping,
    InvalidTransactionState,
    ProducerFenced,
    TransactionAbortable,
)

NO_PRODUCER_ID = -1
NO_EPOCH = -1
MAX_EPOCH = 2**15 - 1
LAST_USABLE_EPOCH = MAX_EPOCH - 1
"""The highest epoch that a client may hold: one above it is kept for fencing."""

TopicPartition = tuple[str, int]


class Producer(NamedTuple):
    """What a producer signs its requests and batches with."""

    producer_id: int
    epoch: int


class TransactionState(IntEnum):
    """The numbers are Kafka's and are stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def label(self) -> str:
        """As Kafka's tools spell it: PrepareCommit."""
        return self.name.title().replace("_", "")


class TransactionEvent(Enum):
    """What can happen to a transactional id."""

    INIT = "a producer starts, or asks for a new epoch"
    ADD = "a partition or a group's offsets join"
    COMMIT = "the producer commits"
    ABORT = "the producer aborts"
    FENCE = "the broker aborts: a new producer came, or time is up"
    COMPLETE = "every partition has its marker"
    EXPIRE = "nobody came for a long time"


MOVES: dict[tuple[TransactionState, TransactionEvent], TransactionState] = {
    (TransactionState.EMPTY, TransactionEvent.INIT): TransactionState.EMPTY,
    (TransactionState.EMPTY, TransactionEvent.ADD): TransactionState.ONGOING,
    # Clients that bump epochs may abort what the broker never saw: all their writes failed before they were added.
    (TransactionState.EMPTY, TransactionEvent.ABORT): TransactionState.PREPARE_ABORT,
    (TransactionState.EMPTY, TransactionEvent.EXPIRE): TransactionState.DEAD,
    (TransactionState.ONGOING, TransactionEvent.ADD): TransactionState.ONGOING,
    (TransactionState.ONGOING, TransactionEvent.COMMIT): TransactionState.PREPARE_COMMIT,
    (TransactionState.ONGOING, TransactionEvent.ABORT): TransactionState.PREPARE_ABORT,
    (TransactionState.ONGOING, TransactionEvent.FENCE): TransactionState.PREPARE_ABORT,
    (TransactionState.PREPARE_COMMIT, TransactionEvent.COMPLETE): TransactionState.COMPLETE_COMMIT,
    (TransactionState.PREPARE_ABORT, TransactionEvent.COMPLETE): TransactionState.COMPLETE_ABORT,
    (TransactionState.COMPLETE_COMMIT, TransactionEvent.INIT): TransactionState.EMPTY,
    (TransactionState.COMPLETE_COMMIT, TransactionEvent.ADD): TransactionState.ONGOING,
    (TransactionState.COMPLETE_COMMIT, TransactionEvent.ABORT): TransactionState.PREPARE_ABORT,
    (TransactionState.COMPLETE_COMMIT, TransactionEvent.EXPIRE): TransactionState.DEAD,
    (TransactionState.COMPLETE_ABORT, TransactionEvent.INIT): TransactionState.EMPTY,
    (TransactionState.COMPLETE_ABORT, TransactionEvent.ADD): TransactionState.ONGOING,
    (TransactionState.COMPLETE_ABORT, TransactionEvent.ABORT): TransactionState.PREPARE_ABORT,
    (TransactionState.COMPLETE_ABORT, TransactionEvent.EXPIRE): TransactionState.DEAD,
}

PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
COMMITTED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})


def moves_table() -> str:
    """The table of moves, to be printed: a row per state, a column per event."""
    width = max(len(state.label) for state in TransactionState) + 2
    rows = [["", *(event.name.lower() for event in TransactionEvent)]]
    for state in TransactionState:
        targets = [MOVES.get((state, event)) for event in TransactionEvent]
        rows.append([state.label, *("·" if target is None else target.label for target in targets)])
    return "\n".join("".join(cell.ljust(width) for cell in row).rstrip() for row in rows)


class Next(Enum):
    """What the coordinator does instead of storing a new value; after the first three it asks the machine again."""

    PRODUCER_ID = "epochs ran out: allocate a producer id"
    ABORT = "fence the ongoing transaction and carry out its abort"
    WAIT = "an end is being carried out: wait for it"
    DONE = "nothing to do: this end has been carried out before"


class Transaction(msgspec.Struct, frozen=True):
    """All there is to know of one transactional id. Every move returns a new value; errors leave no trace."""

    transactional_id: str
    producer: Producer
    timeout_ms: int
    updated_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1
    last_epoch: int = NO_EPOCH
    """The epoch before the present one, if its holder may still repeat the request that replaced it."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """Takes over when the prepared end completes, because epochs ran out."""
    bumps_epoch: bool = False
    """The client of the present (or last ended) transaction expects a new epoch with every end (KIP-890)."""

    @property
    def last(self) -> Producer | None:
        """Who the producer was before the last bump, as long as it may repeat its request."""
        if self.last_epoch == NO_EPOCH:
            return None
        rotated = self.last_epoch > self.producer.epoch
        return Producer(self.previous_producer_id if rotated else self.producer.producer_id, self.last_epoch)

    @property
    def deadline_ms(self) -> int:
        """When an ongoing transaction that comes back from the log is aborted, by the wall clock. While the coordinator
        runs, `TransactionEntry.deadline_ms` counts."""
        return self.started_ms + self.timeout_ms

    @property
    def begun_ms(self) -> int:
        """When the transaction began that is open, or was the last one; -1: the producer has had none yet."""
        return -1 if self.state is TransactionState.EMPTY else self.started_ms

    @property
    def commits(self) -> bool:
        """The outcome of a prepared or completed transaction."""
        return self.state in COMMITTED

    # -- what producers ask for -----------------------------------------------------------------------------------

    def init(
        self, expected: Producer | None, timeout_ms: int, now_ms: int, fresh_id: int | None = None
    ) -> Transaction | Next:
        """A producer starts (`expected` is None) or asks to go on with a new epoch after an error (KIP-360)."""
        if self.state is TransactionState.ONGOING:
            if expected is not None and expected != self.producer:
                raise self._fenced(expected)
            return Next.ABORT
        if expected is not None and expected not in (self.producer, self.last):
            raise self._fenced(expected)
        if self.state in PREPARED:
            return Next.WAIT
        if expected is not None and expected == self.last and self.producer.epoch <= LAST_USABLE_EPOCH:
            # The answer to the first request was lost. No other producer can have come in between: it would have
            # erased `last`.
            return self._moved(
                TransactionEvent.INIT, now_ms, timeout_ms=timeout_ms, partitions=frozenset(), started_ms=-1
            )
        last_epoch = NO_EPOCH if expected is None else expected.epoch
        if self.producer.epoch < LAST_USABLE_EPOCH:
            producer = Producer(self.producer.producer_id, self.producer.epoch + 1)
            previous_id = self.previous_producer_id
        elif fresh_id is None:
            return Next.PRODUCER_ID
        else:
            producer, previous_id = Producer(fresh_id, 0), self.producer.producer_id
        return self._moved(
            TransactionEvent.INIT,
            now_ms,
            producer=producer,
            previous_producer_id=previous_id,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            started_ms=-1,
        )

    def add(
        self, producer: Producer, partitions: Iterable[TopicPartition], now_ms: int, *, bumps_epoch: bool = False
    ) -> Transaction:
        """Partitions join; the first opens the transaction. Returns this very value if all are in it already."""
        self.check(producer)
        if self.state in PREPARED:
            raise self._busy()
        joined = self.partitions.union(partitions)
        if self.state is TransactionState.ONGOING:
            if joined == self.partitions:
                return self
            return self._moved(TransactionEvent.ADD, now_ms, partitions=joined)
        return self._moved(TransactionEvent.ADD, now_ms, partitions=joined, started_ms=now_ms, bumps_epoch=bumps_epoch)

    def end(
        self, producer: Producer, commit: bool, bumps_epoch: bool, now_ms: int, fresh_id: int | None = None
    ) -> Transaction | Next:
        """The producer commits or aborts. Repeating the request is answered like the first time."""
        repeated = (
            self.bumps_epoch
            and producer == self.last
            and self.state not in (TransactionState.EMPTY, TransactionState.ONGOING)
        )
        if not repeated:
            self.check(producer)
        if self.state is TransactionState.ONGOING:
            return self._prepared(
                TransactionEvent.COMMIT if commit else TransactionEvent.ABORT, bumps_epoch, now_ms, fresh_id
            )
        if self.state is TransactionState.EMPTY or (bumps_epoch and not repeated):
            if self.state in PREPARED:  # with the new epoch, which nobody was told yet
                raise self._busy()
            if commit or not bumps_epoch:
                raise InvalidTransactionState(
                    f"{self._name()} has no open transaction to end; its state is {self.state.label}"
                )
            return self._prepared(TransactionEvent.ABORT, True, now_ms, fresh_id)
        if commit != self.commits:
            raise self._other_outcome(commit, bumps_epoch)
        return Next.WAIT if self.state in PREPARED else Next.DONE

    def check(self, producer: Producer) -> None:
        """Raises unless this is the present producer."""
        if self.state is TransactionState.DEAD or producer.producer_id != self.producer.producer_id:
            raise InvalidProducerMapping(
                f"producer id {producer.producer_id} is not the one of {self._name()}; restart the producer"
            )
        if producer.epoch != self.producer.epoch or producer.epoch > LAST_USABLE_EPOCH:
            raise self._fenced(producer)

    # -- what the broker does -------------------------------------------------------------------------------------

    def fenced_by_init(self, expected: Producer | None, now_ms: int) -> Transaction:
        """A producer started while a transaction was open: the abort that has to come first.

        The starting producer may be the same one (`expected`); then it can repeat its request with the epoch it has.
        """
        return self._fence(now_ms, last_epoch=NO_EPOCH if expected is None else self.producer.epoch)

    def timed_out(self, now_ms: int, fresh_id: int | None = None) -> Transaction | Next:
        """Time is up: the abort. The producer is not replaced, so it may go on, once it knows of the abort.

        A client that bumps epochs learns it when it tries to end the transaction; an older one has to ask for a new
        epoch by InitProducerId.
        """
        if self.bumps_epoch:
            return self._prepared(TransactionEvent.ABORT, True, now_ms, fresh_id)
        return self._fence(now_ms, last_epoch=self.producer.epoch)

    def decided(self, now_ms: int) -> Transaction:
        """Committed together with others, by one decision for all of them (`decisions.py`).

        The epoch grows, as it does when a producer is fenced: who staged it can add nothing, and a later transaction
        of this id is never taken for this one. There is always an epoch left for that.
        """
        producer = Producer(self.producer.producer_id, self.producer.epoch + 1)
        return self._moved(TransactionEvent.COMMIT, now_ms, producer=producer, last_epoch=NO_EPOCH, bumps_epoch=False)

    def completed(self, now_ms: int) -> Transaction:
        """Every partition has its marker."""
        if self.next_producer_id == NO_PRODUCER_ID:
            return self._moved(TransactionEvent.COMPLETE, now_ms, partitions=frozenset())
        return self._moved(
            TransactionEvent.COMPLETE,
            now_ms,
            partitions=frozenset(),
            producer=Producer(self.next_producer_id, 0),
            previous_producer_id=self.producer.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    def expired(self, now_ms: int) -> Transaction:
        """Forgotten. What follows is a tombstone."""
        return self._moved(TransactionEvent.EXPIRE, now_ms)

    def may_expire(self, now_ms: int, idle_ms: int) -> bool:
        return (self.state, TransactionEvent.EXPIRE) in MOVES and now_ms - self.updated_ms >= idle_ms

    def without_topics(self, topics: frozenset[str]) -> Transaction:
        """Deleted topics leave an ongoing transaction; there is nothing left of them to commit or abort."""
        if self.state is not TransactionState.ONGOING or not any(topic in topics for topic, _ in self.partitions):
            return self
        return replace(self, partitions=frozenset(tp for tp in self.partitions if tp[0] not in topics))

    # -- the moves ------------------------------------------------------------------------------------------------

    def _prepared(
        self,
        event: Literal[TransactionEvent.COMMIT, TransactionEvent.ABORT],
        bumps_epoch: bool,
        now_ms: int,
        fresh_id: int | None,
    ) -> Transaction | Next:
        started_ms = self.started_ms if self.state is TransactionState.ONGOING else now_ms
        if not bumps_epoch:
            return self._moved(event, now_ms, started_ms=started_ms, bumps_epoch=False)
        exhausted = self.producer.epoch >= LAST_USABLE_EPOCH
        if exhausted and fresh_id is None:
            return Next.PRODUCER_ID
        return self._moved(
            event,
            now_ms,
            started_ms=started_ms,
            producer=Producer(self.producer.producer_id, self.producer.epoch + 1),
            last_epoch=self.producer.epoch,
            next_producer_id=fresh_id if exhausted else NO_PRODUCER_ID,
            bumps_epoch=True,
        )

    def _fence(self, now_ms: int, last_epoch: int) -> Transaction:
        producer = Producer(self.producer.producer_id, self.producer.epoch + 1)
        return self._moved(TransactionEvent.FENCE, now_ms, producer=producer, last_epoch=last_epoch, bumps_epoch=False)

    def _moved(self, event: TransactionEvent, now_ms: int, **changes: object) -> Transaction:
        target = MOVES.get((self.state, event))
        if target is None:
            raise InvalidTransactionState(f"{self._name()} is in state {self.state.label}: no move for {event.name}")
        return replace(self, state=target, updated_ms=max(now_ms, self.updated_ms), **changes)

    # -- errors ---------------------------------------------------------------------------------------------------

    def _name(self) -> str:
        return f"transactional id {self.transactional_id!r}"

    def _fenced(self, producer: Producer) -> ProducerFenced:
        return ProducerFenced(
            f"{self._name()} is at epoch {self.producer.epoch}, the request carries {producer.epoch}: "
            "a newer producer took over or the transaction timed out"
        )

    def _busy(self) -> ConcurrentTransactions:
        return ConcurrentTransactions(f"{self._name()} is still ending its last transaction; ask again")

    def _other_outcome(self, commit: bool, bumps_epoch: bool) -> Exception:
        if commit and bumps_epoch:
            return TransactionAbortable(f"the transaction of {self._name()} was aborted, most likely by its timeout")
        return InvalidTransactionState(
            f"the transaction of {self._name()} is already {'committed' if self.commits else 'aborted'}"
        )
