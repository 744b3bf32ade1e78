"""Asking the Kafka protocol in any version, without a socket: requests and answers go through their bytes.

A request is given with the fields of the newest version; those that a version does not have are left out, as a client
of that time would. Only tests of groups use this.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from datetime import timedelta
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial._implicit_defaults import get_tagged_field_default
from kio.static.constants import EntityType

from tests.groups.kit import Stage
from tests.support.permissions import OpenPermissions
from waystation.broker.access.administration.cluster import ClusterAccess
from waystation.broker.access.administration.rules import RuleAccess
from waystation.broker.access.messaging.groups import GroupAccess
from waystation.broker.access.messaging.topics import TopicAccess
from waystation.broker.access.messaging.transactions import TransactionAccess
from waystation.cluster.alone import Alone
from waystation.config import BrokerSettings
from waystation.observe.meters import Meters
from waystation.protocols.kafka.apis import APIS
from waystation.protocols.kafka.coordinators import consumer_groups, groups, offsets
from waystation.protocols.kafka.requests import codec
from waystation.protocols.kafka.requests.registry import Call, Listener
from waystation.security.audit import Audit
from waystation.security.principals import ANONYMOUS
from waystation.topics.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

FAMILIES = (groups, offsets, consumer_groups)

VERSIONS = {
    api.name: range(api.min_version, api.max_version + 1)
    for api in APIS.values()
    if inspect.getmodule(api.handler) in FAMILIES
}
"""What the three family files register."""


class NoShareGroups:
    """All of them are coordinated here, and there are none."""

    def __init__(self) -> None:
        self.journal = SimpleNamespace(check_led=lambda name: None)

    def __contains__(self, name: object) -> bool:
        return False


class KnowsOffsets:
    """The topics of the stage, and those that coordinators have their state in."""

    def __init__(self, topics: Any) -> None:
        self._topics = topics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topics, name)

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def __iter__(self) -> Iterator[Any]:
        return iter(self._topics)

    def id_of(self, topic: str) -> UUID | None:
        return UUID(int=1) if topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC) else self._topics.id_of(topic)


def versions(name: str) -> list[int]:
    return list(VERSIONS[name])


async def ask(stage: Stage, name: str, version: int, /, **fields: Any) -> Any:
    """The decoded response to a request."""
    module, _, class_name = schema_name_map[name][version][EntityType.request].partition(":")
    request_class = getattr(__import__(module, fromlist=[class_name]), class_name)
    buffer = BytesIO()
    entity_writer(request_class)(buffer, _build(request_class, fields))
    none: Any = SimpleNamespace(listing=lambda *_: [])
    view = Alone(1, lambda *_: 0)
    broker: Any = SimpleNamespace(
        groups=stage.coordinator,
        topics=KnowsOffsets(stage.coordinator.topics),
        transactions=SimpleNamespace(partition_of=lambda _: 0),
        view=view,
        shared=NoShareGroups(),
        shared_admin=none,
        share_coordinators=SimpleNamespace(elsewhere=lambda _: None),
        node_id=1,
        world=stage.world,
        permissions=OpenPermissions(),
        audit=Audit(stage.world, BrokerSettings({}), none, none, enforced=lambda: False, elsewhere=None),
    )
    access: Any = SimpleNamespace(
        groups=GroupAccess(broker, ANONYMOUS),
        topics=TopicAccess(broker, ANONYMOUS),
        transactions=TransactionAccess(broker, ANONYMOUS),
        cluster=ClusterAccess(broker, ANONYMOUS),
        rules=RuleAccess(broker, ANONYMOUS),
        meter=Meters().kafka,
        view=view,
    )
    request = codec.decode_request(name, version, buffer.getvalue())
    call = Call(name, version, request, broker, access, "app", "127.0.0.1", Listener("localhost", 9092))
    api = APIS[codec.API_KEYS[name]]
    data = codec.encode_response(name, version, await api.handler(call))
    module, _, class_name = schema_name_map[name][version][EntityType.response].partition(":")
    response_class = getattr(__import__(module, fromlist=[class_name]), class_name)
    response, size = entity_reader(response_class)(data, 0)
    assert size == len(data)
    return response


def _build(entity: Any, given: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(entity, vars(sys.modules[entity.__module__]))
    values: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        if field.name in given:
            values[field.name] = _value(hints[field.name], given[field.name])
        elif field.default is dataclasses.MISSING:
            values[field.name] = _default(field)
    return entity(**values)


def _value(hint: Any, value: Any) -> Any:
    if isinstance(value, timedelta) or value is None:
        return value
    nested = _nested(hint)
    if nested is not None:
        return tuple(_build(nested, one) for one in value)
    return tuple(value) if isinstance(value, list) else value


def _nested(hint: Any) -> Any:
    """The entity class of a tuple of entities."""
    for part in (hint, *(typing.get_args(hint) if isinstance(hint, types.UnionType) else ())):
        arguments = typing.get_args(part)
        if typing.get_origin(part) is tuple and dataclasses.is_dataclass(arguments[0]):
            return arguments[0]
    return None


def _default(field: Any) -> Any:
    kind = str(field.type)
    if kind.startswith("tuple") or "tuple" in kind:
        return ()
    if field.type in (bool, "bool"):
        return False
    return None if "None" in kind else get_tagged_field_default(field)
