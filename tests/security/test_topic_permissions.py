"""RabbitMQ's topic permissions and limits of users: set by its management API, in force for every protocol, and part of
its definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from confluent_kafka.admin import AdminClient
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ConnectionClosedByBroker

import waystation
from tests.security.test_rabbitmq_users import Api, connect
from tests.security.users_kit import PASSWORDS, add_users
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import NotAllowed, WaystationError

BOB = PASSWORDS["bob"]
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
OWN_KEYS = {"exchange": "amq.topic", "write": "^{username}\\.", "read": "^({username}|public)\\."}
PATH = "/topic-permissions/%2F/bob"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    add_users(tmp_path / "data", {"admin": PASSWORDS["admin"], "bob": BOB}, superusers=("admin",), rules=())
    with Server(tmp_path, settings={"connection.failed.authentication.delay.ms": 1}) as started:
        assert Api(started)("PUT", "/permissions/%2F/bob", EVERYTHING).status == 201
        yield started


def bob(server: Server) -> BlockingConnection:
    return connect(server, "bob", BOB, "/")


def native(server: Server, user: str = "bob") -> str:
    return f"waystation://{user}:{PASSWORDS[user]}@{server.bootstrap}"


def test_a_user_publishes_and_binds_with_its_own_routing_keys(server: Server) -> None:
    api = Api(server)
    assert api("PUT", PATH, OWN_KEYS).status == 201
    assert api("PUT", PATH, OWN_KEYS).status == 204
    with bob(server) as connection:
        channel = connection.channel()
        channel.queue_declare("inbox")
        channel.confirm_delivery()
        channel.queue_bind("inbox", "amq.topic", "bob.#")
        channel.queue_bind("inbox", "amq.topic", "public.news")
        channel.basic_publish("amq.topic", "bob.orders", b"one")
        assert channel.basic_get("inbox", auto_ack=True)[2] == b"one"
        # Other exchanges, and exchanges of other kinds, are as before.
        channel.basic_publish("amq.fanout", "anything", b"two")
        channel.basic_publish("", "inbox", b"three")
        copy = pika.BasicProperties(headers={"CC": ["alice.orders"]})
        attempts: tuple[Callable[[Any], Any], ...] = (
            lambda one: one.basic_publish("amq.topic", "alice.orders", b"x"),
            lambda one: one.basic_publish("amq.topic", "bob.orders", b"x", copy),
            lambda one: one.queue_bind("inbox", "amq.topic", "alice.#"),
        )
        for refused in attempts:
            other = connection.channel()
            other.confirm_delivery()
            with pytest.raises(ChannelClosedByBroker, match=r"may not (write|read) with routing key 'alice"):
                refused(other)

    with waystation.connect(native(server)) as mq:
        exchange = mq.exchange("amq.topic", kind="topic", passive=True)
        exchange.publish("x", "bob.orders")
        with pytest.raises(NotAllowed, match=r"routing key 'alice\.orders'"):
            exchange.publish("x", "alice.orders")

    with connect(server, "admin", PASSWORDS["admin"], "/") as connection:  # superusers are not asked about
        connection.channel().basic_publish("amq.topic", "alice.orders", b"x")


def test_a_change_is_in_force_for_a_publisher_that_has_published(server: Server) -> None:
    api = Api(server)
    with bob(server) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "alice.orders", b"x")
        assert api("PUT", PATH, OWN_KEYS).status == 201
        with pytest.raises(ChannelClosedByBroker):
            channel.basic_publish("amq.topic", "alice.orders", b"x")
        assert api("DELETE", PATH).status == 204
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.topic", "alice.orders", b"x")


def test_they_are_listed_and_go_with_their_user(server: Server) -> None:
    api = Api(server)
    api("PUT", PATH, OWN_KEYS)
    shown = [{"user": "bob", "vhost": "/", **OWN_KEYS}]
    for path in (PATH, "/topic-permissions", "/users/bob/topic-permissions", "/vhosts/%2F/topic-permissions"):
        assert api("GET", path).json == shown
    assert api("PUT", PATH, {**OWN_KEYS, "write": "("}).status == 400
    assert api("PUT", "/topic-permissions/%2F/nobody", OWN_KEYS).status == 400
    assert api("PUT", "/topic-permissions/nowhere/bob", OWN_KEYS).status == 404
    assert api("DELETE", "/users/bob").status == 204
    assert api("GET", "/topic-permissions").json == []


def test_a_user_has_as_many_connections_and_channels_as_its_limits_say(server: Server) -> None:
    api = Api(server)
    for limit, value in (("max-connections", 2), ("max-channels", 1)):
        assert api("PUT", f"/user-limits/bob/{limit}", {"value": value}).status == 204
    assert api("GET", "/user-limits/bob").json == [{"user": "bob", "value": {"max-connections": 2, "max-channels": 1}}]
    assert api("GET", "/users/bob").json["limits"] == {"max-connections": 2, "max-channels": 1}
    with bob(server) as one, bob(server) as two:
        one.channel()
        with pytest.raises(ConnectionClosedByBroker, match="maximum allowed user limit"):
            two.channel()
        wait_for(lambda: len(api("GET", "/connections").json) == 1, "the connection is gone")
        three = bob(server)
        with pytest.raises(AMQPConnectionError):
            bob(server)
        with pytest.raises(WaystationError, match="which is its limit"):
            waystation.connect(native(server))
        kafka: dict[str, Any] = {
            "bootstrap.servers": server.bootstrap, "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN", "sasl.username": "bob", "sasl.password": BOB,
        }  # fmt: skip
        with pytest.raises(Exception, match=r"TRANSPORT|TIMED_OUT|timed out|Transport"):
            AdminClient(kafka).list_topics(timeout=2)
        three.close()
    assert api("DELETE", "/user-limits/bob/max-channels").status == 204
    assert api("PUT", "/user-limits/bob/max-connections", {"value": -1}).status == 204  # none
    assert api("GET", "/user-limits").json == []
    assert api("PUT", "/user-limits/bob/max-dreams", {"value": 1}).status == 400
    AdminClient(kafka).list_topics(timeout=10)


def test_definitions_have_both(server: Server, tmp_path: Path) -> None:
    api = Api(server)
    api("PUT", PATH, OWN_KEYS)
    api("PUT", "/user-limits/bob/max-connections", {"value": 3})
    exported = api("GET", "/definitions").json
    assert exported["topic_permissions"] == [{"user": "bob", "vhost": "/", **OWN_KEYS}]
    add_users(tmp_path / "other" / "data", {"admin": PASSWORDS["admin"]}, superusers=("admin",), rules=())
    with Server(tmp_path / "other") as other:
        there = Api(other)
        assert there("POST", "/definitions", exported).status == 204
        assert there("GET", "/topic-permissions").json == exported["topic_permissions"]
        assert there("GET", "/users/bob").json["limits"] == {"max-connections": 3}
        with bob(other) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(ChannelClosedByBroker):
                channel.basic_publish("amq.topic", "alice.orders", b"x")
