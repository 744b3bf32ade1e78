"""How a setting is told to Kafka clients: its value, where that comes from, and what else would apply without it.

Invariant: everything is read from the tables in `config.py` at the moment of asking, so what is told is what holds.
Used by `configs.py` and by CreateTopics, which tells a new topic's settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from waystation.broker.access.types import CONSUMER_SETTINGS, SHARE_SETTINGS
from waystation.config import (
    BROKER_ID,
    BROKER_SETTINGS,
    MIN_IN_SYNC,
    TOPIC_SETTINGS,
    UNUSED_SETTINGS,
    BrokerSettings,
    Setting,
    default_min_in_sync,
    render,
)
from waystation.protocols.kafka.requests.registry import Listener

# Where a value comes from (Kafka's ConfigSource).
TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC_BROKER, BUILT_IN, GROUP = 1, 2, 3, 4, 5, 8

_TYPES = {"bool": 1, "string": 2, "float": 6, "list": 7}
_INT, _LONG = 3, 5
_INT_MAX = 2**31 - 1

_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000

GROUP_SETTINGS = CONSUMER_SETTINGS | SHARE_SETTINGS
"""What a group of any kind may have of its own."""


class Synonym(msgspec.Struct, frozen=True):
    """A value that applies, or would apply if those before it were taken away."""

    name: str
    value: str
    source: int


class ConfigEntry(msgspec.Struct, frozen=True):
    """One setting of one resource. The first synonym is the value that holds."""

    name: str
    setting: Setting
    synonyms: tuple[Synonym, ...]
    read_only: bool = False

    @property
    def value(self) -> str:
        return self.synonyms[0].value

    @property
    def source(self) -> int:
        return self.synonyms[0].source

    @property
    def type_code(self) -> int:
        """Kafka's ConfigType."""
        setting = self.setting
        if setting.kind == "int":
            return _INT if setting.high <= _INT_MAX else _LONG
        return _TYPES[setting.kind]


def _canonical(setting: Setting, text: str) -> str:
    return render(setting.parse(text))


def _row(name: str) -> Setting:
    return BROKER_SETTINGS.get(name) or UNUSED_SETTINGS[name]


def _broker_synonyms(name: str, settings: BrokerSettings) -> Iterator[Synonym]:
    setting = _row(name)
    if name in settings.changed:
        yield Synonym(name, _canonical(setting, settings.changed[name]), DYNAMIC_BROKER)
    if name in settings.given:
        yield Synonym(name, _canonical(setting, settings.given[name]), STATIC_BROKER)
    yield Synonym(name, render(setting.default), BUILT_IN)


def topic_entries(overrides: Mapping[str, str], settings: BrokerSettings, replicas: int) -> list[ConfigEntry]:
    """All settings of a topic that has these of its own, and so many replicas."""
    entries = []
    for name, setting in TOPIC_SETTINGS.items():
        synonyms: list[Synonym] = []
        if name in overrides:
            synonyms.append(Synonym(name, _canonical(setting, overrides[name]), TOPIC))
        if setting.broker_name is not None:
            synonyms += _broker_synonyms(setting.broker_name, settings)
        else:
            synonyms.append(Synonym(name, render(setting.default), BUILT_IN))
        if name == MIN_IN_SYNC:
            synonyms[-1] = msgspec.structs.replace(synonyms[-1], value=str(default_min_in_sync(replicas)))
        entries.append(ConfigEntry(name, setting, tuple(synonyms)))
    return entries


def broker_entries(settings: BrokerSettings, facts: Mapping[str, str]) -> list[ConfigEntry]:
    """All settings of this broker, with those of Kafka's that have no effect. `facts`: what is known of it, and is not
    set by the name that Kafka gives it."""
    entries = [
        ConfigEntry(name, setting, tuple(_broker_synonyms(name, settings)), read_only=not setting.dynamic)
        for name, setting in (BROKER_SETTINGS | UNUSED_SETTINGS).items()
        if name not in facts
    ]
    known = (
        ConfigEntry(name, UNUSED_SETTINGS[name], (Synonym(name, value, STATIC_BROKER),), read_only=True)
        for name, value in facts.items()
    )
    return [*entries, *known]


def broker_facts(node_id: int, listener: Listener, root: str, settings: BrokerSettings) -> dict[str, str]:
    """`listener`: by which the client has come; of the others it is told nothing."""
    name = listener.kafka_name
    address = f"{name}://{listener.host}:{listener.port}"
    retention_ms, roll_ms = settings.integer("log.retention.ms"), settings.integer("log.roll.ms")
    return {
        BROKER_ID: str(node_id),
        "advertised.listeners": address,
        "listeners": address,
        "listener.security.protocol.map": f"{name}:{listener.protocol}",
        "controller.listener.names": name,
        "inter.broker.listener.name": name,
        "log.dir": root,
        "log.dirs": root,
        "log.retention.minutes": str(max(retention_ms // _MINUTE_MS, -1)),
        "log.retention.hours": str(max(retention_ms // _HOUR_MS, -1)),
        "log.roll.hours": str(roll_ms // _HOUR_MS),
        "log.roll.jitter.hours": str(settings.integer("log.roll.jitter.ms") // _HOUR_MS),
    }


def default_entries(settings: BrokerSettings) -> list[ConfigEntry]:
    """What was changed at run time. With one broker, its own changes and the cluster's defaults are the same thing."""
    return [
        ConfigEntry(name, _row(name), (Synonym(name, _canonical(_row(name), text), DYNAMIC_DEFAULT),))
        for name, text in settings.changed.items()
    ]


def group_entries(own: Mapping[str, str], settings: BrokerSettings) -> list[ConfigEntry]:
    """What holds for a group of the new protocol or a share group, whichever it is or will be."""
    entries = []
    for name, setting in GROUP_SETTINGS.items():
        synonyms: list[Synonym] = []
        if name in own:
            synonyms.append(Synonym(name, _canonical(setting, own[name]), GROUP))
        if setting.broker_name is not None:
            synonyms += _broker_synonyms(setting.broker_name, settings)
        else:
            synonyms.append(Synonym(name, render(setting.default), BUILT_IN))
        entries.append(ConfigEntry(name, setting, tuple(synonyms)))
    return entries
