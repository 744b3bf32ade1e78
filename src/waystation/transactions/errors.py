"""What can go wrong in a transaction, one class per answer that Kafka's protocol tells apart.

Raised by the state machine and the coordinator. A protocol translates by `kafka_code`, and may weaken an answer for an
old client that does not know the newer code.
"""

from __future__ import annotations

from typing import ClassVar

from waystation.errors import Conflict, Invalid, NotAllowed, NotFound, ProducerEpochStale, Unavailable


class ProducerFenced(ProducerEpochStale):
    """A newer producer with the same transactional id has taken over, or the broker aborted the transaction."""

    kafka_code: ClassVar[str | None] = "PRODUCER_FENCED"


class InvalidProducerMapping(Conflict):
    """The producer id is not the one that the transactional id has now."""

    kafka_code: ClassVar[str | None] = "INVALID_PRODUCER_ID_MAPPING"


class ConcurrentTransactions(Unavailable):
    """The previous transaction of this id is still being ended; the client asks again shortly."""

    kafka_code: ClassVar[str | None] = "CONCURRENT_TRANSACTIONS"


class CoordinatorAway(Unavailable):
    """Another broker coordinates the transaction, and cannot be asked now whether the partition is part of it."""


class InvalidTransactionState(Conflict):
    """The transaction is not in a state from which this is possible."""

    kafka_code: ClassVar[str | None] = "INVALID_TXN_STATE"


class TransactionAbortable(Conflict):
    """This transaction cannot be committed, but the producer may abort it and go on."""

    kafka_code: ClassVar[str | None] = "TRANSACTION_ABORTABLE"


class InvalidTransactionTimeout(Invalid):
    """The timeout is not positive, or larger than `transaction.max.timeout.ms`."""

    kafka_code: ClassVar[str | None] = "INVALID_TRANSACTION_TIMEOUT"


class TransactionalIdNotFound(NotFound):
    """No producer uses this transactional id, or it was idle for so long that it was forgotten."""

    kafka_code: ClassVar[str | None] = "TRANSACTIONAL_ID_NOT_FOUND"


class TwoPhaseCommitOff(NotAllowed):
    """The producer asked for external two-phase commit (KIP-939), which this broker does not offer."""

    kafka_code: ClassVar[str | None] = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


class KeepPreparedUnsupported(Invalid):
    """The producer asked to keep a prepared transaction (KIP-939), which this broker does not offer."""

    kafka_code: ClassVar[str | None] = "UNSUPPORTED_VERSION"


class ReservedTransactionalId(NotAllowed):
    """The transactional id is one of the broker's own."""

    kafka_code: ClassVar[str | None] = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
