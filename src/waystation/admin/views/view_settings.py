"""The broker's settings, as they are shown, and changed while it runs. A secret is never shown, only that it is set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.config import BROKER_SETTINGS, UNUSED_SETTINGS, Setting, render
from waystation.errors import Invalid
from waystation.paging import Search

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

HIDDEN = "(set)"
"""What stands for a secret that is set; one that is not set is empty."""

Given = str | int | float | bool | None


class SettingsQuery(msgspec.Struct):
    search: Search = ""


class SettingOut(msgspec.Struct):
    name: str
    value: str
    default: str
    fallback: Annotated[str, Meta(description="what holds when a change is taken back: see `source`")]
    kind: str
    source: Annotated[str, Meta(description="default, file, environment, flag or changed (while it runs)")]
    dynamic: Annotated[bool, Meta(description="it may change while the broker runs")]
    doc: str
    choices: list[str]


class SettingsOut(msgspec.Struct):
    settings: list[SettingOut]


def settings_view(broker: ManagedBroker, query: SettingsQuery) -> SettingsOut:
    """All that have an effect, in the order of names, and of Kafka's others those that somebody has set."""
    wanted = query.search.lower()
    was_set = broker.settings.given.keys() | broker.settings.changed.keys()
    rows = BROKER_SETTINGS | {name: row for name, row in UNUSED_SETTINGS.items() if name in was_set}
    return SettingsOut([_shown(broker, row) for name, row in sorted(rows.items()) if wanted in name.lower()])


def _shown(broker: ManagedBroker, row: Setting) -> SettingOut:
    settings = broker.settings
    value = render(settings[row.name])
    return SettingOut(
        row.name,
        _hidden(row, value),
        render(row.default),
        _hidden(row, settings.given.get(row.name, render(row.default))),
        row.kind,
        settings.source(row.name),
        row.dynamic,
        row.doc,
        list(row.choices),
    )


def _hidden(row: Setting, value: str) -> str:
    return HIDDEN if row.secret and value else value


async def alter(broker: ManagedBroker, changes: Mapping[str, Given]) -> None:
    """Changes settings by name, all of them or none; None takes one back. They survive a restart."""
    if not changes:
        raise Invalid('settings: name at least one, as in {"log.retention.ms": "86400000"}')
    await broker.alter_settings({name: None if value is None else render(value) for name, value in changes.items()})
