"""Topics by HTTP: create and alter, publish, read by place and time, history, find; and routing."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.protocols.http.kit import Http, name
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for


def test_a_topic_is_created_described_altered_and_deleted(http: Http, topic: str) -> None:
    body = {"partitions": 2, "settings": {"retention.ms": "1000000"}}
    assert http("PUT", f"/v1/topics/{topic}", body).status == 201
    assert http("PUT", f"/v1/topics/{topic}", body).status == 200
    assert http("PUT", f"/v1/topics/{topic}").status == 200
    assert http.refused("PUT", f"/v1/topics/{topic}", {"partitions": 3}) == (409, "Conflict")
    assert http.refused("PUT", f"/v1/topics/{topic}", {"settings": {"retention.ms": "5"}}) == (409, "Conflict")
    shown = http("GET", f"/v1/topics/{topic}").json
    assert (shown["topic"], len(shown["partitions"]), shown["settings"]) == (topic, 2, body["settings"])
    change = {"partitions": 3, "settings": {"retention.ms": None, "cleanup.policy": "compact"}}
    altered = http("PATCH", f"/v1/topics/{topic}", change).json
    assert (len(altered["partitions"]), altered["settings"]) == (3, {"cleanup.policy": "compact"})
    assert topic in [each["topic"] for each in http("GET", "/v1/topics", pattern=topic).json["topics"]]
    assert http("DELETE", f"/v1/topics/{topic}").status == 204
    assert http.refused("GET", f"/v1/topics/{topic}")[0] == 404


def test_messages_are_published_and_read_by_offset(http: Http, topic: str) -> None:
    messages = [{"payload": f"m{number}", "key": "k", "headers": {"n": str(number)}} for number in range(10)]
    answer = http("POST", f"/v1/topics/{topic}/messages", messages)
    assert answer.status == 201
    assert answer.json["places"] == [{"topic": topic, "partition": 0, "offset": 0}]
    first = http("GET", f"/v1/topics/{topic}/messages", count=4).json
    assert [message["payload"] for message in first["messages"]] == ["m0", "m1", "m2", "m3"]
    assert (first["next_offset"], first["end_offset"]) == (4, 10)
    rest = http("GET", f"/v1/topics/{topic}/messages", offset=first["next_offset"]).json
    assert [message["offset"] for message in rest["messages"]] == [4, 5, 6, 7, 8, 9]
    assert rest["messages"][0]["headers"] == {"n": "4"}
    assert http("GET", f"/v1/topics/{topic}/messages", offset=10).json["messages"] == []
    assert http.refused("GET", f"/v1/topics/{topic}/messages", offset=11) == (400, "OffsetOutOfRange")


def test_watermarks_leader_and_when_it_was_made_are_shown(server: Server, http: Http, topic: str) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": unique("tx")})
    producer.init_transactions()
    before_ms = http("GET", "/v1/overview").json["broker"]["now_ms"]
    http("PUT", f"/v1/topics/{topic}")
    http("POST", f"/v1/topics/{topic}/messages", [{"payload": "a"}, {"payload": "b"}])
    producer.begin_transaction()
    producer.produce(topic, b"c")
    producer.flush()
    shown = http("GET", f"/v1/topics/{topic}").json
    (partition,) = shown["partitions"]
    assert (partition["stable_offset"], partition["high_watermark"], partition["end_offset"]) == (2, 3, 3)
    producer.abort_transaction()
    (partition,) = http("GET", f"/v1/topics/{topic}").json["partitions"]
    assert (partition["stable_offset"], partition["high_watermark"], partition["end_offset"]) == (4, 4, 4)
    overview = http("GET", "/v1/overview").json["broker"]
    assert (partition["leader"], partition["leader_epoch"]) == (overview["node_id"], 0)
    assert before_ms <= shown["created_ms"] <= overview["now_ms"]


def test_a_message_whose_time_to_live_is_over_is_not_read(http: Http, topic: str) -> None:
    """Neither by offset nor in the history; Kafka's consumers read all that is in the topic."""
    messages = [{"payload": "old", "ttl_ms": 1}, {"payload": "a"}, {"payload": "old", "ttl_ms": 1}, {"payload": "b"}]
    http("POST", f"/v1/topics/{topic}/messages", messages)

    def read(path: str, **query: Any) -> list[str]:
        return [one["payload"] for one in http("GET", f"/v1/topics/{topic}/{path}", **query).json["messages"]]

    wait_for(lambda: read("messages") == ["a", "b"], "two have expired", within_s=5)
    assert read("messages", count=1) == ["a"]
    assert read("messages", offset=2, count=1) == ["b"]
    assert read("history", count=10) == ["a", "b"]
    assert read("history", count=2) == ["a", "b"]
    assert http("GET", f"/v1/topics/{topic}/messages").json["next_offset"] == 4


def test_messages_are_read_by_time(http: Http, topic: str) -> None:
    messages = [{"payload": str(at), "timestamp_ms": 1_700_000_000_000 + at} for at in range(5)]
    http("POST", f"/v1/topics/{topic}/messages", messages)
    read = http("GET", f"/v1/topics/{topic}/messages", time_ms=1_700_000_000_003).json["messages"]
    assert [message["payload"] for message in read] == ["3", "4"]
    assert http("GET", f"/v1/topics/{topic}/messages", time_ms=1_700_000_000_005).json["messages"] == []
    assert http.refused("GET", f"/v1/topics/{topic}/messages", time_ms=1, offset=1) == (400, "Invalid")


def test_a_reader_waits_for_what_a_kafka_producer_sends(http: Http, server: Server, topic: str) -> None:
    http("PUT", f"/v1/topics/{topic}")
    got: list[dict[str, Any]] = []

    def wait() -> None:
        got.append(http("GET", f"/v1/topics/{topic}/messages", wait_ms=30_000).json)

    waiting = threading.Thread(target=wait)
    waiting.start()
    producer = Producer({"bootstrap.servers": server.bootstrap})
    producer.produce(topic, b"\xff\x00", key=b"k", headers=[("h", b"v")])
    producer.flush(30)
    waiting.join()
    (message,) = got[0]["messages"]
    assert (message["payload"], message["encoding"], message["key"]) == ("/wA=", "base64", "k")
    assert message["headers"] == {"h": "v"}
    assert message["source"] == topic


def test_a_partition_may_be_chosen(http: Http, topic: str) -> None:
    http("PUT", f"/v1/topics/{topic}", {"partitions": 3})
    answer = http("POST", f"/v1/topics/{topic}/messages", {"payload": "x"}, partition=2).json
    assert answer["places"][0]["partition"] == 2
    assert len(http("GET", f"/v1/topics/{topic}/messages", partition=2).json["messages"]) == 1
    assert http.refused("GET", f"/v1/topics/{topic}/messages", partition=3) == (404, "UnknownTopic")


def test_the_latest_messages_and_one_by_its_id(http: Http, topic: str) -> None:
    http(
        "POST", f"/v1/topics/{topic}/messages", [{"payload": str(number), "id": f"id-{number}"} for number in range(9)]
    )
    history = http("GET", f"/v1/topics/{topic}/history", count=3).json["messages"]
    assert [message["payload"] for message in history] == ["6", "7", "8"]
    assert http("GET", f"/v1/topics/{topic}/messages/id-4").json["payload"] == "4"
    assert http("GET", f"/v1/messages/{name(f'{topic}-0@7')}").json["payload"] == "7"
    assert http.refused("GET", f"/v1/topics/{topic}/messages/id-99") == (404, "NotFound")
    assert http.refused("GET", "/v1/messages/nowhere") == (404, "NotFound")
    own = unique("own")
    http("POST", f"/v1/topics/{topic}/messages", {"payload": "by its own id", "id": own})
    found = http("GET", f"/v1/messages/{own}").json
    assert (found["payload"], found["place"]) == ("by its own id", f"topic:{topic}")


@pytest.mark.parametrize(
    ("method", "path", "body", "refusal"),
    [
        ("PUT", "/v1/topics/a%2Fb", None, (400, "InvalidTopicName")),
        ("PUT", "/v1/topics/ok-name", {"partitions": 0}, (400, "Invalid")),
        ("PUT", "/v1/topics/ok-name", {"settings": {"retention": "1"}}, (400, "InvalidSetting")),
        ("GET", "/v1/topics/not-there", None, (404, "NotFound")),
        ("DELETE", "/v1/topics/not-there", None, (404, "NotFound")),
        ("PATCH", "/v1/topics/not-there", {"partitions": 3}, (404, "NotFound")),
        ("GET", "/v1/topics/not-there/messages", None, (404, "NotFound")),
        ("GET", "/v1/topics/not-there/history", None, (404, "UnknownTopic")),
        ("DELETE", "/v1/topics/__consumer_offsets", None, (403, "NotAllowed")),
        ("POST", "/v1/topics/__consumer_offsets/messages", {"payload": ""}, (403, "NotAllowed")),
    ],
)
def test_what_cannot_be_done_is_said(http: Http, method: str, path: str, body: Any, refusal: tuple[int, str]) -> None:
    assert http.refused(method, path, body) == refusal


# -- routing -----------------------------------------------------------------------------------------------------------


def test_a_topic_exchange_routes_by_pattern(http: Http, queue: str) -> None:
    exchange = unique("ex/change")
    path = f"/v1/exchanges/{name(exchange)}"
    assert http("PUT", path, {"kind": "topic"}).status == 201
    assert http("PUT", path, {"kind": "topic"}).status == 200
    assert http.refused("PUT", path, {"kind": "fanout"}) == (409, "Conflict")
    assert http.refused("PUT", f"{path}2", {"kind": "magic"})[0] == 400
    binding = {"target": f"queue:{queue}", "key": "orders.*"}
    assert http("POST", f"{path}/bindings", binding).status == 201
    assert http("GET", path).json["bindings"] == [binding]
    assert http("GET", f"{path}/bindings").json["bindings"] == [binding]
    assert exchange in [each["exchange"] for each in http("GET", "/v1/exchanges", search=exchange).json["exchanges"]]
    route = {"routing_key": "orders.eu", "message": {"payload": ""}}
    assert http("POST", f"{path}/route", route).json == {"targets": [f"queue:{queue}"]}
    assert http("POST", f"{path}/messages", {"payload": "x"}, routing_key="orders.eu").json["queues"] == [queue]
    assert http("POST", f"{path}/messages", {"payload": "y"}, routing_key="else").json["queues"] == []
    lost = http("POST", f"{path}/messages", {"payload": "y"}, routing_key="else")
    assert (lost.status, lost.json["unroutable"], lost.json["queues"]) == (200, 1, [])  # nobody got it
    refusal = http.refused("POST", f"{path}/messages", {"payload": "y"}, routing_key="else", mandatory=True)
    assert refusal == (404, "NotFound")
    assert [message["payload"] for message in http.take(queue, count=5)] == ["x"]
    assert http.refused("DELETE", path, if_unused=True) == (409, "Conflict")
    assert http("DELETE", f"{path}/bindings", target=f"queue:{queue}", key="orders.*").status == 204
    assert http.refused("DELETE", f"{path}/bindings", target=f"queue:{queue}", key="orders.*") == (404, "NotFound")
    assert http("DELETE", path, if_unused=True).status == 204
    assert http.refused("GET", path)[0] == 404


def test_a_headers_exchange_reads_the_headers_of_each_message(http: Http, queue: str) -> None:
    exchange = unique("ex")
    http("PUT", f"/v1/exchanges/{exchange}", {"kind": "headers"})
    arguments = {"x-match": "all", "colour": "red"}
    http("POST", f"/v1/exchanges/{exchange}/bindings", {"target": f"queue:{queue}", "arguments": arguments})
    messages = [{"payload": "r", "headers": {"colour": "red"}}, {"payload": "b", "headers": {"colour": "blue"}}]
    http("POST", f"/v1/exchanges/{exchange}/messages", messages)
    assert [message["payload"] for message in http.take(queue, count=5)] == ["r"]
    target = f"queue:{queue}"
    answer = http("DELETE", f"/v1/exchanges/{exchange}/bindings", target=target, arguments=json.dumps(arguments))
    assert answer.status == 204


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/exchanges/none", None),
        ("DELETE", "/v1/exchanges/none", None),
        ("POST", "/v1/exchanges/none/messages", {"payload": ""}),
        ("POST", "/v1/exchanges/none/route", {"message": {"payload": ""}}),
        ("POST", "/v1/exchanges/none/bindings", {"target": "queue:q"}),
    ],
)
def test_an_exchange_that_is_not_there_is_not_found(http: Http, method: str, path: str, body: Any) -> None:
    assert http.refused(method, path, body)[0] == 404


# -- dead letters ------------------------------------------------------------------------------------------------------


def test_dead_letters_are_shown_with_their_story_and_sent_back(http: Http) -> None:
    queue, dead = unique("work"), unique("dead")
    http("PUT", f"/v1/queues/{queue}", {"dead_letter": dead})
    http("PUT", f"/v1/queues/{dead}")
    http.put(queue, {"payload": "a", "headers": {"kind": "x"}}, {"payload": "b", "headers": {"kind": "y"}})
    ack_ids = [message["ack_id"] for message in http.take(queue, count=2)]
    http("POST", f"/v1/queues/{queue}/reject", {"ack_ids": ack_ids, "dead": True, "error": "no good"})
    wait_for(lambda: http.queue(dead)["ready"] == 2, "both are dead")
    (place,) = http("GET", "/v1/dead-letters", search=dead).json["dead_letters"]
    assert place == {"target": dead, "sources": [queue], "source_count": 1, "messages": 2}
    letters = http("GET", f"/v1/dead-letters/{dead}").json["messages"]
    assert [(letter["payload"], letter["deaths"][0]["error"]) for letter in letters] == [
        ("a", "no good"),
        ("b", "no good"),
    ]
    wanted = {"filter": "headers.kind = 'x'"}
    answer = http("POST", f"/v1/dead-letters/{dead}/redrive", {**wanted, "dry_run": True}).json
    assert answer == {"matched": 1, "moved": 0, "skipped": 0, "targets": {queue: 1}}
    answer = http("POST", f"/v1/queues/{dead}/redrive", wanted).json
    assert answer == {"matched": 1, "moved": 1, "skipped": 0}
    assert http.one(queue)["payload"] == "a"
    assert http("POST", f"/v1/dead-letters/{dead}/redrive").json["moved"] == 1
    assert http.refused("POST", f"/v1/dead-letters/{dead}/redrive", {"filter": "headers.kind ="})[0] == 400


def test_a_message_that_a_topic_has_by_its_id_is_told_and_not_created(http: Http) -> None:
    path = f"/v1/topics/{unique('once')}"
    http("PUT", path, {"settings": {"waystation.dedup.window.ms": "60000"}, "partitions": 1})
    assert http("POST", f"{path}/messages", {"payload": "x", "id": "a"}).status == 201
    again = http("POST", f"{path}/messages", {"payload": "x", "id": "a"})
    assert (again.status, again.json["duplicates"], again.json["places"]) == (200, [0], [])
    messages = [{"payload": "x", "id": "a"}, {"payload": "y", "id": "b"}]
    mixed = http("POST", f"{path}/messages", messages)
    assert (mixed.status, mixed.json["duplicates"], len(mixed.json["places"])) == (201, [0], 1)
