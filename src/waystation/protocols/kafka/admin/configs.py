"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

Invariant: each resource of a request is changed wholly or not at all, durably, and the change holds from the moment of
the answer. Which settings exist and what they may be is said by the tables in `config.py`, not here.
Called through the registry only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from waystation.broker.access.types import CONSUMER_SETTINGS
from waystation.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    UNUSED_SETTINGS,
    BrokerSettings,
    Setting,
    check_dynamic,
    render,
    resolve_topic,
)
from waystation.errors import Invalid, InvalidSetting, NotLeader, WaystationError
from waystation.protocols.kafka.admin import loggers
from waystation.protocols.kafka.admin.config_entries import (
    GROUP_SETTINGS,
    ConfigEntry,
    broker_entries,
    broker_facts,
    default_entries,
    group_entries,
    topic_entries,
)
from waystation.protocols.kafka.requests import nodes
from waystation.protocols.kafka.requests.registry import Call

# Resource types.
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32

# Operations of an incremental change.
SET, DELETE, APPEND, SUBTRACT = range(4)

LOGGER_SOURCE = 6
STRING_TYPE = 2


# -- DescribeConfigs -------------------------------------------------------------------------------------------------


async def describe_configs(call: Call) -> object:
    """A resource that is asked for twice is told once: a small request cannot be made to fill the memory."""
    distinct = {(resource.resource_type, resource.resource_name): resource for resource in call.request.resources}
    results = tuple([await _describe(call, resource) for resource in distinct.values()])
    return call.make("DescribeConfigsResponse", throttle_time=0, results=results)


async def _describe(call: Call, resource: Any) -> object:
    error: WaystationError | None = None
    configs: list[object] = []
    wanted = resource.configuration_keys  # null and empty both mean all
    try:
        if resource.resource_type == BROKER_LOGGER:
            _check_broker(call, resource.resource_name)
            levels = call.access.cluster.log_levels()
            configs = [_logger(call, name, level) for name, level in levels.items() if not wanted or name in wanted]
        else:
            entries = await _entries(call, resource.resource_type, resource.resource_name)
            configs = [_config(call, entry) for entry in entries if not wanted or entry.name in wanted]
    except WaystationError as caught:
        error = caught
    return call.make(
        "DescribeConfigsResult",
        error_code=call.code(error),
        error_message=None if error is None else str(error),
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(configs),
    )


async def _entries(call: Call, kind: int, name: str) -> list[ConfigEntry]:
    access, settings = call.access, call.broker.settings
    if kind == TOPIC:
        overrides, topic_id = access.topics.settings(name), access.topics.id_of(name)
        placed = None if topic_id is None else access.view.placed(topic_id, 0)
        replicas = 1 if placed is None else len(placed.replicas) - len(placed.adding)
        return topic_entries(overrides, settings, replicas)
    if kind == BROKER:
        if name == "":
            return default_entries(access.cluster.settings())
        _check_broker(call, name)
        facts = broker_facts(call.broker.node_id, call.listener, call.broker.root, settings)
        return broker_entries(access.cluster.settings(), facts)
    if kind not in (GROUP, CLIENT_METRICS):
        raise _no_such_type(kind)
    if not name:
        raise Invalid("the name of a group or client metrics subscription cannot be empty")
    if kind == CLIENT_METRICS:
        return []
    return group_entries(access.groups.settings(name) | await access.shares.settings(name), settings)


def _no_such_type(kind: int) -> Invalid:
    return Invalid(f"there is no resource type {kind} with settings")


def _check_broker(call: Call, name: str) -> None:
    """Each node answers for itself: clients send such a request to the node that it is about."""
    if name == str(call.broker.node_id):
        return
    for other in nodes.endpoints(call.access.view, call.listener):
        if name == str(other.node_id):
            raise Invalid(f"this is broker {call.broker.node_id}; ask broker {name}, at {other.host}:{other.port}")
    raise Invalid(f"there is no broker {name!r}; this one is {call.broker.node_id}")


def _config(call: Call, entry: ConfigEntry) -> object:
    request, make = call.request, call.make
    secret = entry.setting.secret
    synonyms: tuple[object, ...] = ()
    if request.include_synonyms:
        synonyms = tuple(
            make(
                "DescribeConfigsSynonym",
                name=synonym.name,
                value=None if secret else synonym.value,
                source=synonym.source,
            )
            for synonym in entry.synonyms
        )
    return make(
        "DescribeConfigsResourceResult",
        name=entry.name,
        value=None if secret else entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=secret,
        synonyms=synonyms,
        config_type=entry.type_code,
        documentation=entry.setting.doc if getattr(request, "include_documentation", False) else None,
    )


def _logger(call: Call, name: str, level: int) -> object:
    return call.make(
        "DescribeConfigsResourceResult",
        name=name,
        value=loggers.label_of(level),
        config_source=LOGGER_SOURCE,
        config_type=STRING_TYPE,
    )


# -- AlterConfigs and IncrementalAlterConfigs ------------------------------------------------------------------------


async def alter_configs(call: Call) -> object:
    """The old call: what is not named goes back to its default."""

    async def replace(resource: Any) -> None:
        new = {config.name: config.value for config in resource.configs}
        if resource.resource_type == BROKER_LOGGER:
            raise Invalid("levels of loggers are changed one by one, with IncrementalAlterConfigs")
        await _apply(call, resource, lambda current, table, default: new)

    return call.make("AlterConfigsResponse", throttle_time=0, responses=await _alter_each(call, replace))


async def incremental_alter_configs(call: Call) -> object:
    async def change(resource: Any) -> None:
        if resource.resource_type == BROKER_LOGGER:
            _change_loggers(call, resource)
        else:
            await _apply(
                call, resource, lambda current, table, default: _changed(current, table, default, resource.configs)
            )

    return call.make("IncrementalAlterConfigsResponse", throttle_time=0, responses=await _alter_each(call, change))


async def _alter_each(call: Call, alter: Callable[[Any], Awaitable[None]]) -> tuple[object, ...]:
    resources = call.request.resources
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    responses = []
    for resource in resources:
        error: WaystationError | None = None
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise Invalid(f"resource {resource.resource_name!r} stands in the request more than once")
            _check_configs(resource.configs)
            await alter(resource)
        except WaystationError as caught:
            error = caught
        responses.append(
            call.make(
                "AlterConfigsResourceResponse",
                error_code=call.code(error),
                error_message=None if error is None else str(error),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return tuple(responses)


def _check_configs(configs: Iterable[Any]) -> None:
    seen: set[str] = set()
    for config in configs:
        if config.name in seen:
            raise Invalid(f"setting {config.name!r} stands in the request more than once")
        seen.add(config.name)
        operation = getattr(config, "config_operation", SET)
        if operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise Invalid(f"setting {config.name!r}: there is no operation {operation}")
        if config.value is None and operation != DELETE:
            raise Invalid(f"setting {config.name!r} has no value")


Change = Callable[[Mapping[str, str], Mapping[str, Setting], Callable[[Setting], str]], dict[str, str]]
"""From the present own settings, the table of settings and the defaults below them, to the new own settings."""


async def _apply(call: Call, resource: Any, change: Change) -> None:
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        await _apply_to_topic(call, name, change)
    elif kind == BROKER:
        if name != "":
            _check_broker(call, name)
            if len(call.access.view.nodes()) > 1:
                raise Invalid("settings that are changed at run time hold for all brokers; change them with no name")
        await _apply_to_broker(call, change)
    elif kind == GROUP:
        await _apply_to_group(call, name, change)
    elif kind == CLIENT_METRICS:
        raise Invalid("client metrics subscriptions are not offered: this broker asks clients for no metrics")
    else:
        raise _no_such_type(kind)


async def _apply_to_topic(call: Call, name: str, change: Change) -> None:
    if not name:
        raise Invalid("defaults for all topics are settings of the broker (log.*)")
    settings = call.broker.settings

    def changed(present: dict[str, str]) -> dict[str, str]:
        new = change(present, TOPIC_SETTINGS, lambda setting: render(settings.topic_default(setting)))
        resolve_topic(new, settings)
        return new

    present = call.access.topics.settings_to_alter(name)
    if changed(present) != present and not call.request.validate_only:
        await call.access.topics.alter(name, changed)


async def _apply_to_broker(call: Call, change: Change) -> None:
    cluster = call.access.cluster
    settings = cluster.settings_to_alter()
    table = BROKER_SETTINGS | UNUSED_SETTINGS
    new = change(settings.changed, table, lambda setting: render(settings[setting.name]))
    for name, text in new.items():
        if settings.changed.get(name) != text:
            _check_broker_setting(name, text)
    if call.request.validate_only:
        return
    changes: dict[str, str | None] = {name: None for name in settings.changed if name not in new}
    changes |= {name: text for name, text in new.items() if settings.changed.get(name) != text}
    if changes:
        await cluster.alter_settings(changes)


async def _apply_to_group(call: Call, name: str, change: Change) -> None:
    """Settings of the new group protocol and of share groups; a classic group has none of its own."""
    groups, shares = call.access.groups, call.access.shares
    shared = await shares.settings(name)
    try:
        consumer = groups.settings(name)
    except NotLeader:  # another node has them: a change of those alone that share groups have goes on
        consumer = {}
    new = change(consumer | shared, GROUP_SETTINGS, lambda setting: render(call.broker.settings.topic_default(setting)))
    new_consumer = {key: text for key, text in new.items() if key in CONSUMER_SETTINGS}
    new_shared = {key: text for key, text in new.items() if key not in CONSUMER_SETTINGS}
    if new_consumer != consumer:
        groups.check_settings(name, new_consumer)
    shares.check_settings(name, new_shared)
    if call.request.validate_only:
        return
    if new_consumer != consumer:
        await groups.alter_settings(name, new_consumer)
    if new_shared != shared:
        await shares.alter_settings(name, new_shared)


def _check_broker_setting(name: str, text: str) -> None:
    BrokerSettings.check(name, text)
    check_dynamic(name)


def _changed(
    current: Mapping[str, str],
    table: Mapping[str, Setting],
    default: Callable[[Setting], str],
    configs: Iterable[Any],
) -> dict[str, str]:
    new = dict(current)
    for config in configs:
        operation, name, value = config.config_operation, config.name, config.value
        if operation == SET:
            new[name] = value
        elif operation == DELETE:
            new.pop(name, None)
        else:
            setting = table.get(name)
            if setting is None or setting.kind != "list":
                raise InvalidSetting(f"{name!r} is not a setting with a list of values: it can only be set or deleted")
            new[name] = _spliced(new[name] if name in new else default(setting), operation, value)
    return new


def _spliced(present: str, operation: int, text: str) -> str:
    """The list with the values appended that it lacks, or without those that are subtracted."""
    parts = [part.strip() for part in present.split(",") if part.strip()]
    given = [part.strip() for part in text.split(",") if part.strip()]
    if operation == SUBTRACT:
        return ",".join(part for part in parts if part not in given)
    return ",".join(dict.fromkeys([*parts, *given]))


def _change_loggers(call: Call, resource: Any) -> None:
    _check_broker(call, resource.resource_name)
    cluster = call.access.cluster
    cluster.settings_to_alter()
    known = cluster.log_levels()
    levels: list[tuple[str, int]] = []
    for config in resource.configs:
        if config.config_operation not in (SET, DELETE):
            raise Invalid(f"logger {config.name!r}: a level can only be set or deleted")
        label = config.value if config.config_operation == SET else None
        levels.append((config.name, loggers.level_for(config.name, label, known)))
    if not call.request.validate_only:
        cluster.alter_log_levels(levels)


# -- ListConfigResources ---------------------------------------------------------------------------------------------


def list_config_resources(call: Call) -> object:
    """Names of what has settings. v0 lists client metrics subscriptions only, of which there are none."""
    brokers = [str(node.id) for node in call.access.view.nodes()]
    known: dict[int, list[str]] = {CLIENT_METRICS: []}
    if call.version >= 1:
        topics = sorted(topic.name for topic in call.access.topics.listing())
        known |= {TOPIC: topics, BROKER: brokers, BROKER_LOGGER: brokers}
        known[GROUP] = sorted({*call.access.groups.with_settings(), *call.access.shares.with_settings()})
    kinds = getattr(call.request, "resource_types", ()) or tuple(known)
    make = call.make
    if any(kind not in known for kind in kinds):
        return make("ListConfigResourcesResponse", throttle_time=0, error_code=ErrorCode.unsupported_version)
    return make(
        "ListConfigResourcesResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        config_resources=tuple(
            make("ConfigResource", resource_name=name, resource_type=kind)
            for kind in dict.fromkeys(kinds)
            for name in known[kind]
        ),
    )
