"""The settings of the transaction coordinator, read at the moment of use, and the limits that are not settings.

Settings a user can change are rows of `config.BROKER_SETTINGS`; the constants here only shape how the coordinator goes
about its work. The coordinator and its parts read this module.
"""

from __future__ import annotations

from waystation.config import BrokerSettings

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

MAX_STAGED = 10_000
"""Staged transactions that one decision commits: it is one record, and carried out without a pause."""

MAX_DECISIONS = 200_000
"""Names under which decisions are remembered at once."""

DECISIONS_KEPT_MS = 366 * 86_400_000
"""A name under which nothing was decided for so long is forgotten. Much longer than transactional ids: whoever repeats
a commit after this would have it done a second time."""

MAX_FENCES = 100_000
"""Runs that are remembered as given up at once; beyond that, the oldest is forgotten."""

FENCES_KEPT_MS = 7 * 86_400_000
"""A task that has not noticed for so long that its run was given up has not run."""

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
