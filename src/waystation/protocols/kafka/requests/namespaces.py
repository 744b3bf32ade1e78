"""Names of a namespace, as Kafka's clients in it say them: one place for every API.

A client whose session is in a namespace says `orders`, and the broker knows the topic as `shop.orders`; a group or
transactional id `app` is `shop/app` (`routing/namespace_names.py`). Requests are translated when they are decoded and
responses before they are encoded, by the types that Kafka's own schemas give to fields: handlers know full names alone.
That nobody reaches what is outside by an id or a list is the business of permissions. Pure.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from kio.schema.types import GroupId, TopicName, TransactionalId

from waystation.broker.access.types import NamespaceNames, regex_behind
from waystation.protocols.kafka.requests import member_metadata

Translate = Callable[[str], str]

UNTRANSLATED = frozenset({"describe_quorum", "create_acls", "describe_acls", "delete_acls"})
"""They are about the cluster: rules have full names, and the quorum a topic of its own."""
RESOURCE_APIS = frozenset({"describe_configs", "alter_configs", "incremental_alter_configs", "list_config_resources"})
"""They name a resource and its type."""
TOPIC_RESOURCE, GROUP_RESOURCE = 2, 32
BETWEEN_MEMBERS: Mapping[tuple[str, str], str] = {
    ("join_group", "metadata"): "subscription",
    ("describe_groups", "member_metadata"): "subscription",
    ("sync_group", "assignment"): "assignment",
    ("describe_groups", "member_assignment"): "assignment",
}
"""What members of a classic group tell each other, which has names of topics in it."""
COORDINATOR_KEYS = ("key", "coordinator_keys")
"""Of FindCoordinator: a group, a transactional id, or a group with a partition behind it."""


class Way(NamedTuple):
    """Into the namespace's full names, or out of them."""

    topic: Translate
    named: Translate
    topic_regex: Translate
    named_regex: Translate
    text: Translate


class NameField(NamedTuple):
    """A field of an entity that has names in it: how they are translated."""

    name: str
    kind: str  # a field of Way, or how `_translated` finds names in it


def inward(names: NamespaceNames) -> Way:
    """From what a client says. What is empty stays so: there is nothing of that name anywhere."""
    return Way(
        lambda name: names.topic(name) if name else name,
        lambda name: names.full(name) if name else name,
        lambda regex: regex_behind(names.topic_prefix, regex),
        lambda regex: regex_behind(names.prefix, regex),
        lambda text: text,
    )


def outward(names: NamespaceNames) -> Way:
    """To what a client is told."""
    topic_prefix, prefix = re.escape(names.topic_prefix), re.escape(names.prefix)

    def without(regex: str, escaped: str) -> str:
        return regex.removeprefix(f"{escaped}(?:").removesuffix(")") if regex.startswith(f"{escaped}(?:") else regex

    return Way(
        names.local_topic,
        names.local,
        lambda regex: without(regex, topic_prefix),
        lambda regex: without(regex, prefix),
        lambda text: text.replace(f"'{names.topic_prefix}", "'").replace(f"'{names.prefix}", "'"),
    )


def translated(api: str, entity: Any, way: Way) -> Any:
    """A request or a response, with other names."""
    return entity if api in UNTRANSLATED else _translated(api, entity, way)


def _translated(api: str, entity: Any, way: Way) -> Any:
    changes: dict[str, Any] = {}
    kind_of: Any = type(entity)
    for field, kind in _fields(kind_of, api):
        value = getattr(entity, field)
        if not value:
            continue
        if kind == "nested":
            changed: Any = (
                tuple(_translated(api, one, way) for one in value)
                if isinstance(value, tuple)
                else _translated(api, value, way)
            )
        elif kind == "resource":
            changed = _resource(getattr(entity, "resource_type", 0), value, way)
        elif kind == "subscription":
            changed = member_metadata.subscription(value, way.topic)
        elif kind == "assignment":
            changed = member_metadata.assignment(value, way.topic)
        else:
            translate: Translate = getattr(way, kind)
            changed = tuple(map(translate, value)) if isinstance(value, tuple) else translate(value)
        if changed != value:
            changes[field] = changed
    return dataclasses.replace(entity, **changes) if changes else entity


def _resource(kind: int, name: str, way: Way) -> str:
    return way.topic(name) if kind == TOPIC_RESOURCE else way.named(name) if kind == GROUP_RESOURCE else name


_BY_TYPE: Mapping[Any, str] = {TopicName: "topic", GroupId: "named", TransactionalId: "named"}
_BY_NAME: Mapping[str, str] = {
    "subscribed_topic_regex": "topic_regex",
    "transactional_id_pattern": "named_regex",
    "error_message": "text",
}


@lru_cache(maxsize=4096)
def _fields(entity: Any, api: str) -> tuple[NameField, ...]:
    """Those of a class that have names in them, or structures that have."""
    found: list[NameField] = []
    hints = typing.get_type_hints(entity)
    for field in dataclasses.fields(entity):
        kinds = _parts(hints[field.name])
        nested: Any = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        named = next((_BY_TYPE[kind] for kind in kinds if kind in _BY_TYPE), _BY_NAME.get(field.name))
        if nested is not None:
            if _fields(nested, api):
                found.append(NameField(field.name, "nested"))
        elif named is not None:
            found.append(NameField(field.name, named))
        elif api == "find_coordinator" and field.name in COORDINATOR_KEYS:
            found.append(NameField(field.name, "named"))
        elif (api, field.name) in BETWEEN_MEMBERS:
            found.append(NameField(field.name, BETWEEN_MEMBERS[api, field.name]))
        elif api in RESOURCE_APIS and field.name == "resource_name":
            found.append(NameField(field.name, "resource"))
    return tuple(found)


def _parts(kind: Any) -> list[Any]:
    """A type and what it is made of: of `tuple[X, ...] | None` also X."""
    return [kind, *(part for one in typing.get_args(kind) for part in _parts(one))]
