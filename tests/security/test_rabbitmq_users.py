"""RabbitMQ's users and permissions: set by its management API, imported from its definitions, in force for its clients.

`data/rabbitmq-3.13-definitions.json` is in the format that RabbitMQ 3.13 exports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ChannelClosedByBroker, ProbableAccessDeniedError, ProbableAuthenticationError

from tests.protocols.http.kit import Answer, Http
from tests.protocols.management.kit import basic
from tests.security.users_kit import PASSWORDS, add_users
from tests.support.server import Server

DEFINITIONS = Path(__file__).parent / "data" / "rabbitmq-3.13-definitions.json"
APP, OLD_PASSWORD = "shop-app", "old-shop-password"


class Api:
    """The management API as one user calls it."""

    def __init__(self, server: Server, user: str = "admin", password: str = PASSWORDS["admin"]) -> None:
        self.http = Http(server.addresses["http"])
        self.headers = basic(user, password)

    def __call__(self, method: str, path: str, body: Any = None) -> Answer:
        return self.http(method, f"/api{path}", body, headers=self.headers, ok=False)


def connect(server: Server, user: str, password: str, vhost: str) -> BlockingConnection:
    port = int(server.addresses["amqp"].rpartition(":")[2])
    terms = pika.ConnectionParameters("127.0.0.1", port, vhost, pika.PlainCredentials(user, password))
    return BlockingConnection(terms)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("rabbitmq")
    add_users(folder / "data", {"admin": PASSWORDS["admin"]}, superusers=("admin",), rules=())
    with Server(folder, settings={"connection.failed.authentication.delay.ms": 1}) as started:
        assert Api(started)("POST", "/definitions", json.loads(DEFINITIONS.read_bytes())).status == 204
        yield started


def test_imported_users_log_in_with_their_old_passwords_and_have_their_permissions(server: Server) -> None:
    with connect(server, APP, OLD_PASSWORD, "shop") as connection:
        channel = connection.channel()
        channel.basic_publish("orders", "new", b"one")
        assert channel.basic_get("app-jobs", auto_ack=True)[2] == b"one"
        channel.queue_declare("app-mine")
        for refused in (
            lambda one: one.queue_declare("mine"),
            lambda one: one.basic_get("secret"),
            lambda one: one.queue_bind("secret", "orders", "#"),
        ):
            with pytest.raises(ChannelClosedByBroker) as caught:
                refused(connection.channel())  # type: ignore[no-untyped-call]
            assert caught.value.reply_code == 403
    with pytest.raises((ProbableAccessDeniedError, pika.exceptions.ConnectionClosedByBroker)):
        connect(server, APP, OLD_PASSWORD, "/")
    with pytest.raises((ProbableAuthenticationError, pika.exceptions.ConnectionClosedByBroker)):
        connect(server, APP, "wrong", "shop")


def test_what_was_imported_is_exported_again(server: Server) -> None:
    said = json.loads(DEFINITIONS.read_bytes())
    told = Api(server)("GET", "/definitions").json
    for user in said["users"]:
        assert user in told["users"]
    for permission in said["permissions"]:
        assert permission in told["permissions"]


def test_tags_say_what_of_the_api_a_user_has(server: Server) -> None:
    watcher = Api(server, "watcher", "old-watcher-password")
    assert watcher("GET", "/whoami").json == {"name": "watcher", "tags": ["monitoring"]}
    assert "password_hash" not in watcher("GET", "/users").json[0], "hashes are for who may change users"
    assert watcher("GET", "/definitions").status == 401
    assert watcher("PUT", "/users/mallory", {"password": "x", "tags": "administrator"}).status == 401
    app = Api(server, APP, OLD_PASSWORD)
    assert app("GET", "/users").status == 401
    assert [one["name"] for one in app("GET", "/vhosts").json] == ["shop"]
    assert [one["name"] for one in app("GET", "/queues").json if one["name"] == "secret"] == []
    boss = Api(server, "guest", "guest")
    assert boss("GET", "/whoami").json["tags"] == ["administrator"]
    assert boss("GET", "/users").status == 200


def test_users_and_permissions_are_made_changed_and_deleted(server: Server) -> None:
    api = Api(server)
    assert api("PUT", "/users/carol", {}).status == 400
    assert api("PUT", "/users/carol", {"password": "secret", "tags": "management"}).status == 201
    assert api("PUT", "/users/carol", {"password": "other", "tags": "management"}).status == 204
    assert [one["name"] for one in api("GET", "/users/without-permissions").json if one["name"] == "carol"] == ["carol"]
    assert api("GET", "/permissions/shop/carol").status == 404
    given = {"configure": "", "write": "", "read": "^app-jobs$"}
    assert api("PUT", "/permissions/shop/carol", {**given, "read": "("}).status == 400
    assert api("PUT", "/permissions/shop/nobody", given).status == 400
    assert api("PUT", "/permissions/shop/carol", given).status == 201
    assert api("PUT", "/permissions/shop/carol", given).status == 204
    assert api("GET", "/permissions/shop/carol").json == {"user": "carol", "vhost": "shop", **given}
    connection = connect(server, "carol", "other", "shop")
    got: list[bytes] = []
    cancelled: list[Any] = []
    channel = connection.channel()
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume("app-jobs", lambda *delivered: got.append(delivered[-1]))
    assert api("PUT", "/permissions/shop/carol", {**given, "read": "^another$"}).status == 204
    for _ in range(100):
        if cancelled:
            break
        connection.process_data_events(0.1)
    assert cancelled, "its consumer ends with its right to read"
    assert api("DELETE", "/permissions/shop/carol").status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="may not read namespace 'shop'"):
        connection.sleep(10)
    with pytest.raises((ProbableAccessDeniedError, pika.exceptions.ConnectionClosedByBroker)):
        connect(server, "carol", "other", "shop")
    assert api("PUT", "/permissions/shop/carol", given).status == 201
    assert api("POST", "/users/bulk-delete", {"users": ["carol"]}).status == 204
    assert api("DELETE", "/users/carol").status == 404
    api("PUT", "/users/carol", {"password": "other", "tags": ""})
    assert api("GET", "/permissions/shop/carol").status == 404, "a new one has nothing of the old one's"
    assert api("DELETE", "/users/carol").status == 204


def test_an_import_without_a_login_adds_all_users_although_the_first_one_closes_the_broker(tmp_path: Path) -> None:
    said = json.loads(DEFINITIONS.read_bytes())
    said["users"].append({"name": "root", "password": "root-password", "tags": ["administrator"]})
    with Server(tmp_path, settings={"connection.failed.authentication.delay.ms": 1}) as started:
        answer = Http(started.addresses["http"])("POST", "/api/definitions", said, ok=False)
        assert answer.status == 204, answer.json
        assert Http(started.addresses["http"])("GET", "/api/users", ok=False).status == 401
        told = Api(started, "root", "root-password")("GET", "/definitions").json
        assert {one["name"] for one in said["users"]} == {one["name"] for one in told["users"]}
        for permission in said["permissions"]:
            assert permission in told["permissions"]
        assert {one["name"] for one in said["queues"]} <= {one["name"] for one in told["queues"]}
        with connect(started, APP, OLD_PASSWORD, "shop") as connection:
            connection.channel().basic_publish("orders", "new", b"one")
