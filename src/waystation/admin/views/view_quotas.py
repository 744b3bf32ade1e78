"""Client quotas as every protocol shows them, and as they are set and removed.

An entity has the quotas that were set for it; what applies to a client is the most special of those that it falls under
(`security/quotas/entities.py`). `<default>` as a name is everybody of that kind who has none of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.errors import Invalid
from waystation.paging import After, Limit, Next, Search, Total, page_of
from waystation.security.quotas.entities import DEFAULT_ENTITY, QuotaEntity

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

DEFAULT_NAME = "<default>"

Name = Annotated[str, Meta(description=f"{DEFAULT_NAME}: those that have no quota of their own")] | None


class Entity(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A user, a client id or both; or an address; or a namespace."""

    user: Name = None
    client_id: Name = None
    ip: Name = None
    namespace: Name = None


class QuotaOut(Entity, kw_only=True, omit_defaults=True):
    """What was set for an entity."""

    quotas: dict[str, float]


class QuotaList(msgspec.Struct):
    quotas: list[QuotaOut]
    next: Next
    total: Total


class QuotasQuery(msgspec.Struct):
    search: Search = ""
    after: After = ""
    limit: Limit = 100


class SetQuotas(Entity, kw_only=True):
    quotas: Annotated[dict[str, float], Meta(description="by name, such as producer_byte_rate")]


class RemoveQuotas(Entity, kw_only=True):
    quotas: Annotated[list[str], Meta(description="names; empty: all that the entity has")] = []


class QuotasRemoved(msgspec.Struct):
    removed: Annotated[int, Meta(description="how many the entity had")]


async def quotas_page(broker: ManagedBroker, query: QuotasQuery) -> QuotaList:
    """In the order of what they are for."""
    known = {str(entity): (entity, values) for entity, values in broker.quotas.listing()}
    page = await page_of(sorted(known), query.search, query.after or None, query.limit)
    return QuotaList([_shown(*known[name]) for name in page.names], page.next, page.total)


async def set_quotas(broker: ManagedBroker, asked: SetQuotas) -> QuotaOut:
    if not asked.quotas:
        raise Invalid("quotas: say which, such as producer_byte_rate=1000000")
    entity = _entity(asked)
    await broker.quotas.alter(entity, asked.quotas)
    return _shown(entity, broker.quotas.values(entity))


async def remove_quotas(broker: ManagedBroker, asked: RemoveQuotas) -> QuotasRemoved:
    entity = _entity(asked)
    present = broker.quotas.values(entity)
    names = asked.quotas or list(present)
    there = sum(name in present for name in names)
    await broker.quotas.alter(entity, dict.fromkeys(names))
    return QuotasRemoved(there)


def described(asked: SetQuotas | RemoveQuotas) -> str:
    """For the audit log."""
    if isinstance(asked, RemoveQuotas):
        return f"{_entity(asked)}: {', '.join(asked.quotas) or 'all'}"[:1000]
    values = ", ".join(f"{name}={value:g}" for name, value in asked.quotas.items())
    return f"{_entity(asked)}: {values}"[:1000]


def _entity(asked: Entity) -> QuotaEntity:
    names = (asked.user, asked.client_id, asked.ip, asked.namespace)
    return QuotaEntity(*(DEFAULT_ENTITY if name == DEFAULT_NAME else _named(name) for name in names))


def _named(name: str | None) -> str | None:
    if name == "":
        raise Invalid(f"a quota is for somebody: give a name, or {DEFAULT_NAME}")
    return name


def _shown(entity: QuotaEntity, values: object) -> QuotaOut:
    named = {"user": entity.user, "client_id": entity.client_id, "ip": entity.ip, "namespace": entity.namespace}
    shown = {kind: name if name is None or name else DEFAULT_NAME for kind, name in named.items()}
    return QuotaOut(quotas=dict(values), **shown)  # type: ignore[call-overload]
