"""The audit log as every protocol shows it: the newest entries of the topic `__audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.security.audit import TOPIC as TOPIC
from waystation.security.audit import AuditEntry

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

LOOKED_THROUGH = 10_000
"""Entries, where some are wanted."""


class AuditOut(AuditEntry, omit_defaults=False):
    """One entry. `kind`: a login, a refusal, a change, or how many were left out in a second."""


class AuditQuery(msgspec.Struct):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    kind: Literal["", "login", "refusal", "change", "left-out"] = ""
    user: Annotated[str, Meta(description="User:NAME")] = ""
    search: Annotated[str, Meta(description="what an entry has to have in one of its fields")] = ""


class AuditPage(msgspec.Struct):
    entries: Annotated[list[AuditOut], Meta(description="the newest first")]
    on: Annotated[bool, Meta(description="false: nothing is recorded, see waystation.audit")]


async def audit_page(broker: ManagedBroker, query: AuditQuery) -> AuditPage:
    if broker.topics.find(TOPIC) is None:
        return AuditPage([], broker.audit.on)
    some = bool(query.kind or query.user or query.search)
    latest = await broker.messages.history_away(TOPIC, LOOKED_THROUGH if some else query.limit)
    decode = msgspec.json.Decoder(AuditOut).decode
    found = [entry for one in reversed(latest) if _wanted(entry := decode(one.message.payload), query)]
    return AuditPage(found[: query.limit], broker.audit.on)


def _wanted(entry: AuditEntry, query: AuditQuery) -> bool:
    if (query.kind and entry.kind != query.kind) or (query.user and entry.user != query.user):
        return False
    said = query.search.lower()
    return not said or any(said in str(value).lower() for value in msgspec.structs.astuple(entry))
