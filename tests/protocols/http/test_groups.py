"""Groups over HTTP: what real Kafka consumers and our own subscriptions look like, and moving them elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

import waystation
from tests.protocols.http.kit import Http, name
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

PROTOCOLS = {"classic": {}, "consumer": {"group.protocol": "consumer"}}


@contextmanager
def consuming(server: Server, group: str, topic: str, **options: Any) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "client.id": f"{group}-client",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **options,
        }
    )
    try:
        consumer.subscribe([topic])
        yield consumer
    finally:
        consumer.close()


def made(http: Http, topic: str, partitions: int = 2, messages: int = 10) -> str:
    """A topic with so many messages in each of its partitions."""
    http("PUT", f"/v1/topics/{topic}", {"partitions": partitions})
    for partition in range(partitions):
        batch = [{"payload": str(number)} for number in range(messages)]
        http("POST", f"/v1/topics/{topic}/messages", batch, partition=partition)
    return topic


def described(http: Http, group: str) -> dict[str, Any]:
    return dict(http("GET", f"/v1/groups/{name(group)}").json)


def assigned(http: Http, group: str, consumer: Consumer, partitions: int) -> Callable[[], bool]:
    def look() -> bool:
        consumer.poll(0.1)
        return len(consumer.assignment()) == partitions and described(http, group)["state"] == "Stable"

    return look


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_kafka_group_is_shown_with_members_lag_and_history(
    server: Server, http: Http, topic: str, protocol: str
) -> None:
    group = unique("g/ü")
    made(http, topic)
    with consuming(server, group, topic, **PROTOCOLS[protocol]) as consumer:
        wait_for(assigned(http, group, consumer, 2), "the consumer has both partitions", every_s=0)
        consumer.commit(offsets=[TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 9)], asynchronous=False)
        found = described(http, group)
        (member,) = found["members"]
        assert (found["group"], found["kind"], found["state"], found["lag"]) == (group, protocol, "Stable", 7)
        assert (member["client"], member["host"]) == (f"{group}-client", "127.0.0.1")
        assert member["assignment"] == [{"topic": topic, "partitions": [0, 1]}]
        assert [
            (part["topic"], part["partition"], part["committed"], part["start"], part["end"], part["lag"])
            for part in found["partitions"]
        ] == [(topic, 0, 4, 0, 10, 6), (topic, 1, 9, 0, 10, 1)]
        assert {part["member"] for part in found["partitions"]} == {member["member"]}
        assert found["generation"] >= 1
        assert found["coordinator"] == http("GET", "/v1/overview").json["broker"]["node_id"]
        listed = http("GET", "/v1/groups", search=group.upper()).json["groups"]
        line = {"group": group, "kind": protocol, "state": "Stable", "members": 1, "lag": 7, "topics": [topic]}
        assert listed == [{**line, "protocol": "consumer"}]
        assert http.refused("DELETE", f"/v1/groups/{name(group)}") == (409, "NonEmptyGroup")
        reset = {"to": "earliest"}
        assert http.refused("POST", f"/v1/groups/{name(group)}/reset", reset) == (409, "Conflict")
    wait_for(lambda: described(http, group)["state"] == "Empty", "the member has left")
    history = described(http, group)["history"]
    assert (history[-1]["state"], history[-1]["members"]) == ("Empty", 0)
    assert "left" in history[-1]["why"]
    assert ("Stable", 1) in {(entry["state"], entry["members"]) for entry in history}
    assert any("joined" in entry["why"] for entry in history)
    assert [entry["time_ms"] for entry in history] == sorted(entry["time_ms"] for entry in history)
    assert http("DELETE", f"/v1/groups/{name(group)}").status == 204
    assert http.refused("GET", f"/v1/groups/{name(group)}") == (404, "NotFound")


def test_a_member_that_dies_silently_is_in_the_history(server: Server, http: Http, topic: str) -> None:
    group = unique("g")
    made(http, topic)
    dying = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "session.timeout.ms": 6000,
            "max.poll.interval.ms": 6000,
            "auto.offset.reset": "earliest",
        }
    )
    dying.subscribe([topic])
    wait_for(assigned(http, group, dying, 2), "the consumer has both partitions", every_s=0)
    wait_for(lambda: described(http, group)["state"] == "Empty", "the group has noticed", every_s=0.2)
    assert described(http, group)["members"] == []
    dying.close()


@pytest.mark.parametrize(
    ("to", "offsets"),
    [("earliest", [0, 0]), ("latest", [10, 10]), ("3", [3, 3]), ("-4", [6, 6]), ("99", [10, 10]), ("1h", [0, 0])],
)
def test_a_group_is_moved_where_it_is_told_to(http: Http, topic: str, to: str, offsets: list[int]) -> None:
    group = unique("g")
    made(http, topic)
    commit(http, group, topic, 5)
    path = f"/v1/groups/{group}/reset"
    preview = http("POST", path, {"to": to, "dry_run": True}).json
    assert preview == {
        "changes": [{"topic": topic, "partition": index, "from": 5, "to": offsets[index]} for index in (0, 1)],
        "done": False,
    }
    assert {part["committed"] for part in described(http, group)["partitions"]} == {5}
    assert http("POST", path, {"to": to}).json == {**preview, "done": True}
    assert [part["committed"] for part in described(http, group)["partitions"]] == offsets


def test_a_reset_by_time_finds_the_record_of_that_time(http: Http, topic: str) -> None:
    group = unique("g")
    http("PUT", f"/v1/topics/{topic}", {"partitions": 1})
    for hour in range(5):
        message = {"payload": str(hour), "timestamp_ms": 1_700_000_000_000 + hour * 3_600_000}
        http("POST", f"/v1/topics/{topic}/messages", message)
    for to, offset in (("@1700007200000", 2), ("2023-11-15T01:13:20+00:00", 3), ("0s", 5)):
        answer = http("POST", f"/v1/groups/{group}/reset", {"to": to, "topic": topic}).json
        assert [change["to"] for change in answer["changes"]] == [offset], to


def test_some_partitions_of_one_topic_are_moved_and_nothing_else(http: Http, topic: str) -> None:
    group, other = unique("g"), unique("t")
    made(http, topic)
    made(http, other)
    for each in (topic, other):
        commit(http, group, each, 5)
    http("POST", f"/v1/groups/{group}/reset", {"to": "earliest", "topic": topic, "partitions": [1]})
    assert {(part["topic"], part["partition"]): part["committed"] for part in described(http, group)["partitions"]} == {
        (topic, 0): 5,
        (topic, 1): 0,
        (other, 0): 5,
        (other, 1): 5,
    }


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"to": "sideways"}, (400, "Invalid")),
        ({"to": "9" * 5000}, (400, "Invalid")),
        ({"to": "0001-01-01"}, (400, "Invalid")),
        ({"to": "latest", "partitions": [0]}, (400, "Invalid")),
        ({"to": "latest", "topic": "no-such-topic"}, (404, "NotFound")),
        ({"to": "latest", "topic": "TOPIC", "partitions": [2]}, (400, "Invalid")),
        ({"to": "latest", "when": 1}, (400, "Invalid")),
        ({}, (400, "Invalid")),
    ],
)
def test_a_reset_that_makes_no_sense_is_refused(
    http: Http, topic: str, body: dict[str, Any], error: tuple[int, str]
) -> None:
    group = unique("g")
    made(http, topic)
    commit(http, group, topic, 5)
    if body.get("topic") == "TOPIC":
        body = {**body, "topic": topic}
    assert http.refused("POST", f"/v1/groups/{group}/reset", body) == error
    assert {part["committed"] for part in described(http, group)["partitions"]} == {5}


def test_a_group_that_is_not_there_is_not_moved_unless_the_topic_is_named(http: Http, topic: str) -> None:
    group = unique("g")
    made(http, topic)
    assert http.refused("POST", f"/v1/groups/{group}/reset", {"to": "earliest"}) == (404, "NotFound")
    http("POST", f"/v1/groups/{group}/reset", {"to": "earliest", "topic": topic})
    found = described(http, group)
    assert (found["kind"], found["state"], found["lag"]) == ("classic", "Empty", 20)


def test_a_shared_subscription_is_shown_and_moved_like_a_group(server: Server, http: Http, topic: str) -> None:
    group = unique("g")
    made(http, topic)
    with waystation.connect(f"waystation://{server.bootstrap}") as mq:
        subscription = mq.subscribe(topic, group=group, start="earliest", prefetch=100)
        for _ in range(3):
            message = subscription.get_message(timeout=30)
            assert message is not None
            message.ack()
        mq.flush()
        found = described(http, group)
        assert (found["kind"], found["state"], len(found["members"]), found["lag"]) == ("shared", "Stable", 1, 17)
        assert http.refused("POST", f"/v1/groups/{group}/reset", {"to": "latest"}) == (409, "Conflict")
        subscription.close()
        wait_for(lambda: described(http, group)["state"] == "Empty", "the subscriber has left")
        assert http("POST", f"/v1/groups/{group}/reset", {"to": "-2"}).json["done"]
        found = described(http, group)
        assert (found["kind"], found["lag"]) == ("shared", 4)
        assert [entry["state"] for entry in found["history"]] == ["Stable", "Empty"]
        again = mq.subscribe(topic, group=group)
        payloads: list[str] = []
        while len(payloads) < 4:
            message = again.get_message(timeout=30)
            assert message is not None
            payloads.append(message.text())
        again.close()
        assert sorted(payloads) == ["8", "8", "9", "9"]
    wait_for(lambda: http("DELETE", f"/v1/groups/{group}", ok=False).status == 204, "it has no members, and goes")
    assert http.refused("GET", f"/v1/groups/{group}") == (404, "NotFound")


def test_groups_come_in_pages(server: Server, http: Http, topic: str) -> None:
    prefix = unique("paged")
    made(http, topic, 1)
    with waystation.connect(f"waystation://{server.bootstrap}") as mq:
        for number in range(25):
            mq.commit_offsets(f"{prefix}-{number:02}", [(topic, 0, number % 11)])
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = http("GET", "/v1/groups", search=prefix, limit=10, after=after).json
        assert page["total"] == 25
        found += page["groups"]
        after = page["next"]
    assert [group["group"] for group in found] == [f"{prefix}-{number:02}" for number in range(25)]
    assert [group["lag"] for group in found] == [10 - number % 11 for number in range(25)]
    for query, count in (("kind=classic", 25), ("kind=share", 0), ("state=empty", 25)):
        assert http("GET", f"/v1/groups?search={prefix}&{query}").json["total"] == count


def commit(http: Http, group: str, topic: str, offset: int) -> None:
    """Commits an offset in both partitions, as an administrator would."""
    answer = http("POST", f"/v1/groups/{group}/reset", {"to": str(offset), "topic": topic})
    assert answer.json["done"]
