"""Queues by HTTP: declare, put, take, settle, look, find, cancel."""

from __future__ import annotations

import base64
import threading
from typing import Any

import pytest

from tests.protocols.http.kit import Http, name
from tests.support.names import unique
from tests.support.waiting import wait_for

TIMEOUT_MS = 300


def test_a_message_is_put_taken_and_acknowledged(http: Http, queue: str) -> None:
    (message_id,) = http.put(queue, "hello")
    message = http.one(queue)
    assert (message["payload"], message["id"], message["deliveries"], message["queue"]) == (
        "hello",
        message_id,
        1,
        queue,
    )
    answer = http("POST", f"/v1/queues/{queue}/ack", {"ack_ids": [message["ack_id"]]}).json
    assert answer == {"settled": 1, "unknown": []}
    assert http.take(queue) == []
    assert http.queue(queue)["acked"] == 1


def test_every_field_of_a_message_survives(http: Http, queue: str) -> None:
    sent: dict[str, Any] = {
        "payload_base64": base64.b64encode(b"\x00\xff\xfe").decode(),
        "id": "m-1",
        "key": "k",
        "headers": {"text": "é", "number": 7, "list": [1, {"a": None}], "none": None},
        "headers_base64": {"bytes": base64.b64encode(b"\xff").decode()},
        "priority": 4,
        "ttl_ms": 3_600_000,
        "correlation_id": "c",
        "reply_to": "r",
        "content_type": "image/png",
        "type": "event",
        "max_deliveries": 5,
        "timestamp_ms": 12345,
    }
    http.put(queue, sent)
    got = http.one(queue)
    assert (got.pop("payload"), got.pop("encoding")) == (sent.pop("payload_base64"), "base64")
    assert {field: got[field] for field in sent} == sent


@pytest.mark.parametrize("odd", ["a/b", "ünïcödé ☃", "100%", "a b+c", "..", "queue?x#y", "stats"])
def test_a_queue_may_have_any_name(http: Http, odd: str) -> None:
    queue = unique(odd)
    assert http("PUT", f"/v1/queues/{name(queue)}").status == 201
    assert http.queue(queue)["queue"] == queue
    http.put(queue, {"payload": "x", "id": "an id/with ☃"})
    assert http("GET", f"/v1/queues/{name(queue)}/messages/{name('an id/with ☃')}").json["payload"] == "x"
    message = http.one(queue)
    http("POST", f"/v1/queues/{name(queue)}/ack", {"ack_ids": [message["ack_id"]]})
    assert queue in [info["queue"] for info in http("GET", "/v1/queues", prefix=queue).json["queues"]]
    assert http("DELETE", f"/v1/queues/{name(queue)}").json == {"messages": 0}


def test_declaring_again_is_fine_and_with_other_settings_a_conflict(http: Http) -> None:
    queue = unique("q")
    settings = {"max_deliveries": 3, "dead_letter": "dead"}
    assert http("PUT", f"/v1/queues/{queue}", settings).status == 201
    assert http("PUT", f"/v1/queues/{queue}", settings).status == 200
    assert http("PUT", f"/v1/queues/{queue}").status == 200
    assert http.refused("PUT", f"/v1/queues/{queue}", {"max_deliveries": 4}) == (409, "Conflict")
    altered = http("PUT", f"/v1/queues/{queue}", {"max_deliveries": 4}, alter=True).json["settings"]
    assert (altered["max_deliveries"], altered["dead_letter"]) == (4, "dead")  # what is not named stays
    altered = http("PUT", f"/v1/queues/{queue}", {"dead_letter": None}, alter=True).json["settings"]
    assert (altered["max_deliveries"], altered.get("dead_letter")) == (4, None)
    assert http("PUT", f"/v1/queues/{queue}", alter=True).json["settings"]["max_deliveries"] == 4


def test_a_long_list_is_read_in_pages(http: Http) -> None:
    prefix = unique("page")
    for number in range(5):
        http("PUT", f"/v1/queues/{prefix}-{number}")
    names: list[str] = []
    after: str | None = ""
    while after is not None:
        page = http("GET", "/v1/queues", prefix=prefix, after=after, limit=2).json
        names += [info["queue"] for info in page["queues"]]
        after = page["next"]
    assert names == [f"{prefix}-{number}" for number in range(5)]


def test_a_batch_is_kept_in_order_and_settled_at_once(http: Http, queue: str) -> None:
    ids = http.put(queue, *[f"m{number}" for number in range(300)])
    assert len(set(ids)) == 300
    taken = http.take(queue, count=1000)
    assert [message["payload"] for message in taken] == [f"m{number}" for number in range(300)]
    answer = http("POST", f"/v1/queues/{queue}/ack", {"ack_ids": [message["ack_id"] for message in taken]}).json
    assert answer["settled"] == 300


def test_higher_priorities_come_first(http: Http, queue: str) -> None:
    http.put(queue, "low", {"payload": "high", "priority": 9}, {"payload": "middle", "priority": 5})
    assert [message["payload"] for message in http.take(queue, count=3)] == ["high", "middle", "low"]


def test_a_body_that_is_no_json_is_the_payload(http: Http, queue: str) -> None:
    headers = {
        "content-type": "image/png",
        "x-message-id": "raw-1",
        "x-key": "k",
        "x-priority": "3",
        "x-ttl": "60000",
        "x-correlation-id": "c",
        "x-header-Trace": "ä".encode().decode("latin-1"),
    }
    answer = http("POST", f"/v1/queues/{queue}/messages", b"\x89PNG\xff", headers=headers)
    assert answer.json["ids"] == ["raw-1"]
    got = http.one(queue)
    assert base64.b64decode(got["payload"]) == b"\x89PNG\xff"
    expected = {"key": "k", "priority": 3, "ttl_ms": 60000, "correlation_id": "c", "headers": {"trace": "ä"}}
    assert {field: got[field] for field in expected} == expected
    assert got["content_type"] == "image/png"


def test_curl_d_puts_what_it_says(http: Http, queue: str) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    http("POST", f"/v1/queues/{queue}/messages", b"hello", headers=headers)
    got = http.one(queue)
    assert got["payload"] == "hello"
    assert "content_type" not in got


def test_json_may_be_a_payload_as_it_is(http: Http, queue: str) -> None:
    http(
        "POST",
        f"/v1/queues/{queue}/messages",
        b'{"payload": 1}',
        headers={"content-type": "application/json"},
        raw=True,
    )
    assert http.one(queue)["payload"] == '{"payload": 1}'


def test_a_payload_of_a_type_that_is_written_in_json_is_a_payload(http: Http, queue: str) -> None:
    headers = {"content-type": "application/cloudevents+json"}
    http("POST", f"/v1/queues/{queue}/messages", b'{"specversion": "1.0"}', headers=headers)
    got = http.one(queue)
    assert (got["payload"], got["content_type"]) == ('{"specversion": "1.0"}', "application/cloudevents+json")


def test_json_that_is_no_message_is_told_how_it_could_be_one(http: Http, queue: str) -> None:
    answer = http("POST", f"/v1/queues/{queue}/messages", {"a": 1}, ok=False)
    assert (answer.status, answer.json["field"]) == (400, "payload")
    assert "?raw=true" in answer.json["detail"]


def test_a_long_poll_is_woken_by_a_put(http: Http, queue: str) -> None:
    got: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: got.append(http.one(queue)))
    waiting.start()
    wait_for(lambda: http.queue(queue)["consumers"], "somebody waits")
    http.put(queue, "here")
    waiting.join()
    assert got[0]["payload"] == "here"


def test_a_long_poll_without_a_message_ends_empty(http: Http, queue: str) -> None:
    assert http.take(queue, wait_ms=30) == []


def test_a_client_that_leaves_a_long_poll_takes_nothing_with_it(http: Http, queue: str) -> None:
    connection = http.connect()
    connection.request("POST", f"/v1/queues/{queue}/take?wait_ms=60000")
    wait_for(lambda: http.queue(queue)["consumers"], "somebody waits")
    connection.close()

    def put_and_taken() -> bool:
        """Whoever left may still be in the broker's list for a moment; then it must not keep what it is given."""
        http.put(queue, "for another")
        return bool(http.take(queue, count=10))

    wait_for(put_and_taken, "the message is for others")
    assert http.queue(queue)["ready"] == 0


def test_what_is_rejected_is_tried_again_and_then_dead(http: Http) -> None:
    queue, dead = unique("q"), unique("dead")
    http("PUT", f"/v1/queues/{queue}", {"max_deliveries": 2, "dead_letter": dead, "retry_base_ms": 1})
    http.put(queue, "bad")
    for delivery in (1, 2):
        message = http.one(queue)
        assert message["deliveries"] == delivery
        http("POST", f"/v1/queues/{queue}/reject", {"ack_ids": [message["ack_id"]], "error": f"failed {delivery}"})
    wait_for(lambda: http("GET", f"/v1/queues/{dead}", ok=False).status == 200, "the dead-letter queue is there")
    letter = http.one(dead)
    (death,) = letter["headers"]["x-death"]
    assert (death["queue"], death["error"]) == (queue, "failed 2")


def test_what_is_released_comes_back_after_its_delay(http: Http, queue: str) -> None:
    http.put(queue, "again")
    message = http.one(queue)
    http("POST", "/v1/release", {"ack_ids": [message["ack_id"]], "delay_ms": 2_000})
    assert http.queue(queue)["parked"] == 1
    assert http.one(queue)["payload"] == "again"


def test_auto_ack_takes_for_good(http: Http, queue: str) -> None:
    http.put(queue, "once")
    message = http.one(queue, auto_ack=True)
    assert "ack_id" not in message
    assert (http.queue(queue)["held"], http.queue(queue)["acked"]) == (0, 1)


def test_touch_prolongs_a_hold(http: Http, queue: str) -> None:
    http.put(queue, "slow work")
    message = http.one(queue, hold_ms=TIMEOUT_MS)
    http("POST", f"/v1/queues/{queue}/touch", {"ack_ids": [message["ack_id"]], "hold_ms": 60_000})
    assert http.take(queue, wait_ms=2 * TIMEOUT_MS) == []
    assert http("POST", f"/v1/queues/{queue}/ack", {"ack_ids": [message["ack_id"]]}).json["settled"] == 1


# -- ack ids that hold nothing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ack", "reject", "release", "touch"])
@pytest.mark.parametrize("ack_id", ["", "nonsense", "A" * 32, "☃"])
def test_an_unknown_ack_id_is_a_conflict(http: Http, queue: str, verb: str, ack_id: str) -> None:
    assert http.refused("POST", f"/v1/queues/{queue}/{verb}", {"ack_ids": [ack_id]}) == (409, "Conflict")
    assert http.refused("POST", f"/v1/{verb}", {"ack_ids": [ack_id]}) == (409, "Conflict")


def test_an_ack_id_works_once(http: Http, queue: str) -> None:
    http.put(queue, "x")
    body = {"ack_ids": [http.one(queue)["ack_id"]]}
    http("POST", f"/v1/queues/{queue}/ack", body)
    assert http.refused("POST", f"/v1/queues/{queue}/ack", body) == (409, "Conflict")


def test_an_ack_id_of_an_expired_and_redelivered_hold_is_a_conflict_without_effect(http: Http, queue: str) -> None:
    http.put(queue, "x")
    first = http.one(queue, hold_ms=TIMEOUT_MS)
    second = http.one(queue)
    assert second["deliveries"] == 2
    assert http.refused("POST", f"/v1/queues/{queue}/ack", {"ack_ids": [first["ack_id"]]}) == (409, "Conflict")
    assert http.queue(queue)["held"] == 1
    http("POST", f"/v1/queues/{queue}/ack", {"ack_ids": [second["ack_id"]]})


def test_an_ack_id_of_another_queue_is_a_conflict_without_effect(http: Http, queue: str) -> None:
    http.put(queue, "x")
    body = {"ack_ids": [http.one(queue)["ack_id"]]}
    other = unique("other")
    http("PUT", f"/v1/queues/{other}")
    assert http.refused("POST", f"/v1/queues/{other}/ack", body) == (409, "Conflict")
    assert http.queue(queue)["held"] == 1
    http("POST", f"/v1/queues/{queue}/ack", body)


def test_of_a_batch_the_known_ones_are_settled_and_the_others_named(http: Http, queue: str) -> None:
    http.put(queue, "x")
    good = http.one(queue)["ack_id"]
    answer = http("POST", f"/v1/queues/{queue}/ack", {"ack_ids": ["nonsense", good]}).json
    assert answer == {"settled": 1, "unknown": ["nonsense"]}


# -- looking -----------------------------------------------------------------------------------------------------------


def test_peek_shows_every_state_and_takes_nothing(http: Http, queue: str) -> None:
    http.put(queue, "held")
    http.one(queue)
    http.put(queue, "ready", {"payload": "parked", "delay_ms": 60_000})
    shown = http("GET", f"/v1/queues/{queue}/peek").json["messages"]
    assert [(message["payload"], message["state"]) for message in shown] == [
        ("held", "held"),
        ("ready", "ready"),
        ("parked", "parked"),
    ]
    assert "ready_at_ms" in shown[2]
    (only,) = http("GET", f"/v1/queues/{queue}/peek", state="parked").json["messages"]
    assert only["payload"] == "parked"
    (behind,) = http("GET", f"/v1/queues/{queue}/peek", after=shown[1]["tag"]).json["messages"]
    assert behind["payload"] == "parked"
    assert http.queue(queue)["ready"] == 1


def test_a_delayed_message_is_found_and_cancelled(http: Http, queue: str) -> None:
    (message_id,) = http.put(queue, {"payload": "later", "delay_ms": 60_000})
    found = http("GET", f"/v1/queues/{queue}/messages/{name(message_id)}").json
    assert (found["payload"], found["state"], found["place"]) == ("later", "parked", f"queue:{queue}")
    assert http("GET", f"/v1/messages/{name(message_id)}").json["payload"] == "later"
    assert http("DELETE", f"/v1/queues/{queue}/messages/{name(message_id)}").status == 204
    assert http.refused("DELETE", f"/v1/queues/{queue}/messages/{name(message_id)}") == (404, "NotFound")
    assert http.refused("GET", f"/v1/queues/{queue}/messages/{name(message_id)}") == (404, "NotFound")
    assert http.queue(queue)["parked"] == 0


def test_a_held_message_cannot_be_cancelled(http: Http, queue: str) -> None:
    (message_id,) = http.put(queue, "x")
    http.one(queue)
    assert http.refused("DELETE", f"/v1/queues/{queue}/messages/{name(message_id)}") == (409, "Conflict")


def test_purge_leaves_what_is_held(http: Http, queue: str) -> None:
    http.put(queue, "held", "a", "b")
    http.one(queue)
    assert http("DELETE", f"/v1/queues/{queue}/messages").json == {"messages": 2}
    assert http.queue(queue)["held"] == 1


# -- what bad input gets -----------------------------------------------------------------------------------------------


def test_a_queue_that_is_not_there_is_named_with_its_neighbours(http: Http, queue: str) -> None:
    answer = http("GET", f"/v1/queues/{queue}x", ok=False)
    assert (answer.status, answer.error) == (404, "NotFound")
    assert queue in answer.json["detail"]
    for method, path in (("POST", "take"), ("DELETE", "messages"), ("GET", "peek"), ("POST", "stream")):
        assert http.refused(method, f"/v1/queues/{queue}x/{path}") == (404, "NotFound")
    assert http.refused("POST", f"/v1/queues/{queue}x/messages", {"payload": ""}) == (404, "NotFound")


def test_a_full_queue_refuses_and_stores_nothing(http: Http) -> None:
    queue = unique("q")
    http("PUT", f"/v1/queues/{queue}", {"max_length": 2})
    http.put(queue, "a")
    answer = http("POST", f"/v1/queues/{queue}/messages", [{"payload": "b"}, {"payload": "c"}], ok=False)
    assert (answer.status, answer.error) == (429, "Full")
    assert answer.headers["retry-after"]
    assert http.queue(queue)["ready"] == 1


def test_an_id_used_twice_in_the_window_is_left_out(http: Http) -> None:
    queue = unique("q")
    http("PUT", f"/v1/queues/{queue}", {"dedup_window_ms": 60_000})
    http.put(queue, {"payload": "a", "id": "one"})
    messages = [{"payload": "a", "id": "one"}, {"payload": "b", "id": "two"}, {"payload": "c"}]
    answer = http("POST", f"/v1/queues/{queue}/messages", messages).json
    assert (answer["stored"], answer["duplicates"]) == (2, [0])
    again = http("POST", f"/v1/queues/{queue}/messages", {"payload": "a", "id": "one"})
    assert (again.status, again.json["stored"], again.json["duplicates"]) == (200, 0, [0])  # nothing was created
    assert answer["ids"][:2] == [None, "two"]
    assert [message["id"] for message in http.take(queue, count=5)] == ["one", "two", answer["ids"][2]]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"payload": "", "priority": 256}, "priority"),
        ({"payload": "", "priority": "9"}, "priority"),
        ({"payload": "", "delay_ms": -1}, "delay_ms"),
        ({"payload": "", "ttl_ms": 0}, "ttl_ms"),
        ({"payload": 7}, "payload"),
        ({"payload_base64": "!"}, "payload_base64"),
        ({}, "payload"),
        ({"payload": "", "prioritiy": 1}, "prioritiy"),
        ({"payload": "", "id": ""}, "id"),
        ({"payload": "", "headers": 3}, "headers"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused_by_field(
    http: Http, queue: str, message: dict[str, Any], field: str
) -> None:
    answer = http("POST", f"/v1/queues/{queue}/messages", message, ok=False)
    assert (answer.status, answer.json["field"]) == (400, field)
    answer = http("POST", f"/v1/queues/{queue}/messages", [{"payload": "good"}, message], ok=False)
    assert (answer.status, answer.json["field"]) == (400, f"messages[1].{field}")
    assert http.queue(queue)["ready"] == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("PUT", "/v1/queues/x", {"max_delivery": 1}, "max_delivery"),
        ("PUT", "/v1/queues/x", {"max_deliveries": "many"}, "max_deliveries"),
        ("PUT", "/v1/queues/x", {"hold_ms": 0}, "hold_ms"),
        ("PUT", "/v1/queues/x", {"exclusive": True}, "exclusive"),
        ("PUT", "/v1/queues/x?alters=true", None, "alters"),
        ("POST", "/v1/queues/x/take?count=0", None, "count"),
        ("POST", "/v1/queues/x/take?count=many", None, "count"),
        ("POST", "/v1/queues/x/take?wait_ms=-1", None, "wait_ms"),
        ("GET", "/v1/queues/x/peek?state=gone", None, "state"),
        ("POST", "/v1/queues/x/ack", {}, "ack_ids"),
        ("POST", "/v1/queues/x/ack", {"ack_ids": []}, "ack_ids"),
        ("POST", "/v1/queues/x/ack", {"ack_ids": [7]}, "ack_ids[0]"),
        ("POST", "/v1/queues/x/messages?wait_ms=x", {"payload": ""}, "wait_ms"),
        ("POST", "/v1/queues/x/redrive", {"rate": -1}, "rate"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_field(
    http: Http, method: str, path: str, body: Any, field: str
) -> None:
    answer = http(method, path, body, ok=False)
    assert (answer.status, answer.error, answer.json.get("field")) == (400, "Invalid", field)


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"[1]", b"7", b"[]", b"[" * 100_000])
def test_a_body_that_is_no_message_is_refused(http: Http, queue: str, body: bytes) -> None:
    answer = http("POST", f"/v1/queues/{queue}/messages", body, headers={"content-type": "application/json"}, ok=False)
    assert (answer.status, answer.error) == (400, "Invalid")
