"""The settings of the transaction coordinator, read at the moment of use, and the limits that are not settings.

Settings a user can change are rows of `config.BROKER_SETTINGS`; the constants here only shape how the coordinator goes
about its work. The coordinator and its parts read this module.
"""

from __future__ import annotations

from waystation.config import BrokerSettings

ABORT_CHECK_MS = 10_000
"""Longest sleep of the timeout timer while a transaction is open: a wall clock that was set is noticed this soon."""

EXPIRY_CHECK_MS = 3_600_000
"""How often idle transactional ids are looked for. They expire after days, so an hour late is on time."""

RETRY_FIRST_MS = 100
RETRY_MAX_MS = 10_000
"""Backoff between attempts to end a transaction while the disk refuses."""

PRODUCER_ID_BLOCK = 1_000
"""Producer ids reserved by one durable record: one flush per thousand new producers, at most so many ids lost by a
crash, out of 2^63."""

MAX_TRANSACTIONAL_IDS = 1_000_000
"""Transactional ids remembered at once: roughly a gigabyte. A client that invents a new id per message stops here."""


MAX_ID_BYTES = 1_024
"""Length of a transactional id: it is the key of a record, repeated with every change."""

MAX_ROUNDS = 8
"""How often a request asks its state machine again after a wait, before the client is told to come back. Three are
needed at most (wait for an end, abort, allocate); more means that producers fight over one transactional id."""


class TransactionSettings:
    """What a user may set, by Kafka's names."""

    __slots__ = ("_broker",)

    def __init__(self, broker: BrokerSettings) -> None:
        self._broker = broker

    @property
    def max_timeout_ms(self) -> int:
        """`transaction.max.timeout.ms`: the largest timeout that a producer may ask for."""
        return self._broker.integer("transaction.max.timeout.ms")

    @property
    def id_expiration_ms(self) -> int:
        """`transactional.id.expiration.ms`: an idle transactional id is forgotten after this long."""
        return self._broker.integer("transactional.id.expiration.ms")
