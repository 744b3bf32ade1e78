"""How a setting is told to Kafka clients: its value, where that comes from, and what else would apply without it.

Invariant: everything is read from the tables in `config.py` at the moment of asking, so what is told is what holds.
Used by `configs.py` and by CreateTopics, which tells a new topic's settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from waystation.broker.access.types import SHARE_SETTINGS
from waystation.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerSettings, Setting, render

# Where a value comes from (Kafka's ConfigSource).
TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC_BROKER, BUILT_IN, GROUP = 1, 2, 3, 4, 5, 8

_TYPES = {"bool": 1, "string": 2, "float": 6, "list": 7}
_INT, _LONG = 3, 5
_INT_MAX = 2**31 - 1

GROUP_SETTINGS = {
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
}
"""Settings of consumer groups and the broker's that they are: these groups have none of their own."""


@dataclass(frozen=True, slots=True)
class Synonym:
    """A value that applies, or would apply if those before it were taken away."""

    name: str
    value: str
    source: int


@dataclass(frozen=True, slots=True)
class Entry:
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


def _broker_synonyms(name: str, settings: BrokerSettings) -> Iterator[Synonym]:
    setting = BROKER_SETTINGS[name]
    if name in settings.changed:
        yield Synonym(name, _canonical(setting, settings.changed[name]), DYNAMIC_BROKER)
    if name in settings.given:
        yield Synonym(name, _canonical(setting, settings.given[name]), STATIC_BROKER)
    yield Synonym(name, render(setting.default), BUILT_IN)


def topic_entries(overrides: Mapping[str, str], settings: BrokerSettings) -> list[Entry]:
    """All settings of a topic that has these of its own."""
    entries = []
    for name, setting in TOPIC_SETTINGS.items():
        synonyms: list[Synonym] = []
        if name in overrides:
            synonyms.append(Synonym(name, _canonical(setting, overrides[name]), TOPIC))
        if setting.broker_name is not None:
            synonyms += _broker_synonyms(setting.broker_name, settings)
        else:
            synonyms.append(Synonym(name, render(setting.default), BUILT_IN))
        entries.append(Entry(name, setting, tuple(synonyms)))
    return entries


def broker_entries(settings: BrokerSettings) -> list[Entry]:
    """All settings of this broker."""
    return [
        Entry(name, setting, tuple(_broker_synonyms(name, settings)), read_only=not setting.dynamic)
        for name, setting in BROKER_SETTINGS.items()
    ]


def default_entries(settings: BrokerSettings) -> list[Entry]:
    """What was changed at run time. With one broker, its own changes and the cluster's defaults are the same thing."""
    return [
        Entry(name, BROKER_SETTINGS[name], (Synonym(name, _canonical(BROKER_SETTINGS[name], text), DYNAMIC_DEFAULT),))
        for name, text in settings.changed.items()
    ]


def group_entries(own: Mapping[str, str], settings: BrokerSettings) -> list[Entry]:
    """What holds for a group: of the new protocol the broker's settings, of a share group also its own."""
    entries = [
        Entry(name, BROKER_SETTINGS[broker_name], tuple(_broker_synonyms(broker_name, settings)), read_only=True)
        for name, broker_name in GROUP_SETTINGS.items()
    ]
    for name, setting in SHARE_SETTINGS.items():
        synonyms: list[Synonym] = []
        if name in own:
            synonyms.append(Synonym(name, _canonical(setting, own[name]), GROUP))
        if setting.broker_name is not None:
            synonyms += _broker_synonyms(setting.broker_name, settings)
        else:
            synonyms.append(Synonym(name, render(setting.default), BUILT_IN))
        entries.append(Entry(name, setting, tuple(synonyms)))
    return entries
