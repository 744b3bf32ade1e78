"""Looking at the broker and running it through each of the four clients."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.names import unique
from waystation.errors import Invalid, NotFound


def test_views_and_actions_are_plain_values(mq: Any) -> None:
    topic, group = unique("t"), unique("g")
    mq.create_topic(topic, 1)
    mq.publish_many(topic, ["a", "b", "c"])
    mq.commit_offsets(group, [(topic, 0, 1)])
    assert mq.view("group", group=group)["lag"] == 2
    (line,) = mq.view("groups", search=group)["groups"]
    shown = {"group": group, "kind": "classic", "state": "Empty", "members": 0, "lag": 2, "topics": [topic]}
    assert line == {**shown, "protocol": ""}
    assert mq.act("reset-group", group=group, to="earliest")["changes"] == [
        {"topic": topic, "partition": 0, "from": 1, "to": 0}
    ]
    assert mq.act("delete-group", group=group) is None
    with pytest.raises(NotFound, match=group):
        mq.view("group", group=group)
    with pytest.raises(Invalid, match="limit"):
        mq.view("groups", limit=0)


def test_settings_are_altered(mq: Any) -> None:
    mq.alter_settings({"log.cleaner.backoff.ms": 9_000})
    (row,) = mq.view("settings", search="log.cleaner.backoff.ms")["settings"]
    assert (row["value"], row["source"]) == ("9000", "changed")
    mq.alter_settings({"log.cleaner.backoff.ms": None})
    with pytest.raises(Invalid, match="before the broker starts"):
        mq.alter_settings({"waystation.queue.shards": 9})


def test_a_connection_is_ended_by_name_and_its_client_comes_back(connect: Any) -> None:
    mq = connect()
    title = unique("victim")
    other = connect(name=title)
    other.ping()
    (before,) = mq.view("connections", search=title)["connections"]
    mq.end_connection(before["name"], "go away")
    other.ping()
    (after,) = mq.view("connections", search=title)["connections"]
    assert after["name"] != before["name"]
    with pytest.raises(NotFound):
        mq.end_connection(before["name"])
