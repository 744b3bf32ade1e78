"""A topic's settings as they are shown: what holds, where it comes from, and what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waystation.admin.views.view_settings import SettingOut, SettingsOut
from waystation.config import TOPIC_SETTINGS, Setting, render
from waystation.errors import NotFound

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker
    from waystation.topics.topics import Topic


class TopicSettingsQuery(msgspec.Struct):
    topic: str


def topic_settings_view(broker: ManagedBroker, query: TopicSettingsQuery) -> SettingsOut:
    """All of them, in the order of names. The source is `policy` for one of a policy, `topic` for one of its own, else
    the broker's, or `default`."""
    topic = broker.topics.find(query.topic)
    if topic is None:
        raise NotFound(f"there is no topic {query.topic!r}", "topic", query.topic)
    return SettingsOut([_shown(broker, topic, row) for _, row in sorted(TOPIC_SETTINGS.items())])


def _shown(broker: ManagedBroker, topic: Topic, row: Setting) -> SettingOut:
    default = render(broker.settings.topic_default(row))
    ruled = broker.topics.by_policy(topic.name) if topic.settings.stream else {}
    own = ruled.get(row.name, topic.overrides.get(row.name))
    source = "policy" if row.name in ruled else "topic"
    if own is None:
        changed = row.broker_name is not None and broker.settings.source(row.broker_name) != "default"
        source = "broker" if changed else "default"
    value = default if own is None else own
    return SettingOut(row.name, value, default, default, row.kind, source, True, row.doc, list(row.choices))
