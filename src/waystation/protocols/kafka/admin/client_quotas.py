"""DescribeClientQuotas and AlterClientQuotas: how fast users, client ids and addresses may be.

What a filter selects is what Kafka has words for; quotas of namespaces are told by the command line. Called through the
registry only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import QuotaEntity
from waystation.errors import Invalid, WaystationError
from waystation.protocols.kafka.requests.registry import Call

USER, CLIENT_ID, IP = "user", "client-id", "ip"
TYPES = (USER, CLIENT_ID, IP)
EXACT, DEFAULT, ANY = 0, 1, 2
"""How a part of a filter matches a name."""


class UnknownEntityType(Invalid):
    """Kafka has a code of its own for it."""

    kafka_code = "UNSUPPORTED_VERSION"


class Component(NamedTuple):
    """A part of a filter: of this type, and of this name; None: whatever it is."""

    type: str
    name: str | None


def describe_client_quotas(call: Call) -> object:
    make = call.make
    try:
        listed = call.access.client_quotas.listing()
        wanted = _filter(call.request.components)
    except WaystationError as error:
        return make(
            "DescribeClientQuotasResponse",
            throttle_time=0,
            error_code=call.code(error),
            error_message=str(error),
            entries=None,
        )
    entries = tuple(
        make(
            "EntryData",
            entity=_entity_data(call, ((kind, name or None) for kind, name in named.items())),
            values=tuple(make("ValueData", key=key, value=value) for key, value in values.items()),
        )
        for entity, values in listed
        if (named := _named(entity)) and _selects(wanted, named, strict=call.request.strict)
    )
    return make(
        "DescribeClientQuotasResponse", throttle_time=0, error_code=ErrorCode.none, error_message=None, entries=entries
    )


async def alter_client_quotas(call: Call) -> object:
    """Each entity by itself: those that can be are changed, the others are told why not."""
    results = [await _altered(call, entry) for entry in call.request.entries]
    return call.make("AlterClientQuotasResponse", throttle_time=0, entries=tuple(results))


async def _altered(call: Call, entry: Any) -> object:
    failure: WaystationError | None = None
    try:
        quotas = call.access.client_quotas
        quotas.check_alter()
        entity = _entity(entry.entity)
        changes = {op.key: None if op.remove else float(op.value) for op in entry.ops}
        quotas.check(entity, changes)
        if not call.request.validate_only:
            await quotas.alter(entity, changes)
    except WaystationError as error:
        failure = error
    return call.make(
        "EntryData",
        error_code=call.code(failure),
        error_message=None if failure is None else str(failure),
        entity=_entity_data(call, ((part.entity_type, part.entity_name) for part in entry.entity)),
    )


def _entity_data(call: Call, named: Iterable[tuple[str, str | None]]) -> tuple[object, ...]:
    """The name of a default is null."""
    return tuple(call.make("EntityData", entity_type=kind, entity_name=name) for kind, name in named)


def _entity(parts: Sequence[Any]) -> QuotaEntity:
    named: dict[str, str] = {}
    for part in parts:
        if part.entity_type not in TYPES:
            raise Invalid(f"there is no entity type {part.entity_type[:60]!r}; there are {', '.join(TYPES)}")
        if part.entity_type in named:
            raise Invalid(f"the entity type {part.entity_type} is there twice")
        if part.entity_name == "":
            raise Invalid(f"{part.entity_type}: a name is not empty; null is the default")
        named[part.entity_type] = part.entity_name or ""
    return QuotaEntity(named.get(USER), named.get(CLIENT_ID), named.get(IP))


def _named(entity: QuotaEntity) -> dict[str, str]:
    """By type; nothing for what Kafka has no words for."""
    named = {USER: entity.user, CLIENT_ID: entity.client_id, IP: entity.ip}
    return {kind: name for kind, name in named.items() if name is not None}


def _filter(components: Sequence[Any]) -> list[Component]:
    found: list[Component] = []
    for one in components:
        kind = one.entity_type
        if not kind:
            raise Invalid("a part of the filter has no entity type")
        if kind not in TYPES:
            raise UnknownEntityType(f"there is no entity type {kind[:60]!r}; there are {', '.join(TYPES)}")
        if any(kind == other.type for other in found):
            raise Invalid(f"the entity type {kind} is in the filter twice")
        if one.match_type not in (EXACT, DEFAULT, ANY) or (one.match_type == EXACT) != (one.match is not None):
            raise Invalid(f"{kind}: match type {one.match_type} with {one.match!r} makes no sense")
        found.append(Component(kind, {EXACT: one.match, DEFAULT: "", ANY: None}[one.match_type]))
    kinds = {one.type for one in found}
    if IP in kinds and len(kinds) > 1:
        raise Invalid("no quota is for an ip and a user or client id: filter by one of them")
    return found


def _selects(wanted: list[Component], named: dict[str, str], *, strict: bool) -> bool:
    if strict and len(named) != len(wanted):
        return False
    return all(one.type in named and one.name in (None, named[one.type]) for one in wanted)
