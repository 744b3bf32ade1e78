"""RabbitMQ's management API: exchanges and bindings, as its tools use them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.http.kit import name
from tests.protocols.management.kit import Api, ours_only
from tests.support.names import unique


def test_an_exchange_is_declared_described_and_deleted(api: Api) -> None:
    exchange = unique("e")
    said = {"type": "fanout", "durable": True, "auto_delete": False, "internal": False}
    said_all = {**said, "arguments": {"alternate-exchange": "amq.fanout"}}
    assert api("PUT", f"/exchanges/%2F/{exchange}", said_all).status == 201
    assert api("PUT", f"/exchanges/%2F/{exchange}", said_all).status == 204
    shown = api.get(f"/exchanges/%2F/{exchange}")
    assert shown.items() >= {**said_all, "name": exchange, "vhost": "/"}.items()
    assert exchange in {item["name"] for item in api.get("/exchanges")}
    assert exchange in {item["name"] for item in api.get("/exchanges/%2F")}
    assert api("DELETE", f"/exchanges/%2F/{exchange}").status == 204
    assert api.refused("GET", f"/exchanges/%2F/{exchange}")[0] == 404
    assert api.refused("DELETE", f"/exchanges/%2F/{exchange}")[0] == 404


def test_the_exchanges_that_are_always_there_are_listed(api: Api) -> None:
    kinds = {item["name"]: item["type"] for item in api.get("/exchanges/%2F")}
    wanted = {"": "direct", "amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic"}
    assert kinds.items() >= {**wanted, "amq.headers": "headers", "amq.match": "headers"}.items()
    assert api.get("/exchanges/%2F/amq.default")["name"] == ""
    assert api.refused("DELETE", "/exchanges/%2F/amq.direct")[0] == 401


def test_a_declaration_that_differs_is_refused_in_rabbitmqs_words(api: Api) -> None:
    exchange = api.exchange("topic")
    where = f"exchange '{exchange}' in vhost '/'"
    assert api.refused("PUT", f"/exchanges/%2F/{exchange}", {"type": "direct", "durable": True}) == (
        400,
        f"inequivalent arg 'type' for {where}: received 'direct' but current is 'topic'",
    )
    assert api.refused("PUT", f"/exchanges/%2F/{unique('e')}", {"type": "none"})[0] == 400
    assert api.refused("PUT", "/exchanges/%2F/amq.mine", {"type": "direct"})[0] == 401
    assert api.refused("PUT", f"/exchanges/{unique('nowhere')}/e", {"type": "direct"}) == (404, "vhost_not_found")


def test_a_message_goes_where_bindings_lead(api: Api) -> None:
    queue, exchange = api.queue(), api.exchange()
    api("POST", f"/bindings/%2F/e/{exchange}/q/{queue}", {"routing_key": "a.*"})
    assert api.publish(exchange, "a.b") is True
    assert api.publish(exchange, "b.b") is False
    (message,) = api.take(queue, count=5)
    assert (message["exchange"], message["routing_key"]) == (exchange, "a.b")


def test_bindings_are_made_found_and_removed(api: Api) -> None:
    queue, source, target = api.queue(), api.exchange(), api.exchange()
    between = f"/bindings/%2F/e/{source}/q/{queue}"
    for said in ({}, {"routing_key": "a.*", "arguments": {}}, {"routing_key": "b b", "arguments": {"x-note": 1}}):
        answer = api("POST", between, said)
        assert answer.status == 201
        assert answer.headers["location"]
    api("POST", f"/bindings/%2F/e/{source}/e/{target}", {"routing_key": "x"})
    found = {one["properties_key"]: one for one in api.get(between)}
    with_arguments = next(key for key in found if key.startswith("b+b~"))
    assert set(found) == {"~", "a.%2A", with_arguments}
    assert found[with_arguments]["arguments"] == {"x-note": 1}
    assert api.get(f"{between}/{name('a.*')}") == found["a.%2A"]
    listed = api.get(f"/exchanges/%2F/{source}/bindings/source")
    assert {(one["destination"], one["destination_type"], one["routing_key"]) for one in listed} == {
        (queue, "queue", ""),
        (queue, "queue", "a.*"),
        (queue, "queue", "b b"),
        (target, "exchange", "x"),
    }
    (onward,) = api.get(f"/exchanges/%2F/{target}/bindings/destination")
    assert (onward["source"], onward["destination"], onward["properties_key"]) == (source, target, "x")
    assert {one["source"] for one in api.get("/bindings")} >= {"", source}
    assert {one["source"] for one in api.get("/bindings/%2F")} >= {"", source}
    for key in ("~", name("a.*"), name(with_arguments)):
        assert api("DELETE", f"{between}/{key}").status == 204
    assert api.get(between) == []
    assert api.refused("DELETE", f"{between}/{name('a.*')}")[0] == 404
    assert api.refused("DELETE", f"/exchanges/%2F/{source}", if_unused="true") == (
        400,
        f"exchange '{source}' in vhost '/' in use",
    )


@ours_only
def test_a_properties_key_may_be_quoted_once_more(api: Api) -> None:
    """So do tools that take it from a list and quote it for the path."""
    queue, exchange = api.queue(), api.exchange()
    between = f"/bindings/%2F/e/{exchange}/q/{queue}"
    for key in ("a.*", "b b", "100%", "a~b"):
        api("POST", between, {"routing_key": key, "arguments": {"x-note": 1}})
        (found,) = api.get(between)
        assert api.get(f"{between}/{name(found['properties_key'])}") == found
        api("DELETE", f"{between}/{name(found['properties_key'])}")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("e/none/q/{queue}", "no exchange 'none' in vhost '/'"),
        ("e/{exchange}/q/none", "no queue 'none' in vhost '/'"),
        ("e/{exchange}/e/none", "no exchange 'none' in vhost '/'"),
    ],
)
def test_what_is_not_there_cannot_be_bound(api: Api, path: str, reason: str) -> None:
    filled = path.format(queue=api.queue(), exchange=api.exchange())
    assert api.refused("POST", f"/bindings/%2F/{filled}", {}) == (404, reason)


@ours_only
def test_a_stream_is_bound_like_a_queue(api: Api) -> None:
    stream, exchange = unique("stream"), api.exchange("fanout")
    api("PUT", f"/queues/%2F/{stream}", {"durable": True, "arguments": {"x-queue-type": "stream"}})
    api("POST", f"/bindings/%2F/e/{exchange}/q/{stream}", {})
    (found,) = api.get(f"/exchanges/%2F/{exchange}/bindings/source")
    assert (found["destination"], found["destination_type"]) == (stream, "queue")
    assert api.publish(exchange, "")
    assert api.get(f"/queues/%2F/{stream}")["messages"] == 1
    assert len(api.get(f"/queues/%2F/{stream}/bindings")) == 2


# -- virtual hosts -----------------------------------------------------------------------------------------------------


def test_a_virtual_host_has_its_own(api: Api) -> None:
    vhost = unique("v")
    assert api("PUT", f"/vhosts/{vhost}", {"description": "for tests"}).status == 201
    assert api("PUT", f"/vhosts/{vhost}").status == 204
    queue, exchange = api.queue(vhost), api.exchange(vhost=vhost)
    api("POST", f"/bindings/{vhost}/e/{exchange}/q/{queue}", {"routing_key": "k"})
    assert api.publish(exchange, "k", vhost=vhost)
    assert api.publish("amq.default", queue, vhost=vhost)
    got: dict[str, Any] = {"count": 9, "ackmode": "ack_requeue_false", "encoding": "auto"}
    messages = api("POST", f"/queues/{vhost}/{queue}/get", got).json
    assert [(each["exchange"], each["routing_key"]) for each in messages] == [(exchange, "k"), ("", queue)]
    assert [item["name"] for item in api.get(f"/queues/{vhost}")] == [queue]
    assert queue not in {item["name"] for item in api.get("/queues/%2F")}
    assert {item["name"] for item in api.get(f"/exchanges/{vhost}")} >= {"", "amq.topic", exchange}
    assert vhost in {item["name"] for item in api.get("/vhosts")}
    assert api.get(f"/vhosts/{vhost}")["name"] == vhost
    assert {one["user"] for one in api.get(f"/vhosts/{vhost}/permissions")} == {"guest"}
    assert api("DELETE", f"/vhosts/{vhost}").status == 204
    for path in (f"/vhosts/{vhost}", f"/queues/{vhost}", f"/queues/{vhost}/{queue}", f"/exchanges/{vhost}/{exchange}"):
        assert api.refused("GET", path)[0] == 404
    assert api.refused("DELETE", f"/vhosts/{vhost}")[0] == 404


@ours_only
def test_what_is_known_of_a_virtual_host_is_kept(api: Api) -> None:
    vhost = unique("v")
    api("PUT", f"/vhosts/{vhost}", {"description": "for tests", "tags": "a,b", "default_queue_type": "quorum"})
    shown = api.get(f"/vhosts/{vhost}")
    assert (shown["description"], shown["tags"], shown["default_queue_type"]) == ("for tests", ["a", "b"], "quorum")
    assert api.refused("PUT", f"/vhosts/{name('a/b')}")[0] == 400
    assert api.refused("DELETE", "/vhosts/%2F")[0] == 401


def test_limits_of_a_virtual_host_are_kept(api: Api) -> None:
    vhost = unique("v")
    api("PUT", f"/vhosts/{vhost}")
    assert api("PUT", f"/vhost-limits/{vhost}/max-queues", {"value": 1}).status == 204
    assert api.get(f"/vhost-limits/{vhost}") == [{"vhost": vhost, "value": {"max-queues": 1}}]
    assert {"vhost": vhost, "value": {"max-queues": 1}} in api.get("/vhost-limits")
    api.queue(vhost)
    status, reason = api.refused("PUT", f"/queues/{vhost}/one-more", {"durable": True})
    assert (status, "limit" in reason) == (400, True)
    assert api("DELETE", f"/vhost-limits/{vhost}/max-queues").status == 204
    api.queue(vhost)
    assert api.refused("PUT", f"/vhost-limits/{vhost}/nonsense", {"value": 1})[0] == 400
    api("DELETE", f"/vhosts/{vhost}")
