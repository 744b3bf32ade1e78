"""The settings page says what the code does."""

from __future__ import annotations

import re

import pytest

from tests.broker.settings_page import PAGE, page
from waystation.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    UNUSED_SETTINGS,
    BrokerSettings,
    TopicSettings,
    render,
)
from waystation.errors import InvalidSetting


def test_the_page_is_what_the_tables_say() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.broker.settings_page`"


def test_every_setting_is_on_the_page_once_in_its_table() -> None:
    topics, brokers = page().split("## Broker settings")
    brokers, guarded = brokers.split("## Settings that clients cannot change")
    protecting = [name for name, row in BROKER_SETTINGS.items() if row.protects]
    for text, names in ((topics, TOPIC_SETTINGS), (brokers, BROKER_SETTINGS), (guarded, protecting)):
        assert sorted(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)) == sorted(names)


def test_a_setting_that_the_code_does_not_read_is_said_to_be_for_compatibility() -> None:
    read = set(TopicSettings.__struct_fields__)
    idle = {name for name, setting in TOPIC_SETTINGS.items() if setting.field not in read}
    assert {name for name in idle if not TOPIC_SETTINGS[name].doc.startswith("Accepted")} == set()


def test_topic_settings_default_to_what_the_table_says() -> None:
    defaults = TopicSettings()
    for setting in TOPIC_SETTINGS.values():
        if setting.field in TopicSettings.__struct_fields__:
            assert getattr(defaults, setting.field) == setting.default, setting.name


def test_the_page_ends_with_its_limits() -> None:
    assert re.findall(r"^## (.+)$", page(), re.MULTILINE)[-1] == "Limits"


def test_kafkas_settings_without_effect_are_on_the_page() -> None:
    assert UNUSED_SETTINGS.keys().isdisjoint(BROKER_SETTINGS)
    text = page()
    assert {name for name in UNUSED_SETTINGS if f"`{name}`" not in text} == set()


def test_a_setting_that_only_has_its_default_takes_that() -> None:
    for name, row in UNUSED_SETTINGS.items():
        assert row.parse(render(row.default)) == row.default, name


def test_the_brokers_id_has_two_names() -> None:
    assert BrokerSettings({"node.id": "5"}).integer("node.id") == 5
    settings = BrokerSettings({"broker.id": "5"}, {"broker.id": "file"})
    assert (settings.integer("node.id"), settings.source("node.id")) == (5, "file")
    assert BrokerSettings({"broker.id": "5", "node.id": "5"}).integer("node.id") == 5
    with pytest.raises(InvalidSetting, match="leave one out"):
        BrokerSettings({"broker.id": "5", "node.id": "6"})
