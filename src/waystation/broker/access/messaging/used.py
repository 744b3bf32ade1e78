"""`Used`: what one session takes of the quotas that it is under, and for how long it has to wait.

Made by `Access` for a session when there is a quota at all. It keeps the buckets of its user, client id and namespace,
and asks for them again when quotas have changed. What was taken is taken; who took too much waits afterwards, in its
protocol's way: a Kafka client is told for how long and not read, others are answered or read later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from waystation.errors import QuotaExceeded
from waystation.routing.namespace_names import DEFAULT
from waystation.security.quotas.entities import QuotaKey

if TYPE_CHECKING:
    from waystation.security.principals import Principal
    from waystation.security.quotas.bucket import Bucket
    from waystation.security.quotas.client_quotas import ClientQuotas

OWN_KINDS = frozenset({"Broker", "Process"})
"""Principals of the broker itself and of the program that it runs in: no quota is theirs."""
_NO_VERSION = -1
_NONE: tuple[Bucket, ...] = ()


class Used:
    """One session's."""

    __slots__ = (
        "_client_id", "_consumed", "_consumed_messages", "_exempt", "_mutations", "_namespace", "_published",
        "_published_messages", "_quotas", "_requests", "_user", "_version",
    )  # fmt: skip

    def __init__(self, quotas: ClientQuotas, principal: Principal, client_id: str, namespace: str) -> None:
        self._quotas = quotas
        self._exempt = principal.kind in OWN_KINDS
        self._user = principal.name
        self._client_id = client_id
        # Protocols without namespaces say full names: who uses them is in its home.
        self._namespace = principal.namespace if namespace == DEFAULT else namespace
        self._version = _NO_VERSION
        self._published: Sequence[Bucket] = _NONE
        self._published_messages: Sequence[Bucket] = _NONE
        self._consumed: Sequence[Bucket] = _NONE
        self._consumed_messages: Sequence[Bucket] = _NONE
        self._requests: Sequence[Bucket] = _NONE
        self._mutations: Sequence[Bucket] = _NONE

    def is_of(self, client_id: str) -> bool:
        return client_id == self._client_id

    def _refresh(self) -> float:
        """What it counts into, as quotas are now. Returns the time."""
        quotas = self._quotas
        if self._version != quotas.version and not self._exempt:
            self._published = self._buckets("producer_byte_rate")
            self._published_messages = self._buckets("producer_message_rate")
            self._consumed = self._buckets("consumer_byte_rate")
            self._consumed_messages = self._buckets("consumer_message_rate")
            self._requests = self._buckets("request_percentage")
            self._mutations = self._buckets("controller_mutation_rate")
            self._version = quotas.version
        return quotas.now_s()

    def _buckets(self, key: QuotaKey) -> tuple[Bucket, ...]:
        found = (
            self._quotas.of_client(key, self._user, self._client_id),
            self._quotas.of_namespace(key, self._namespace),
        )
        return tuple(bucket for bucket in found if bucket is not None)

    # -- taking -----------------------------------------------------------------------------------------------------

    def publish(self, messages: int, size: int) -> None:
        now_s = self._refresh()
        for bucket in self._published:
            bucket.take(size, now_s)
        for bucket in self._published_messages:
            bucket.take(messages, now_s)

    def consume(self, messages: int, size: int) -> None:
        now_s = self._refresh()
        for bucket in self._consumed:
            bucket.take(size, now_s)
        for bucket in self._consumed_messages:
            bucket.take(messages, now_s)

    def work(self, seconds: float) -> None:
        """The broker has worked for this session for so long."""
        now_s = self._refresh()
        for bucket in self._requests:
            bucket.take(seconds, now_s)

    def mutate(self, partitions: int) -> None:
        """So many partitions are to be created or deleted. Who has taken too much is refused, and nothing is taken."""
        now_s = self._refresh()
        wait_s = _longest(self._mutations, now_s)
        if wait_s:
            raise QuotaExceeded(
                f"{self._user} creates and deletes partitions faster than controller_mutation_rate allows;"
                f" try again in {wait_s:.1f} s",
                wait_s,
            )
        for bucket in self._mutations:
            bucket.take(partitions, now_s)

    # -- waiting ----------------------------------------------------------------------------------------------------

    def publish_wait_s(self) -> float:
        now_s = self._refresh()
        return max(
            _longest(self._published, now_s),
            _longest(self._published_messages, now_s),
            _longest(self._requests, now_s),
        )

    def consume_wait_s(self) -> float:
        now_s = self._refresh()
        return max(
            _longest(self._consumed, now_s),
            _longest(self._consumed_messages, now_s),
            _longest(self._requests, now_s),
        )

    def request_wait_s(self) -> float:
        return _longest(self._requests, self._refresh())


def _longest(buckets: Sequence[Bucket], now_s: float) -> float:
    return max((bucket.wait_s(now_s) for bucket in buckets), default=0.0)
