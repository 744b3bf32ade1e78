"""A topic's settings by HTTP: all of them, with what holds and where it comes from."""

from __future__ import annotations

from typing import Any

from tests.protocols.http.kit import Http
from waystation.config import TOPIC_SETTINGS


def test_every_setting_of_a_topic_is_shown_with_its_source(http: Http, topic: str) -> None:
    http("PUT", f"/v1/topics/{topic}", {"settings": {"retention.ms": "60000"}})
    shown = settings_of(http, topic)
    assert sorted(shown) == sorted(TOPIC_SETTINGS)
    assert (shown["retention.ms"]["value"], shown["retention.ms"]["source"]) == ("60000", "topic")
    assert shown["retention.ms"]["default"] != "60000"
    assert (shown["cleanup.policy"]["value"], shown["cleanup.policy"]["source"]) == ("delete", "default")
    assert shown["cleanup.policy"]["choices"] == ["delete", "compact"]


def test_a_default_that_the_broker_was_given_is_told_apart(http: Http, topic: str) -> None:
    http("PUT", f"/v1/topics/{topic}")
    http("PATCH", "/v1/settings", {"log.roll.ms": "1234567"})
    try:
        one = settings_of(http, topic)["segment.ms"]
    finally:
        http("PATCH", "/v1/settings", {"log.roll.ms": None})
    assert (one["value"], one["default"], one["source"]) == ("1234567", "1234567", "broker")


def test_settings_of_a_topic_that_is_not_there(http: Http, topic: str) -> None:
    assert http.refused("GET", f"/v1/topics/{topic}/settings")[0] == 404


def settings_of(http: Http, topic: str) -> dict[str, Any]:
    return {one["name"]: one for one in http("GET", f"/v1/topics/{topic}/settings").json["settings"]}
