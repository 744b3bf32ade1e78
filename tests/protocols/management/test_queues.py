"""RabbitMQ's management API: queues and their messages, as its tools use them."""

from __future__ import annotations

import base64
from typing import Any

from tests.protocols.http.kit import Http, name
from tests.protocols.management.kit import Api, basic, ours_only
from tests.support.names import unique


def test_a_queue_is_declared_described_and_deleted(api: Api) -> None:
    queue = unique("q")
    said = {"durable": True, "auto_delete": False, "arguments": {"x-message-ttl": 60_000, "x-max-length": 100}}
    assert api("PUT", f"/queues/%2F/{queue}", said).status == 201
    assert api("PUT", f"/queues/%2F/{queue}", said).status == 204
    shown = api.shown(queue, messages=0, consumers=0)
    assert {field: shown[field] for field in ("name", "vhost", "durable", "auto_delete", "exclusive", "type")} == {
        "name": queue,
        "vhost": "/",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "type": "classic",
    }
    assert shown["arguments"] == said["arguments"]
    assert shown["policy"] is None
    assert api("DELETE", f"/queues/%2F/{queue}").status == 204
    assert api.refused("GET", f"/queues/%2F/{queue}")[0] == 404
    assert api.refused("DELETE", f"/queues/%2F/{queue}")[0] == 404


def test_a_declaration_that_differs_is_refused_in_rabbitmqs_words(api: Api) -> None:
    queue = api.queue(arguments={"x-max-length": 5})
    where = f"queue '{queue}' in vhost '/'"
    for said, reason in (
        ({"durable": False}, f"inequivalent arg 'durable' for {where}: received 'false' but current is 'true'"),
        (
            {"durable": True, "arguments": {"x-max-length": 6}},
            f"inequivalent arg 'x-max-length' for {where}: received '6' but current is '5'",
        ),
    ):
        assert api.refused("PUT", f"/queues/%2F/{queue}", said) == (400, reason)
    wrong = {"arguments": {"x-message-ttl": "abc"}}
    status, reason = api.refused("PUT", f"/queues/%2F/{unique('q')}", wrong)
    assert (status, "invalid arg 'x-message-ttl'" in reason) == (400, True)
    assert api.refused("PUT", "/queues/%2F/amq.mine", {})[0] == 401
    assert api.refused("PUT", f"/queues/{unique('nowhere')}/q", {}) == (404, "vhost_not_found")
    assert api.refused("PUT", f"/queues/%2F/{unique('q')}", {"durable": "perhaps"})[0] == 400
    assert api.http("PUT", "/api/queues/%2F/q", b"{", headers=basic(), ok=False).status == 400


def test_flags_may_be_words(api: Api) -> None:
    queue = unique("q")
    api("PUT", f"/queues/%2F/{queue}", {"durable": "true", "auto_delete": "false"})
    assert api.get(f"/queues/%2F/{queue}")["durable"] is True


def test_names_may_hold_anything(api: Api) -> None:
    queue = unique("a/b c%ü?")
    api("PUT", f"/queues/%2F/{name(queue)}", {"durable": True})
    assert api.get(f"/queues/%2F/{name(queue)}")["name"] == queue
    api("DELETE", f"/queues/%2F/{name(queue)}")


def test_messages_are_published_and_got(api: Api) -> None:
    queue = api.queue()
    properties: dict[str, Any] = {
        "delivery_mode": 2,
        "headers": {"h": 1, "list": [1, "two", {"three": True}]},
        "content_type": "text/plain",
        "priority": 3,
        "message_id": "m1",
        "timestamp": 1_700_000_000,
        "app_id": "a",
        "type": "t",
        "expiration": "50000",
        "correlation_id": "c",
        "reply_to": "r",
    }
    assert api.publish("amq.default", queue, "hello", **properties)
    (message,) = api.take(queue, mode="ack_requeue_true")
    assert message == {
        "payload_bytes": 5,
        "redelivered": False,
        "exchange": "",
        "routing_key": queue,
        "message_count": 0,
        "properties": properties,
        "payload": "hello",
        "payload_encoding": "string",
    }
    (again,) = api.take(queue, mode="ack_requeue_true", truncate=2)
    assert (again["payload"], again["payload_bytes"]) == ("he", 5)
    assert [each["payload"] for each in api.take(queue, count=5)] == ["hello"]
    assert api.take(queue) == []


def test_bytes_are_base64(api: Api) -> None:
    queue = api.queue()
    data = base64.b64encode(b"\xff\x00").decode()
    body = {"properties": {}, "routing_key": queue, "payload": data, "payload_encoding": "base64"}
    assert api("POST", "/exchanges/%2F/amq.default/publish", body).json == {"routed": True}
    (message,) = api.take(queue)
    assert (message["payload"], message["payload_encoding"], message["payload_bytes"]) == (data, "base64", 2)


def test_what_makes_no_sense_is_refused(api: Api) -> None:
    queue = api.queue()
    assert api.refused("POST", f"/queues/%2F/{queue}/get", {"count": 5}) == (
        400,
        "[{key_missing,ackmode},{key_missing,encoding}]",
    )
    body = {"properties": {}, "routing_key": queue, "payload": "x", "payload_encoding": "string"}
    assert api.refused("POST", "/exchanges/%2F/none/publish", body) == (
        400,
        "404 NOT_FOUND - no exchange 'none' in vhost '/'",
    )
    assert api.refused("POST", "/exchanges/%2F/amq.default/publish", {"routing_key": "x"})[0] == 400
    got = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert api.refused("POST", "/queues/%2F/none/get", got) == (404, "NOT_FOUND - no queue 'none' in vhost '/'")


@ours_only
def test_what_makes_no_sense_is_refused_by_name(api: Api) -> None:
    queue = api.queue()
    got = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for wrong, field in (({"ackmode": "x"}, "ackmode"), ({"encoding": "x"}, "encoding"), ({"count": "x"}, "count")):
        status, reason = api.refused("POST", f"/queues/%2F/{queue}/get", {**got, **wrong})
        assert (status, reason.partition(":")[0]) == (400, field)
    sent = {"properties": {}, "routing_key": queue, "payload": "x", "payload_encoding": "string"}
    for wrong_sent in (
        {"payload_encoding": "rot13"},
        {"payload": "?", "payload_encoding": "base64"},
        {"properties": {"priority": 300}},
        {"properties": {"timestamp": "later"}},
        {"properties": {"content_type": 3}},
        {"properties": {"headers": 3}},
        {"properties": {"expiration": "soon"}},
    ):
        assert api.refused("POST", "/exchanges/%2F/amq.default/publish", {**sent, **wrong_sent})[0] == 400


def test_a_rejected_message_is_dead_or_back(api: Api) -> None:
    dead, exchange = api.queue(), api.exchange("fanout")
    api("POST", f"/bindings/%2F/e/{exchange}/q/{dead}", {})
    queue = api.queue(arguments={"x-dead-letter-exchange": exchange})
    api.publish("amq.default", queue)
    (first,) = api.take(queue, mode="reject_requeue_true")
    (second,) = api.take(queue, mode="reject_requeue_false")
    assert (first["redelivered"], second["redelivered"]) == (False, True)
    api.shown(dead, messages=1)
    (letter,) = api.take(dead)
    death = letter["properties"]["headers"]["x-death"][0]
    assert (death["queue"], death["reason"], death["count"], letter["exchange"]) == (queue, "rejected", 1, exchange)


def test_figures_follow_the_messages(api: Api) -> None:
    queue = api.queue()
    for _ in range(3):
        api.publish("amq.default", queue, "1234")
    shown = api.shown(queue, messages=3, messages_ready=3, messages_unacknowledged=0, message_bytes=12)
    assert shown["message_stats"]["publish"] == 3
    assert api("DELETE", f"/queues/%2F/{queue}/contents").status == 204
    api.shown(queue, messages=0)
    assert api.refused("DELETE", "/queues/%2F/none/contents")[0] == 404


@ours_only
def test_rates_are_what_was_seen_between_two_looks(api: Api) -> None:
    from tests.support.waiting import wait_for

    queue = api.queue()
    api.publish("amq.default", queue)
    first = api.get(f"/queues/%2F/{queue}")
    assert "messages_details" not in first, "nothing is known of its rate yet"
    api.publish("amq.default", queue)

    def rate() -> float | None:
        shown = api.get(f"/queues/%2F/{queue}")
        stats = shown["message_stats"]
        return shown["messages_details"]["rate"] or None if "publish_details" in stats else None

    assert 0 < wait_for(rate, "a second look at the queue has a rate", every_s=0.2) <= 1


@ours_only
def test_a_delayed_message_is_counted_but_is_not_ready(api: Api) -> None:
    queue = api.queue()
    api.publish("amq.default", queue, headers={"x-delay": 3_600_000})
    shown = api.get(f"/queues/%2F/{queue}")
    assert (shown["messages"], shown["messages_ready"], shown["messages_delayed"]) == (1, 0, 1)


def test_conditions_of_a_deletion_are_kept(api: Api) -> None:
    queue = api.queue()
    api.publish("amq.default", queue)
    where = f"queue '{queue}' in vhost '/'"
    assert api.refused("DELETE", f"/queues/%2F/{queue}", if_empty="true") == (400, f"{where} not empty")
    with api.connection() as connection:
        connection.channel().basic_consume(queue, lambda *_: None)
        assert api.refused("DELETE", f"/queues/%2F/{queue}", if_unused="true") == (400, f"{where} in use")
    assert api("DELETE", f"/queues/%2F/{queue}").status == 204


# -- lists -------------------------------------------------------------------------------------------------------------


def test_lists_are_filtered_sorted_and_paged(api: Api) -> None:
    mark = unique("list")
    queues = [f"{mark}-{letter}" for letter in "cabd"]
    for queue in queues:
        api("PUT", f"/queues/%2F/{queue}", {"durable": True})
    first = api.get("/queues/%2F", page=1, page_size=3, name=mark, sort="name")
    assert [item["name"] for item in first["items"]] == sorted(queues)[:3]
    assert {field: first[field] for field in first if field not in ("items", "total_count")} == {
        "filtered_count": 4,
        "item_count": 3,
        "page": 1,
        "page_count": 2,
        "page_size": 3,
    }
    assert first["total_count"] >= 4
    second = api.get("/queues/%2F", page=2, page_size=3, name=mark, sort="name")
    assert [item["name"] for item in second["items"]] == sorted(queues)[3:]
    wanted = {"page": 1, "page_size": 10, "use_regex": "true", "sort": "name", "sort_reverse": "true"}
    found = api.get("/queues", name=f"^{mark}-[ab]$", columns="name,vhost", **wanted)
    assert found["items"] == [{"name": f"{mark}-{letter}", "vhost": "/"} for letter in "ba"]
    assert set(queues) <= {item["name"] for item in api.get("/queues")}


def test_pages_that_are_not_there_are_refused(api: Api) -> None:
    for query in ({"page": 9999}, {"page": "x"}, {"page": 1, "page_size": 501}, {"page": 0}):
        assert api.refused("GET", "/queues", **query)[0] == 400
    assert api.refused("GET", "/queues", page=1, name="(", use_regex="true")[0] == 400
    assert api.refused("GET", f"/queues/{unique('nowhere')}")[0] == 404


def test_what_is_unknown_in_a_query_is_passed_over(api: Api) -> None:
    assert isinstance(api.get("/queues", lengths_age=60, lengths_incr=5, whatever="x"), list)


def test_a_slash_at_the_end_means_nothing(api: Api) -> None:
    queue = api.queue()
    assert queue in {item["name"] for item in api.get("/queues/")}
    assert queue in {item["name"] for item in api.get("/queues/%2F/")}


def test_flower_finds_the_figures_that_it_shows(api: Api) -> None:
    """Celery's Flower asks for the queues of a virtual host; of `/` it asks with nothing behind the slash."""
    queue = api.queue()
    wanted = {"consumers": 0, "messages": 0, "messages_ready": 0, "messages_unacknowledged": 0}
    api.shown(queue, **wanted)
    (found,) = [item for item in api.get("/queues/") if item["name"] == queue and item["vhost"] == "/"]
    assert found.items() >= wanted.items()


@ours_only
def test_queues_of_other_protocols_are_shown(api: Api, http: Http) -> None:
    queue = unique("native")
    http("PUT", f"/v1/queues/{queue}", {"max_length": 5, "ttl_ms": 1000, "max_deliveries": 3})
    shown = api.get(f"/queues/%2F/{queue}")
    assert (shown["durable"], shown["type"]) == (True, "classic")
    wanted = {"x-max-length": 5, "x-message-ttl": 1000, "x-delivery-limit": 2}
    assert wanted.items() <= shown["arguments"].items()


def test_streams_are_queues(api: Api) -> None:
    stream = unique("stream")
    api("PUT", f"/queues/%2F/{stream}", {"durable": True, "arguments": {"x-queue-type": "stream"}})
    assert api.get(f"/queues/%2F/{stream}")["type"] == "stream"
    assert stream in {item["name"] for item in api.get("/queues/%2F", page=1, page_size=500, name=stream)["items"]}
    assert api("DELETE", f"/queues/%2F/{stream}").status == 204
    assert api.refused("GET", f"/queues/%2F/{stream}")[0] == 404


@ours_only
def test_queues_on_topics_are_shown(api: Api, http: Http) -> None:
    queue, topic = unique("q"), unique("t")
    api("PUT", f"/queues/%2F/{queue}", {"durable": True, "arguments": {"x-topic": topic}})
    http("POST", f"/v1/topics/{topic}/messages", {"payload": "x"})
    shown = api.get(f"/queues/%2F/{queue}")
    assert (shown["arguments"], shown["messages"]) == ({"x-topic": topic}, 1)
    assert queue in {item["name"] for item in api.get("/queues/%2F")}
    got = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert api.refused("POST", f"/queues/%2F/{queue}/get", got)[0] == 400


def test_bindings_of_a_queue(api: Api) -> None:
    queue, exchange = api.queue(), api.exchange()
    api("POST", f"/bindings/%2F/e/{exchange}/q/{queue}", {"routing_key": "a.*"})
    found = api.get(f"/queues/%2F/{queue}/bindings")
    assert found == [
        {
            "source": source,
            "vhost": "/",
            "destination": queue,
            "destination_type": "queue",
            "routing_key": key,
            "arguments": {},
            "properties_key": properties_key,
        }
        for source, key, properties_key in (("", queue, queue), (exchange, "a.*", "a.%2A"))
    ]
