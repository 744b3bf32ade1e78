"""The broker's settings over HTTP: where each comes from, and changing them while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.protocols.http.kit import Http
from tests.support.server import Server


def shown(http: Http, setting: str) -> dict[str, Any]:
    rows = http("GET", "/v1/settings", search=setting).json["settings"]
    return next(row for row in rows if row["name"] == setting)


def test_a_setting_says_where_its_value_comes_from(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('[broker]\n"message.max.bytes" = 500000\n')
    arguments = ["--config", str(config)]
    with Server(tmp_path / "one", settings={"num.partitions": 3}, arguments=arguments) as server:
        http = Http(server.addresses["http"])
        assert [shown(http, each)["source"] for each in ("num.partitions", "message.max.bytes")] == ["flag", "file"]
        assert shown(http, "auto.create.topics.enable") == {
            "name": "auto.create.topics.enable",
            "value": "true",
            "default": "true",
            "fallback": "true",
            "kind": "bool",
            "source": "default",
            "dynamic": True,
            "doc": shown(http, "auto.create.topics.enable")["doc"],
            "choices": [],
        }
        http("PATCH", "/v1/settings", {"num.partitions": 4})
        assert (shown(http, "num.partitions")["value"], shown(http, "num.partitions")["source"]) == ("4", "changed")
        http("PUT", "/v1/topics/after", {})
        assert len(http("GET", "/v1/topics/after").json["partitions"]) == 4
        server.stop()
        server.restart()
        http = Http(server.addresses["http"])
        assert shown(http, "num.partitions")["value"] == "4"
        answer = http("PATCH", "/v1/settings", {"num.partitions": None}).json
        assert answer["settings"]
        assert (shown(http, "num.partitions")["value"], shown(http, "num.partitions")["source"]) == ("3", "flag")


def test_all_changes_are_made_or_none(http: Http) -> None:
    before = shown(http, "num.partitions")["value"]
    attempts: tuple[Any, ...] = (
        {"num.partitions": 7, "no.such.setting": 1},
        {"num.partitions": 7, "waystation.queue.shards": 8},
        {"num.partitions": -7},
        {"num.partitions": "many"},
        {"num.partitions": [1]},
        {},
        [],
    )
    for bad in attempts:
        assert http.refused("PATCH", "/v1/settings", bad)[0] == 400, bad
        assert shown(http, "num.partitions")["value"] == before


def test_values_may_be_numbers_and_booleans_as_well_as_texts(http: Http) -> None:
    http("PATCH", "/v1/settings", {"auto.create.topics.enable": False})
    assert shown(http, "auto.create.topics.enable")["value"] == "false"
    http("PATCH", "/v1/settings", {"auto.create.topics.enable": "true"})
    assert shown(http, "auto.create.topics.enable")["value"] == "true"
    http("PATCH", "/v1/settings", {"auto.create.topics.enable": None})
    assert shown(http, "auto.create.topics.enable")["source"] == "default"
