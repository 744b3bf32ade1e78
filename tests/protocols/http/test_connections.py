"""Connections over HTTP: those of every protocol are shown with what they do, and can be closed."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pika
import pytest
from confluent_kafka import Consumer

import waystation
from tests.protocols.http.kit import Http, name
from tests.protocols.native.kit import JsonLines
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import WaystationError


def listed(http: Http, **query: Any) -> list[dict[str, Any]]:
    return list(http("GET", "/v1/connections", limit=1000, **query).json["connections"])


def of_client(http: Http, protocol: str, text: str) -> dict[str, Any]:
    """The only connection of a protocol that this text finds, as soon as it is listed."""
    (found,) = wait_for(lambda: listed(http, door=protocol, search=text), f"{text} is listed", every_s=0.05)
    return found


def gone(http: Http, title: str) -> bool:
    return http("GET", f"/v1/connections/{name(title)}", ok=False).status == 404


def test_a_kafka_client_is_shown_and_closed_and_comes_back(server: Server, http: Http, topic: str) -> None:
    client = unique("kafka-client")
    http("PUT", f"/v1/topics/{topic}", {"partitions": 1})
    options = {"bootstrap.servers": server.bootstrap, "group.id": unique("g"), "client.id": client}
    consumer = Consumer({**options, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])

        def fetching() -> dict[str, Any] | None:
            consumer.poll(0.1)
            found = listed(http, door="kafka", search=client)
            return next((one for one in found if "waits for records" in one["doing"]), None)

        shown = wait_for(fetching, "the consumer waits for records", every_s=0)
        assert shown["client"]["client_id"] == client
        assert shown["client"]["software"].startswith("confluent-kafka-python ")
        assert shown["name"] == f"kafka:127.0.0.1:{shown['peer'][1]}"
        assert shown["host"] == list(split_address(server.bootstrap))
        path = f"/v1/connections/{name(shown['name'])}"
        assert http("GET", path).json["since_ms"] == shown["since_ms"]
        assert http("DELETE", path, reason="enough").status == 204
        wait_for(lambda: gone(http, shown["name"]), "it is gone")
        http("POST", f"/v1/topics/{topic}/messages", {"payload": "still here"})
        message = wait_for(lambda: consumer.poll(0.5), "the consumer goes on over a new connection", every_s=0)
        assert message.value() == b"still here"
    finally:
        consumer.close()


def test_a_native_client_is_shown_with_what_it_consumes_and_is_told_why_it_is_closed(
    server: Server, http: Http, queue: str
) -> None:
    with JsonLines(server.bootstrap) as lines:
        mine = lines.ask("hello", client=unique("native"))["connection"]
        lines.ask("consume_queue", consumer=1, queue=queue, credit=1, prefetch=7)
        (shown,) = listed(http, door="native", search=queue)
        assert shown["name"] == mine
        assert shown["doing"] == f"consumes {queue}"
        ((consumer,),) = [channel["consumers"] for channel in shown["channels"]]
        assert (consumer["tag"], consumer["queue"], consumer["prefetch"]) == ("1", queue, 7)
        http("DELETE", f"/v1/connections/{mine}", reason="moving house")
        wait_for(lambda: gone(http, mine), "it is gone")
        assert lines.socket.recv(1) == b""
    assert http.refused("DELETE", f"/v1/connections/{mine}") == (404, "NotFound")


def test_a_client_of_ours_connects_again_when_it_is_closed(server: Server, http: Http, queue: str) -> None:
    title = unique("ours")
    with waystation.connect(f"waystation://{server.bootstrap}", name=title) as mq:
        work = mq.queue(queue)
        work.put("before")
        shown = of_client(http, "native", title)
        http("DELETE", f"/v1/connections/{shown['name']}")
        work.put("after")
        assert http.queue(queue)["ready"] == 2
        assert of_client(http, "native", title)["name"] != shown["name"]


def test_an_amqp_client_is_shown_and_closed(server: Server, http: Http, queue: str) -> None:
    host, port = split_address(server.addresses["amqp"])
    title = unique("amqp")
    parameters = pika.ConnectionParameters(host, port, client_properties={"connection_name": title})
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.basic_consume(queue, lambda *_: None)
    shown = of_client(http, "amqp", title)
    assert (shown["user"], shown["namespace"], shown["doing"]) == ("guest", "/", f"consumes {queue}")
    http("DELETE", f"/v1/connections/{name(shown['name'])}", reason="enough")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(30)
    assert closed.value.reply_text.endswith("enough")


def test_a_web_socket_and_a_connection_that_asks_are_shown(http: Http, queue: str) -> None:
    with http.socket(f"/v1/queues/{queue}/stream") as socket:
        wanted = "streams GET /v1/queues/{queue}/stream"
        found = [one for one in listed(http, door="http") if one["doing"] == wanted]
        local = socket.connection.local_address
        (shown,) = [one for one in found if one["peer"] == list(local)]
        assert shown["client"] == {"kind": "WebSocket"}
        http("DELETE", f"/v1/connections/{name(shown['name'])}", reason="good night")
        value = socket.receive()
        assert (value["kind"], value["problem"]["detail"]) == ("ceased", "good night")
    asking = [one for one in listed(http, door="http") if one["doing"] == "is answered GET /v1/connections"]
    assert len(asking) == 1


def test_a_request_that_asks_to_close_its_own_connection_is_still_answered(http: Http) -> None:
    (asking,) = [one for one in listed(http, door="http") if "/v1/connections" in one["doing"]]
    connection = http.connect()
    connection.connect()
    address = connection.sock.getsockname()
    own = f"http:{address[0]}:{address[1]}"
    assert own != asking["name"]
    connection.request("DELETE", f"/v1/connections/{name(own)}")
    response = connection.getresponse()
    assert response.status == 204
    assert response.headers["connection"] == "close"
    connection.close()


def test_connections_come_in_pages_and_by_protocol(server: Server, http: Http) -> None:
    clients = [JsonLines(server.bootstrap) for _ in range(12)]
    mine = unique("paged")
    try:
        for client in clients:
            client.ask("hello", client=mine)
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = http("GET", "/v1/connections", search=mine, limit=5, after=after).json
            assert page["total"] == 12
            assert page["by_door"]["native"] >= 12
            found += [one["name"] for one in page["connections"]]
            after = page["next"]
        assert found == sorted(found)
        assert len(set(found)) == 12
        assert http.refused("GET", "/v1/connections", door="window") == (400, "Invalid")
    finally:
        for client in clients:
            client.close()
    wait_for(lambda: not listed(http, search=mine), "they are gone")


def test_the_overview_of_rabbitmq_counts_amqp_alone(server: Server, http: Http) -> None:
    before = http("GET", "/api/overview").json["object_totals"]["connections"]
    with JsonLines(server.bootstrap) as lines:
        lines.ask("ping")
        assert http("GET", "/api/overview").json["object_totals"]["connections"] == before
        names = {one["name"] for one in http("GET", "/api/connections").json}
        assert not names & {one["name"] for one in listed(http, door="native")}


def test_a_client_in_the_brokers_own_process_cannot_be_closed() -> None:
    with waystation.open(":memory:") as mq:
        (mine,) = mq.view("connections")["connections"]
        assert (mine["door"], mine["client"]["kind"]) == ("native", "local")
        with pytest.raises(WaystationError, match="it stays"):
            mq.end_connection(mine["name"])
        mq.ping()


def test_clients_that_are_gone_at_once_are_not_counted(http: Http) -> None:
    host, port = split_address(http.address)
    reset = struct.pack("ii", 1, 0)  # closing it takes everything back, so that the broker cannot ask who it was
    for _ in range(200):
        with socket.create_connection((host, port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)

    def agreed() -> bool:
        found = http("GET", "/v1/connections", limit=1000).json
        return bool(found["by_door"]["http"] == sum(one["door"] == "http" for one in found["connections"]))

    wait_for(agreed, "as many are counted as are listed")
