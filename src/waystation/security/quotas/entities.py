"""What quotas there are, and whom one can be for. Pure.

The names are Kafka's, and those that Kafka has no quota for are like them. An entity names a user, a client id or both,
an address, or a namespace; an empty name is the default: everybody of that kind who has none of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, cast, get_args

import msgspec

from waystation.errors import Invalid, nearest_field

QuotaKey = Literal[
    "producer_byte_rate",
    "consumer_byte_rate",
    "producer_message_rate",
    "consumer_message_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
]
DEFAULT_ENTITY = ""
"""As a name: everybody of that kind who has no quota of its own."""
MAX_ENTITY_NAME = 255
MOST_RATE = 2.0**53
"""Beyond it a number of bytes is not one that arithmetic keeps."""


class QuotaKind(NamedTuple):
    """What a quota limits."""

    for_ip: bool
    """For addresses alone; the others are for users, clients and namespaces."""
    burst_s: float
    """What somebody who was quiet may take at once, in seconds of the rate."""
    whole: bool
    """Its value is a whole number, as Kafka has it."""


QUOTAS: Mapping[QuotaKey, QuotaKind] = {
    "producer_byte_rate": QuotaKind(for_ip=False, burst_s=1.0, whole=True),
    "consumer_byte_rate": QuotaKind(for_ip=False, burst_s=1.0, whole=True),
    "producer_message_rate": QuotaKind(for_ip=False, burst_s=1.0, whole=False),
    "consumer_message_rate": QuotaKind(for_ip=False, burst_s=1.0, whole=False),
    "request_percentage": QuotaKind(for_ip=False, burst_s=1.0, whole=False),
    "controller_mutation_rate": QuotaKind(for_ip=False, burst_s=10.0, whole=False),
    "connection_creation_rate": QuotaKind(for_ip=True, burst_s=1.0, whole=True),
}


class QuotaEntity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whom a quota is for. None: that is not what it asks about; empty: the default."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None
    namespace: str | None = None

    def __str__(self) -> str:
        named = {"user": self.user, "client-id": self.client_id, "ip": self.ip, "namespace": self.namespace}
        return ", ".join(f"{kind} {name or '<default>'}" for kind, name in named.items() if name is not None)


def check_entity(entity: QuotaEntity) -> None:
    """Invalid if there can be no such entity."""
    client = entity.user is not None or entity.client_id is not None
    kinds = client + (entity.ip is not None) + (entity.namespace is not None)
    if kinds != 1:
        raise Invalid("a quota is for a user, a client id or both of them, or for an ip, or for a namespace")
    for name in (entity.user, entity.client_id, entity.ip, entity.namespace):
        if name is not None and (len(name) > MAX_ENTITY_NAME or not (name.isprintable() or name == DEFAULT_ENTITY)):
            raise Invalid(f"{name[:60]!r}: a name has at most {MAX_ENTITY_NAME} characters that can be printed")
    if entity.ip:
        from ipaddress import ip_address  # a quarter of a MiB that a broker without such quotas saves

        try:
            usual = str(ip_address(entity.ip))
        except ValueError:
            raise Invalid(f"ip: {entity.ip[:60]!r} is no address; write 192.0.2.7 or 2001:db8::7") from None
        if usual != entity.ip:  # it is compared as text
            raise Invalid(f"ip: write {usual}, not {entity.ip[:60]!r}")


def check_value(entity: QuotaEntity, key: str, value: float) -> QuotaKey:
    """Invalid if the entity cannot have this quota."""
    if key not in QUOTAS:
        hint = nearest_field(key, get_args(QuotaKey)) or f"; there are {', '.join(QUOTAS)}"
        raise Invalid(f"there is no quota {key[:60]!r}{hint}")
    name = cast(QuotaKey, key)
    kind = QUOTAS[name]
    if kind.for_ip != (entity.ip is not None):
        whom = "an ip" if kind.for_ip else "a user, a client id or a namespace"
        raise Invalid(f"{key} is a quota of {whom}, not of {entity}")
    if not (math.isfinite(value) and 0 < value <= MOST_RATE):
        raise Invalid(f"{key}: {value} is no rate; it is above 0 and at most {MOST_RATE:.0f}")
    if kind.whole and value != int(value):
        raise Invalid(f"{key}: {value} is no whole number")
    return name


def client_levels(user: str, client_id: str) -> tuple[tuple[QuotaEntity, tuple[str, str]], ...]:
    """In which order quotas of a client are looked for, as Kafka does: the most special first. With each, who shares
    its bucket: a user on all its clients, one client of it, or a client id whoever has logged in."""
    default = DEFAULT_ENTITY
    both, user_alone, id_alone = (user, client_id), (user, ""), ("", client_id)
    with_id = bool(client_id)
    found: list[tuple[QuotaEntity, tuple[str, str]]] = []
    for name in (user, default):
        if with_id:
            found.append((QuotaEntity(name, client_id), both))
        found.append((QuotaEntity(name, default), both))
        found.append((QuotaEntity(name), user_alone))
    if with_id:
        found.append((QuotaEntity(None, client_id), id_alone))
    found.append((QuotaEntity(None, default), id_alone))
    return tuple(found)
