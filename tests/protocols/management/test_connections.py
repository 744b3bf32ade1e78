"""RabbitMQ's management API: connections, channels and consumers of real clients; and who may call it."""

from __future__ import annotations

from typing import Any

import pika.exceptions
import pytest

from tests.protocols.http.kit import JSON, name
from tests.protocols.management.kit import Api, basic, ours_only
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for


def of_connection(api: Api, title: str) -> dict[str, Any]:
    """The connection with this name of its own, as soon as it is listed."""

    def look() -> dict[str, Any] | None:
        return next((one for one in api.get("/connections") if one.get("user_provided_name") == title), None)

    return wait_for(look, f"connection {title} is listed", every_s=0.1)


def test_a_connection_is_shown_and_closed(api: Api) -> None:
    title = unique("client")
    with api.connection(title=title) as connection:
        shown = of_connection(api, title)
        assert shown["name"].endswith(f" -> 127.0.0.1:{api.amqp_port}")
        wanted = {"vhost": "/", "user": "guest", "protocol": "AMQP 0-9-1", "peer_host": "127.0.0.1", "type": "network"}
        assert shown.items() >= {**wanted, "port": api.amqp_port, "ssl": False, "state": "running"}.items()
        assert shown["client_properties"]["connection_name"] == title
        path = f"/connections/{name(shown['name'])}"
        one = wait_for(lambda: api("GET", path, ok=False).json, "it is found by its name")
        assert one["name"] == shown["name"]
        assert shown["name"] in {each["name"] for each in api.get("/vhosts/%2F/connections")}
        assert api("DELETE", path).status == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(DEADLINE_S)
        assert (closed.value.reply_code, closed.value.reply_text) == (
            320,
            "CONNECTION_FORCED - Closed via management plugin",
        )
    wait_for(lambda: api("GET", path, ok=False).status == 404, "it is gone", every_s=0.1)
    assert api.refused("DELETE", "/connections/none")[0] == 404
    assert api.refused("GET", "/connections/none")[0] == 404


def test_channels_and_consumers_are_shown(api: Api) -> None:
    title, queue = unique("client"), api.queue()
    with api.connection(title=title) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=7)
        channel.confirm_delivery()
        tag = channel.basic_consume(queue, lambda *_: None)
        channel.basic_publish("", queue, b"x")
        shown = of_connection(api, title)

        def busy() -> dict[str, Any] | None:
            connection.process_data_events(0.05)
            path = f"/connections/{name(shown['name'])}/channels"
            return next((one for one in api.get(path) if one.get("messages_unacknowledged") == 1), None)

        one = wait_for(busy, "the channel holds a message", every_s=0.1)
        assert one["name"] == f"{shown['name']} (1)"
        wanted = {"number": 1, "vhost": "/", "user": "guest", "confirm": True, "transactional": False}
        assert one.items() >= {**wanted, "prefetch_count": 7, "consumer_count": 1, "state": "running"}.items()
        assert one["connection_details"]["name"] == shown["name"]
        assert one["message_stats"]["publish"] == 1
        assert one["name"] in {each["name"] for each in api.get("/channels")}
        assert one["name"] in {each["name"] for each in api.get("/vhosts/%2F/channels")}
        (of_channel,) = api.get(f"/channels/{name(one['name'])}")["consumer_details"]
        (of_queue,) = api.shown(queue, messages_unacknowledged=1, consumers=1)["consumer_details"]
        (listed,) = [each for each in api.get("/consumers/%2F") if each["queue"]["name"] == queue]
        assert listed in api.get("/consumers")
        for consumer in (of_channel, of_queue, listed):
            assert consumer["consumer_tag"] == tag
            assert (consumer["prefetch_count"], consumer["ack_required"], consumer["exclusive"]) == (7, True, False)
            assert consumer["channel_details"]["connection_name"] == shown["name"]
    assert api.refused("GET", "/channels/none")[0] == 404
    assert api.refused("GET", f"/consumers/{unique('nowhere')}")[0] == 404


def test_an_exclusive_queue_is_shown_but_not_exported(api: Api) -> None:
    queue = unique("mine")
    with api.connection() as connection:
        connection.channel().queue_declare(queue, exclusive=True)
        assert api.get(f"/queues/%2F/{queue}")["exclusive"] is True
        assert queue not in {one["name"] for one in api.get("/definitions/%2F")["queues"]}
        assert api.refused("DELETE", f"/queues/%2F/{queue}")[0] in (400, 405)
    wait_for(lambda: api("GET", f"/queues/%2F/{queue}", ok=False).status == 404, "it went with its connection")


def test_a_deleted_queue_cancels_its_consumers(api: Api) -> None:
    queue = api.queue()
    with api.connection() as connection:
        channel = connection.channel()
        cancelled: list[str] = []
        channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
        tag = channel.basic_consume(queue, lambda *_: None)
        api("DELETE", f"/queues/%2F/{queue}")

        def told() -> bool:
            connection.process_data_events(0.05)
            return cancelled == [tag]

        wait_for(told, "the consumer is told")


# -- who may call ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [basic("guest", "wrong"), basic("somebody", "guest")])
def test_a_wrong_password_is_refused(api: Api, headers: dict[str, str]) -> None:
    answer = api.http("GET", "/api/overview", headers=headers, ok=False)
    assert answer.status == 401
    assert answer.json["error"] == "not_authorized"


@ours_only
def test_nobody_needs_a_password_while_the_broker_asks_for_none(api: Api) -> None:
    assert api.http("GET", "/api/whoami").json["name"] == "guest"
    for said in ("Bearer x", "Basic ???", "Basic", "basic " + basic()["authorization"].partition(" ")[2] + "x"):
        answer = api.http("GET", "/api/whoami", headers={"authorization": said}, ok=False)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Basic")


@ours_only
def test_a_web_page_of_another_site_changes_nothing(api: Api) -> None:
    foreign = {"origin": "http://evil.example", **JSON}
    answer = api.http("PUT", f"/api/queues/%2F/{unique('q')}", {}, headers=foreign, ok=False)
    assert answer.status == 401
    answer = api.http("GET", "/api/aliveness-test/%2F", headers={"sec-fetch-site": "cross-site"}, ok=False)
    assert answer.status == 401


def test_what_is_not_offered_is_not_found(api: Api) -> None:
    assert api.refused("GET", "/nonsense")[0] == 404
    assert api.refused("PATCH", "/queues")[0] == 405
