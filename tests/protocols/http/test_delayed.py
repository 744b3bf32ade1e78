"""Messages that wait for their time, by HTTP: in the order of their times, counted, and cancelled."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.protocols.http.kit import Http, name
from tests.support.names import unique

HOUR_MS = 3_600_000


def delayed(http: Http, **query: Any) -> list[dict[str, Any]]:
    """All of them, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        answer = http("GET", "/v1/delayed", **query).json
        found += answer["messages"]
        if answer["next"] is None:
            return found
        query["after"] = answer["next"]


def test_messages_of_a_queue_come_in_the_order_of_their_times(http: Http, queue: str) -> None:
    base = int(time.time() * 1000) + HOUR_MS
    order = [7, 3, 9, 1, 5, 0, 8, 2, 6, 4]
    http.put(queue, *({"payload": "x" * (n + 1), "id": f"m{n}", "deliver_at_ms": base + n} for n in order))
    http.put(queue, {"payload": "far", "deliver_at_ms": base + 400 * 24 * HOUR_MS, "priority": 3}, "now")
    for limit in (1, 3, 100):
        found = delayed(http, queue=queue, limit=limit)
        assert [one["due_ms"] for one in found] == [*range(base, base + 10), base + 400 * 24 * HOUR_MS]
        assert [one["id"] for one in found[:10]] == [f"m{n}" for n in range(10)]
    assert (found[4]["bytes"], found[4]["why"], found[4]["queue"]) == (5, "delayed", queue)
    assert (found[10]["id"], found[10]["priority"]) == (f"{queue}#10", 3)
    assert http("GET", "/v1/delayed", queue=queue, limit=2).json["total"] == 11


def test_a_message_that_backs_off_waits_too_and_says_why(http: Http, queue: str) -> None:
    http.put(queue, {"payload": "a", "id": "failed"}, {"payload": "b", "id": "delayed", "delay_ms": HOUR_MS})
    taken = http.one(queue)
    http("POST", f"/v1/queues/{queue}/reject", {"ack_ids": [taken["ack_id"]], "delay_ms": HOUR_MS // 2})
    found = delayed(http, queue=queue)
    assert [(one["id"], one["why"], one.get("deliveries", 0)) for one in found] == [
        ("failed", "retry", 1),
        ("delayed", "delayed", 0),
    ]
    assert found[0]["due_ms"] < found[1]["due_ms"]


def test_what_is_cancelled_is_gone_and_what_is_held_stays(http: Http, queue: str) -> None:
    http.put(queue, *({"payload": "x", "id": f"c{n}", "delay_ms": HOUR_MS + n} for n in range(5)))
    assert http("DELETE", f"/v1/queues/{queue}/messages/c2").status == 204
    assert [one["id"] for one in delayed(http, queue=queue, limit=2)] == ["c0", "c1", "c3", "c4"]
    assert http.refused("DELETE", f"/v1/queues/{queue}/messages/c2") == (404, "NotFound")
    http.put(queue, {"payload": "y", "id": "held"})
    http.one(queue)
    assert http.refused("DELETE", f"/v1/queues/{queue}/messages/held") == (409, "Conflict")
    assert http.refused("DELETE", "/v1/queues/__delayed/messages/c1") == (403, "NotAllowed")


def test_the_queues_in_which_something_waits_are_listed_with_how_many(http: Http) -> None:
    prefix = unique("Waiting")
    queues = [f"{prefix}-{n}" for n in range(5)]
    for n, queue in enumerate(queues):
        http("PUT", f"/v1/queues/{queue}")
        if n:
            http.put(queue, *({"payload": "x", "delay_ms": HOUR_MS} for _ in range(n)))
    first = http("GET", "/v1/delayed", search=prefix.lower(), limit=3).json
    assert first["queues"] == [{"queue": queues[n], "messages": n} for n in (1, 2, 3)]
    assert (first["total"], first["next"], first["messages"]) == (4, queues[3], [])
    second = http("GET", "/v1/delayed", search=prefix, limit=3, after=first["next"]).json
    assert second["queues"] == [{"queue": queues[4], "messages": 4}]
    assert second["next"] is None


def test_those_for_topics_are_listed_by_time_and_cancelled_by_topic_and_id(http: Http) -> None:
    one, other = unique("later"), unique("later")
    for n in (2, 0, 1):
        message = {"payload": "x", "id": f"d{n}", "key": "k", "delay_ms": HOUR_MS + n * 60_000}
        http("POST", f"/v1/topics/{one}/messages", message)
    http("POST", f"/v1/topics/{other}/messages", [{"payload": "y", "id": "d1", "delay_ms": HOUR_MS}])
    http("POST", f"/v1/topics/{other}/messages", [{"payload": "nameless", "delay_ms": 2 * HOUR_MS}])
    for limit in (1, 2, 100):
        found = delayed(http, topic=one, limit=limit)
        assert [(each["topic"], each["id"], each["key"]) for each in found] == [(one, f"d{n}", "k") for n in range(3)]
    everywhere = delayed(http, topics="true", limit=2)
    assert {(each["topic"], each["id"]) for each in everywhere} >= {(one, "d0"), (other, "d1")}
    assert http("GET", "/v1/delayed").json["to_topics"] == len(everywhere)
    assert http("DELETE", f"/v1/delayed/topics/{one}/d1").status == 204
    assert [each["id"] for each in delayed(http, topic=one)] == ["d0", "d2"]
    assert delayed(http, topic=other)[0]["id"] == "d1", "of the other topic"
    nameless = delayed(http, topic=other)[1]["id"]
    assert nameless.startswith("__delayed#")
    assert http.refused("DELETE", f"/v1/delayed/topics/{one}/{name(nameless)}") == (404, "NotFound")
    assert http("DELETE", f"/v1/delayed/topics/{other}/{name(nameless)}").status == 204
    assert http.refused("DELETE", f"/v1/delayed/topics/{one}/d1") == (404, "NotFound")
    for topic, message_id in ((one, "d0"), (one, "d2"), (other, "d1")):
        http("DELETE", f"/v1/delayed/topics/{topic}/{message_id}")
    assert delayed(http, topic=one) == delayed(http, topic=other) == []


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        ({"queue": "not-there"}, (404, "NotFound")),
        ({"queue": "__delayed"}, (403, "NotAllowed")),
        ({"queue": "x", "topic": "y"}, (400, "Invalid")),
        ({"topics": "true", "after": "tomorrow"}, (400, "Invalid")),
        ({"topics": "true", "after": "1-"}, (400, "Invalid")),
        ({"topics": "true", "after": "1-²"}, (400, "Invalid")),
        ({"limit": 0}, (400, "Invalid")),
        ({"que": "x"}, (400, "Invalid")),
    ],
)
def test_what_cannot_be_shown_is_said(http: Http, query: dict[str, Any], refusal: tuple[int, str]) -> None:
    http("POST", f"/v1/topics/{unique('later')}/messages", {"payload": "x", "delay_ms": HOUR_MS})
    assert http.refused("GET", "/v1/delayed", **query) == refusal


def test_a_queue_without_messages_has_none_that_wait(http: Http, queue: str) -> None:
    answer = http("GET", "/v1/delayed", queue=queue).json
    assert (answer["messages"], answer["next"], answer["total"]) == ([], None, 0)
