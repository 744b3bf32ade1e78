"""Search of a topic by HTTP: every condition, both directions, all partitions, and what cannot be searched for."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.protocols.http.kit import Http
from tests.support.server import Server

BASE_MS = 1_700_000_000_000


def search(http: Http, topic: str, **query: Any) -> list[dict[str, Any]]:
    """All that is found, however many calls it takes."""
    return [message for page in pages(http, topic, **query) for message in page["messages"]]


def pages(http: Http, topic: str, **query: Any) -> Iterator[dict[str, Any]]:
    cursor = ""
    while True:
        answer = http("GET", f"/v1/topics/{topic}/search", cursor=cursor, **query).json
        assert answer["done"] is (answer["cursor"] is None)
        yield answer
        if answer["done"]:
            return
        cursor = answer["cursor"]


def payloads(found: list[dict[str, Any]]) -> list[str]:
    return [message["payload"] for message in found]


@pytest.fixture
def orders(http: Http, topic: str) -> str:
    """Sixty messages in three partitions, a second apart."""
    http("PUT", f"/v1/topics/{topic}", {"partitions": 3})
    for number in range(60):
        message = {
            "payload": f"order {number} of a day",
            "key": f"k{number % 6}",
            "id": f"order-{number}",
            "headers": {"region": "eu" if number % 2 else "us"},
            "timestamp_ms": BASE_MS + number * 1000,
        }
        http("POST", f"/v1/topics/{topic}/messages", message, partition=number % 3)
    return topic


def test_each_condition_finds_what_it_says(http: Http, orders: str) -> None:
    assert payloads(search(http, orders, key="k4")) == [f"order {n} of a day" for n in range(60) if n % 6 == 4]
    assert payloads(search(http, orders, key_base64=base64.b64encode(b"k4").decode(), text="order 10")) == [
        "order 10 of a day"
    ]
    assert payloads(search(http, orders, id="order-17")) == ["order 17 of a day"]
    assert payloads(search(http, orders, text="order 5")) == [f"order {n} of a day" for n in (5, *range(50, 60))]
    eu = [f"order {n} of a day" for n in range(60) if n % 2]
    assert payloads(search(http, orders, header="region=eu")) == eu
    assert payloads(search(http, orders, header="region=eu", key="k1", text="order 1")) == [
        "order 1 of a day",
        "order 13 of a day",
        "order 19 of a day",
    ]
    assert len(search(http, orders, header="region")) == 60
    assert search(http, orders, header="reg") == search(http, orders, key="K4") == []
    assert payloads(search(http, orders, partition=1)) == [f"order {n} of a day" for n in range(60) if n % 3 == 1]
    assert payloads(search(http, orders, from_ms=BASE_MS + 57_000)) == [f"order {n} of a day" for n in (57, 58, 59)]
    assert search(http, orders, from_ms=BASE_MS + 60_000) == []


def test_it_comes_in_the_order_of_times_over_all_partitions_page_by_page(http: Http, orders: str) -> None:
    forward = list(pages(http, orders, limit=7))
    assert [len(page["messages"]) for page in forward] == [7] * 8 + [4]
    assert payloads(search(http, orders, limit=7)) == [f"order {n} of a day" for n in range(60)]
    assert payloads(search(http, orders, limit=7, newest="true")) == [f"order {n} of a day" for n in range(59, -1, -1)]
    latest = search(http, orders, limit=2, newest="true", from_ms=BASE_MS + 56_000, header="region=eu")
    assert payloads(latest) == ["order 59 of a day", "order 57 of a day"]


def test_a_message_is_shown_with_all_its_bytes_and_found_again_by_its_place(
    http: Http, server: Server, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    producer.produce(topic, b"\xff\x00", key=b"\xfe", headers=[("h", b"\xfd"), ("t", b"text")])
    producer.produce(topic, None, key=b"gone")
    producer.produce(topic, b"", key=b"empty")
    producer.flush(30)
    binary, tombstone, empty = search(http, topic)
    assert (binary["payload"], binary["encoding"], binary["key_base64"]) == ("/wA=", "base64", "/g==")
    assert (binary["headers_base64"], binary["headers"]) == ({"h": "/Q=="}, {"t": "text"})
    assert (tombstone["key"], tombstone["payload"], tombstone["type"]) == ("gone", "", "tombstone")
    assert "type" not in empty
    assert search(http, topic, key_base64="/g==") == [binary]
    for message in (binary, tombstone):
        place = f"{topic}-{message['partition']}@{message['offset']}"
        assert message["id"] == place
        assert search(http, topic, id=place) == [message]
        assert http("GET", f"/v1/messages/{place}").json["offset"] == message["offset"]


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_only_what_is_committed_is_found_however_it_is_stored(
    http: Http, server: Server, topic: str, codec: str
) -> None:
    http("PUT", f"/v1/topics/{topic}")
    config = {"bootstrap.servers": server.bootstrap, "transactional.id": topic, "compression.type": codec}
    producer = Producer(config)
    producer.init_transactions(30)
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        for i in range(50):
            producer.produce(topic, f"t{number} m{i}".encode())
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"open m7")
    producer.flush(30)
    for newest in ("false", "true"):
        found = payloads(search(http, topic, text="m7", newest=newest, limit=3))
        assert found == (["t0 m7", "t2 m7"] if newest == "false" else ["t2 m7", "t0 m7"])
        assert len(search(http, topic, newest=newest)) == 100
    producer.abort_transaction(30)


def test_a_long_topic_is_searched_call_by_call_to_where_it_ended_when_the_search_began(http: Http, topic: str) -> None:
    http("PUT", f"/v1/topics/{topic}", {"partitions": 2})
    for batch in range(60):
        messages = [{"payload": f"{batch}-{i} every one matches"} for i in range(1_000)]
        http("POST", f"/v1/topics/{topic}/messages", messages, partition=batch % 2)
    calls = []
    found: list[str] = []
    for answer in pages(http, topic, text="every one", limit=1000):
        calls.append(answer["scanned"])
        found += payloads(answer["messages"])
        if len(calls) == 1:
            http("POST", f"/v1/topics/{topic}/messages", {"payload": "every one late"}, partition=0)
    assert len(found) == len(set(found)) == 60_000
    assert max(calls) < 60_000, "a call does so much and no more"
    assert "every one late" not in found
    backward = payloads(search(http, topic, text="-999 every", newest="true", limit=1000))
    assert len(backward) == len(set(backward)) == 60


def test_what_was_deleted_meanwhile_is_passed_over(http: Http, topic: str) -> None:
    for number in range(20):
        http("POST", f"/v1/topics/{topic}/messages", {"payload": str(number)})
    for newest in ("false", "true"):
        first = http("GET", f"/v1/topics/{topic}/search", limit=3, newest=newest).json
        end = http("GET", f"/v1/topics/{topic}").json["partitions"][0]["end_offset"]
        http("POST", f"/v1/topics/{topic}/delete-records", {"partition": 0, "before_offset": end})
        rest = http("GET", f"/v1/topics/{topic}/search", cursor=first["cursor"], newest=newest).json
        assert (rest["messages"], rest["done"]) == ([], True)
        for number in range(20):
            http("POST", f"/v1/topics/{topic}/messages", {"payload": str(number)})


def test_many_partitions_have_their_turns(http: Http, topic: str) -> None:
    http("PUT", f"/v1/topics/{topic}", {"partitions": 70})
    for partition in range(70):
        http("POST", f"/v1/topics/{topic}/messages", {"payload": f"p{partition}"}, partition=partition)
    for newest in ("false", "true"):
        found = payloads(search(http, topic, limit=9, newest=newest))
        assert sorted(found) == sorted(f"p{partition}" for partition in range(70))


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"cursor": "no cursor"}, "cursor"),
        ({"cursor": "AAAA"}, "cursor"),
        ({"cursor": "éé"}, "cursor"),
        ({"key": "a", "key_base64": "YQ=="}, "key"),
        ({"key_base64": "?"}, "key_base64"),
        ({"header": "=x"}, "header"),
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"from_ms": -1}, "from_ms"),
        ({"newest": "perhaps"}, "newest"),
        ({"partition": "x"}, "partition"),
        ({"txt": "x"}, "txt"),
    ],
)
def test_a_bad_search_is_refused_by_its_field(http: Http, orders: str, query: dict[str, Any], field: str) -> None:
    answer = http("GET", f"/v1/topics/{orders}/search", ok=False, **query)
    assert (answer.status, answer.error, answer.json["field"]) == (400, "Invalid", field)


def test_a_cursor_is_of_one_search_alone(http: Http, orders: str) -> None:
    cursor = http("GET", f"/v1/topics/{orders}/search", limit=3).json["cursor"]
    assert http.refused("GET", f"/v1/topics/{orders}/search", cursor=cursor, text="x") == (400, "Invalid")
    assert http.refused("GET", f"/v1/topics/{orders}/search", cursor=cursor, newest="true") == (400, "Invalid")
    assert http("GET", f"/v1/topics/{orders}/search", cursor=cursor, limit=100).json["done"]


def test_a_place_that_is_not_there_is_not_found(http: Http, orders: str) -> None:
    assert http.refused("GET", "/v1/topics/not-there/search") == (404, "NotFound")
    assert http.refused("GET", f"/v1/topics/{orders}/search", partition=3) == (404, "UnknownTopic")
    assert search(http, orders, id=f"{orders}-0@99999") == []
    assert len(search(http, orders, id=f"{orders}-0@1", text="order 3")) == 1
    assert search(http, orders, id=f"{orders}-0@1", text="order 4") == []


# -- delete-records ----------------------------------------------------------------------------------------------------


def test_records_before_an_offset_are_deleted(http: Http, topic: str) -> None:
    http("POST", f"/v1/topics/{topic}/messages", [{"payload": str(number)} for number in range(10)])
    path = f"/v1/topics/{topic}/delete-records"
    answer = http("POST", path, {"partition": 0, "before_offset": 4}).json
    assert answer == {"topic": topic, "partition": 0, "start_offset": 4}
    assert payloads(search(http, topic)) == [str(number) for number in range(4, 10)]
    assert http("POST", path, {"before_offset": 2}).json["start_offset"] == 4, "it never goes back"
    assert http("POST", path, {"before_offset": -1}).json["start_offset"] == 10
    assert search(http, topic) == []
    assert http.refused("POST", path, {"before_offset": 11}) == (400, "OffsetOutOfRange")
    assert http.refused("POST", path, {"before_offset": -2}) == (400, "Invalid")
    assert http.refused("POST", path, {}) == (400, "Invalid")
    assert http.refused("POST", path, {"before_offset": 1, "partitions": 0}) == (400, "Invalid")
    assert http.refused("POST", path, {"before_offset": 1, "partition": 7}) == (404, "UnknownTopic")
    assert http.refused("POST", "/v1/topics/none/delete-records", {"before_offset": 1}) == (404, "NotFound")
    own = "/v1/topics/__consumer_offsets/delete-records"
    assert http.refused("POST", own, {"before_offset": 0}) == (403, "NotAllowed")
    http("PATCH", f"/v1/topics/{topic}", {"settings": {"cleanup.policy": "compact"}})
    assert http.refused("POST", path, {"before_offset": 10}) == (409, "Conflict")


@pytest.mark.parametrize(("asked", "status"), [("from_ms", 200), ("partition", 404)])
def test_numbers_of_any_size_are_answered(http: Http, topic: str, asked: str, status: int) -> None:
    http("PUT", f"/v1/topics/{topic}", {"partitions": 1})
    for number in (2**63, 2**64, 10**30):
        assert http("GET", f"/v1/topics/{topic}/search?{asked}={number}", ok=False).status == status
