"""Client quotas: which there are, and the buckets that those whom they are for share.

They are definitions of the kind `client-quota` in the catalog, and this part follows it: whoever sets one writes it
there, and it is in force when the catalog tells it (`apply`). Whoever uses a bucket keeps it until `version` is another
one. While there is no quota at all, `on` is False and nobody has to ask anything else. Each broker of a cluster counts
for itself, as in Kafka.

Buckets of defaults are made for names that clients choose, so there is a bound: those that nobody owes anything to are
forgotten first. On the loop's thread only.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from waystation.catalog import Update, rows
from waystation.catalog.changes import ChangeQueue
from waystation.errors import Full, Invalid
from waystation.observe.events import event_logger
from waystation.security.quotas.bucket import Bucket
from waystation.security.quotas.entities import (
    DEFAULT_ENTITY,
    QUOTAS,
    QuotaEntity,
    QuotaKey,
    check_entity,
    check_value,
    client_levels,
)

if TYPE_CHECKING:
    from waystation.catalog import Catalog
    from waystation.catalog.follower import CatalogFollower

logger = event_logger("waystation.quotas")

KIND = "client-quota"
MOST_ENTITIES = 100_000
MOST_BUCKETS = 20_000
"""Three hundred bytes each. With more, those that were not used for longest start over."""

Values = Mapping[QuotaKey, float]
BucketKey = tuple[QuotaKey, str, str]
"""What it counts, and who shares it: a user and a client id, of which one may be empty; a namespace; an address."""


class StoredQuota(msgspec.Struct, frozen=True):
    """As the catalog has it."""

    entity: QuotaEntity
    values: dict[str, float]


_decode = msgspec.json.Decoder(StoredQuota).decode


class ClientQuotas:
    """One per broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.definitions_of(KIND),)

    def __init__(self, catalog: Catalog, follower: CatalogFollower, now_s: Callable[[], float]) -> None:
        self._catalog = catalog
        self._follower = follower
        self.now_s = now_s
        self._known: dict[str, QuotaEntity] = {}  # by key of the catalog
        self._values: dict[QuotaEntity, dict[QuotaKey, float]] = {}
        self._buckets: OrderedDict[BucketKey, Bucket] = OrderedDict()
        self._changes = ChangeQueue()
        self._on_change: list[Callable[[], None]] = []
        self.on = False
        """Whether there is any quota."""
        self.version = 0
        """Another one: buckets that somebody has may be others by now."""

    def load(self) -> None:
        """Reads the catalog. Blocks: before the listeners open."""
        for key, entry in self._catalog.read(rows.definitions_of(KIND)).entries.items():
            self._take(key, entry.value)
        self._renew()

    async def settle(self) -> None:
        await self._changes.settle()

    def subscribe_changes(self, callback: Callable[[], None]) -> None:
        """`callback` is called when a change is in force."""
        self._on_change.append(callback)

    # -- finding ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._values)

    def listing(self) -> list[tuple[QuotaEntity, Values]]:
        """All of them, in an order that stays."""
        return sorted(self._values.items(), key=lambda one: str(one[0]))

    def values(self, entity: QuotaEntity) -> Values:
        """An entity's own."""
        return self._values.get(entity, {})

    def of_client(self, key: QuotaKey, user: str, client_id: str) -> Bucket | None:
        """What a client of this name and user counts into; None: there is no quota for it."""
        for entity, shared in client_levels(user, client_id):
            rate = self._values.get(entity, {}).get(key)
            if rate is not None:
                return self._bucket((key, *shared), rate)
        return None

    def of_namespace(self, key: QuotaKey, namespace: str) -> Bucket | None:
        """What everybody in a namespace counts into."""
        for name in (namespace, DEFAULT_ENTITY):
            rate = self._values.get(QuotaEntity(namespace=name), {}).get(key)
            if rate is not None:
                return self._bucket((key, "\0namespace", namespace), rate)
        return None

    def connection_wait_s(self, ip: str) -> float:
        """Counts a connection from an address, if it may be: 0.0. Else in how many seconds it may."""
        for name in (ip, DEFAULT_ENTITY):
            rate = self._values.get(QuotaEntity(ip=name), {}).get("connection_creation_rate")
            if rate is not None:
                now_s = self.now_s()
                bucket = self._bucket(("connection_creation_rate", "\0ip", ip), rate)
                wait_s = bucket.wait_s(now_s)
                if not wait_s:
                    bucket.take(1, now_s)
                return wait_s
        return 0.0

    def _bucket(self, key: BucketKey, rate: float) -> Bucket:
        if key[0] == "request_percentage":
            rate /= 100
        found = self._buckets.get(key)
        if found is not None and found.rate == rate:
            self._buckets.move_to_end(key)
            return found
        if len(self._buckets) >= MOST_BUCKETS:
            self._forget()
        found = self._buckets[key] = Bucket(rate, QUOTAS[key[0]].burst_s, self.now_s())
        return found

    def _forget(self) -> None:
        now_s = self.now_s()
        for key in [key for key, bucket in self._buckets.items() if bucket.is_full(now_s)]:
            del self._buckets[key]
        # A tenth at once: to look through all takes milliseconds, and a client can make one with each request.
        while len(self._buckets) > MOST_BUCKETS * 9 // 10:
            self._buckets.popitem(last=False)
        self.version += 1  # nobody keeps one that others would not share

    # -- changing ---------------------------------------------------------------------------------------------------

    def check(self, entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
        """Raises what `alter` would raise now."""
        check_entity(entity)
        for key, value in changes.items():
            check_value(entity, key, 1.0 if value is None else value)
        if entity not in self._values and len(self._values) >= MOST_ENTITIES:
            raise Full(f"there are quotas of {MOST_ENTITIES} entities already; remove some first")

    async def alter(self, entity: QuotaEntity, changes: Mapping[str, float | None]) -> bool:
        """Sets quotas of an entity; None removes one. In force when this returns; False: it was so before."""
        return await self._changes.to_the_end(self._alter(entity, changes))

    async def _alter(self, entity: QuotaEntity, changes: Mapping[str, float | None]) -> bool:
        self.check(entity, changes)
        before: dict[str, float] = {str(key): value for key, value in self._values.get(entity, {}).items()}
        merged: dict[str, float | None] = {**before, **changes}
        after = {key: float(value) for key, value in merged.items() if value is not None}
        if after == before:
            return False
        value = msgspec.json.encode(StoredQuota(entity, after)) if after else None
        await self._follower.change({_key(entity): value})
        return True

    # -- following the catalog --------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        return list(self._known)

    async def apply(self, update: Update) -> None:
        for key, value in update.changes:
            entity = self._known.pop(key, None)
            if entity is not None:
                self._values.pop(entity, None)
            if value is not None:
                self._take(key, value)
        self._renew()
        for callback in self._on_change:
            callback()

    def _renew(self) -> None:
        self.on = bool(self._values)
        self.version += 1
        if not self.on:
            self._buckets.clear()

    def _take(self, key: str, value: bytes) -> None:
        try:
            found = _decode(value)
            check_entity(found.entity)
            values = {check_value(found.entity, name, rate): rate for name, rate in found.values.items()}
        except (msgspec.DecodeError, Invalid) as error:
            logger.warning("quota.unreadable", "quota {key} cannot be read: {error}", key=key, error=error)
            return
        self._known[key] = found.entity
        self._values[found.entity] = values


def _key(entity: QuotaEntity) -> str:
    digest = hashlib.sha256(msgspec.json.encode(entity)).hexdigest()[:40]
    return rows.definition_key(KIND, digest)
