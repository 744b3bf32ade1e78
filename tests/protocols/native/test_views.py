"""`view`, `act`, `end_connection` and `alter_settings` over the native protocol."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.protocols.native.kit import Frames, JsonLines
from tests.support.names import unique
from tests.support.server import ROOT
from tests.support.waiting import wait_for
from waystation.broker.access.administration.view_rows import ACTIONS, VIEWS
from waystation.protocol import EndConnection, Failure, Hello, View
from waystation.protocols.http.api.routes import ROUTES
from waystation.protocols.http.api.views import ROUTES as VIEW_ROUTES

PAGE = (ROOT / "docs" / "reference" / "native-protocol.md").read_text()


def section(title: str) -> dict[str, str]:
    """The rows of the table under this heading: name and route."""
    text = PAGE[PAGE.index(f"| {title} | route |") :].split("\n\n")[0]
    return dict(re.findall(r"^\| `([\w-]+)` \| `([^`]+)` \|$", text, re.MULTILINE))


@pytest.mark.parametrize(("title", "rows"), [("view", VIEWS), ("action", ACTIONS)])
def test_every_view_and_action_is_on_the_page_with_a_route_that_exists(title: str, rows: dict[str, Any]) -> None:
    written = section(title)
    assert set(written) == set(rows)
    routes = {(route.method, route.path) for route in ROUTES}
    for route in written.values():
        method, _, path = route.rpartition(" ")
        assert (method or "GET", path.partition("?")[0]) in routes, route


def test_a_view_is_the_same_over_json_lines_and_frames(lines: JsonLines, frames: Frames) -> None:
    frames.ask(Hello(client="looker"))
    seen = lines.ask("view", what="settings", query={"search": "num.partitions"})
    assert frames.ask(View(what="settings", query={"search": "num.partitions"})) == seen
    assert seen["settings"][0]["name"] == "num.partitions"


@pytest.mark.parametrize("what", sorted(set(VIEWS) - {"search"}))
def test_every_view_that_needs_nothing_answers_a_map(lines: JsonLines, what: str) -> None:
    answer = lines.try_ask("view", what=what)
    if answer["status"] == "success":
        assert isinstance(answer["value"], dict)
    else:
        assert "is missing" in answer["error"], answer


@pytest.mark.parametrize(
    ("action", "fields", "kind", "said"),
    [
        ("view", {"what": "grups"}, "NotFound", "did you mean 'groups'"),
        ("view", {"what": "nonsense"}, "NotFound", "there are"),
        ("view", {"what": "groups", "query": {"limt": 1}}, "Invalid", "did you mean limit"),
        ("view", {"what": "groups", "query": {"limit": 0}}, "Invalid", "limit"),
        ("view", {"what": "groups", "query": {"limit": "many"}}, "Invalid", "limit"),
        ("view", {"what": "group"}, "Invalid", "group: is missing"),
        ("view", {"what": "groups", "query": {"limit": 10**30}}, "Invalid", "out of range"),
        ("view", {"query": {}}, "Invalid", "what"),
        ("act", {"what": "groups"}, "NotFound", "there is no action"),
        ("act", {"what": "reset-group", "query": {"group": "x"}}, "Invalid", "to: is missing"),
        ("end_connection", {"connection": "none"}, "NotFound", "there is no connection"),
        ("alter_settings", {"settings": {}}, "Invalid", "name at least one"),
        ("alter_settings", {"settings": {"num.partitions": "x"}}, "InvalidSetting", "num.partitions"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    lines: JsonLines, action: str, fields: dict[str, Any], kind: str, said: str
) -> None:
    refusal = lines.refusal(action, **fields)
    assert refusal.kind == kind
    assert said in refusal.text
    lines.ask("ping")


def test_a_start_position_is_an_offset_in_each_partition(lines: JsonLines) -> None:
    topic = unique("t")
    lines.ask("create_topic", topic=topic, partitions=2)
    for partition, count in ((0, 3), (1, 1)):
        messages = [{"payload": str(n), "timestamp_ms": 1000 * (n + 1)} for n in range(count)]
        lines.ask("publish_messages", topic=topic, partition=partition, messages=messages)

    def offsets(**query: Any) -> list[int]:
        seen = lines.ask("view", what="topic-offsets", query={"topic": topic, **query})
        assert [(one["start_offset"], one["end_offset"], one["stable_offset"]) for one in seen["offsets"]] == [
            (0, 3, 3),
            (0, 1, 1),
        ]
        return [one["offset"] for one in seen["offsets"]]

    assert offsets() == [3, 1]
    assert offsets(at="earliest") == [0, 0]
    assert offsets(at="@2000") == [1, 1]
    assert offsets(at="-1") == [2, 0]
    assert "is not a position" in lines.refusal("view", what="topic-offsets", query={"topic": topic, "at": "x"}).text
    assert lines.refusal("view", what="topic-offsets", query={"topic": "not-there"}).kind in (
        "NotFound",
        "UnknownTopic",
    )


def test_a_topic_is_altered(lines: JsonLines) -> None:
    topic = unique("t")
    lines.ask("create_topic", topic=topic, partitions=1, settings={"retention.ms": "1000"})
    changes = {"partitions": 2, "settings": {"retention.ms": None, "retention.bytes": "5000"}}
    altered = lines.ask("act", what="alter-topic", query={"topic": topic, **changes})
    assert (len(altered["partitions"]), altered["settings"]) == (2, {"retention.bytes": "5000"})
    assert lines.refusal("act", what="alter-topic", query={"topic": topic, "partitions": 1}).kind == "InvalidPartitions"


def test_the_offsets_of_one_topic_are_deleted_and_the_group_stays(lines: JsonLines) -> None:
    group, topics = unique("g"), [unique("t"), unique("t")]
    for topic in topics:
        lines.ask("create_topic", topic=topic, partitions=1)
        lines.ask("publish_messages", topic=topic, messages=[{"payload": "x"}])
    lines.ask("commit_offsets", group=group, offsets=[[topic, 0, 1] for topic in topics])
    lines.ask("act", what="delete-group", query={"group": group, "topic": topics[0]})
    left = lines.ask("view", what="group", query={"group": group})
    assert [(one["topic"], one["committed"], one["metadata"]) for one in left["partitions"]] == [(topics[1], 1, "")]
    for name, said in ((group, "committed nothing"), ("no-such-group", "no group")):
        refusal = lines.refusal("act", what="delete-group", query={"group": name, "topic": topics[0]})
        assert (refusal.kind, said in refusal.text) == ("NotFound", True)


def test_a_connection_is_ended_and_told_why(lines: JsonLines, frames: Frames) -> None:
    mine = frames.ask(Hello(client=unique("ended")))["connection"]
    lines.ask("end_connection", connection=mine, reason="the house is on fire")
    farewell = frames.receive()
    assert isinstance(farewell, Failure)
    assert (farewell.id, farewell.error, farewell.text) == (0, "Unavailable", "the house is on fire")
    assert frames.receive() is None
    names = {one["name"] for one in lines.ask("view", what="connections", query={"limit": 1000})["connections"]}
    assert mine not in names


def test_a_connection_that_ends_itself_is_gone(lines: JsonLines, frames: Frames) -> None:
    mine = frames.ask(Hello())["connection"]
    frames.send(EndConnection(id=1, connection=mine))
    wait_for(lambda: frames.receive() is None, "the connection is over", every_s=0)
    assert lines.refusal("view", what="connection", query={"connection": mine}).kind == "NotFound"


def test_settings_are_altered_and_taken_back(lines: JsonLines) -> None:
    def now() -> tuple[str, str]:
        rows = lines.ask("view", what="settings", query={"search": "log.cleaner.backoff.ms"})["settings"]
        return rows[0]["value"], rows[0]["source"]

    lines.ask("alter_settings", settings={"log.cleaner.backoff.ms": 12_345})
    assert now() == ("12345", "changed")
    lines.ask("alter_settings", settings={"log.cleaner.backoff.ms": None})
    assert now() == ("15000", "default")


def test_a_group_is_moved_by_an_action(lines: JsonLines) -> None:
    topic, group = unique("t"), unique("g")
    lines.ask("create_topic", topic=topic, partitions=1)
    lines.ask("publish_messages", topic=topic, messages=[{"payload": str(number)} for number in range(5)])
    query = {"group": group, "topic": topic, "to": "-2"}
    preview = lines.ask("act", what="reset-group", query={**query, "dry_run": True})
    assert preview == {"changes": [{"topic": topic, "partition": 0, "from": None, "to": 3}], "done": False}
    assert lines.ask("act", what="reset-group", query=query)["done"]
    assert lines.ask("view", what="group", query={"group": group})["lag"] == 2
    assert lines.ask("act", what="delete-group", query={"group": group}) is None
    assert lines.refusal("view", what="group", query={"group": group}).kind == "NotFound"


@pytest.mark.parametrize(("title", "rows"), [("view", VIEWS), ("action", ACTIONS)])
def test_a_route_takes_the_whole_query_of_its_view(title: str, rows: dict[str, Any]) -> None:
    """What is not in the path is in the query string or the body."""
    routes = {f"{route.method} {route.path}": route for route in VIEW_ROUTES}
    compared = 0
    for what, written in section(title).items():
        method, _, path = written.rpartition(" ")
        route = routes.get(f"{method or 'GET'} {path.partition('?')[0]}")
        if route is not None:  # else it does more than to hand on
            named = set(re.findall(r"{(\w+)}", route.path))
            rest = {*route.query.__struct_fields__, *route.body.__struct_fields__}
            assert named | rest == set(rows[what].query.__struct_fields__), what
            compared += 1
    assert compared >= len(rows) - 1
