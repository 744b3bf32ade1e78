"""API keys: what they open and what not, by every protocol; that they are shown once, expire, and end at once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
import requests
from confluent_kafka import Consumer, Producer, TopicPartition
from pika.exceptions import AMQPError, ProbableAuthenticationError
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as websocket
from websockets.typing import Origin

import waystation
from tests.broker.kit import broker_on
from tests.cluster.in_process import until
from tests.security.users_kit import PASSWORDS, add_users
from tests.security.users_kit import waystation as command
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import Conflict, NotAllowed, NotAuthenticated, WaystationError
from waystation.security.api_keys import MOST_OF_ONE
from waystation.security.users import User

ADMIN = ("admin", PASSWORDS["admin"])
S = 20
DAY_MS = 24 * 3600 * 1000


def url(server: Server, path: str) -> str:
    return f"http://{server.addresses['http']}{path}"


def add_key(server: Server, user: str = "alice", **terms: Any) -> dict[str, Any]:
    answer = requests.post(url(server, "/v1/keys"), json={"user": user, **terms}, auth=ADMIN, timeout=S)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def remove_key(server: Server, key: dict[str, Any]) -> None:
    assert requests.delete(url(server, f"/v1/keys/{key['key']}"), auth=ADMIN, timeout=S).status_code == 204


def bearer(key: dict[str, Any] | str) -> dict[str, str]:
    return {"authorization": f"Bearer {key if isinstance(key, str) else key['secret']}"}


def native(server: Server, user: str, password: str) -> Any:
    return waystation.connect(f"waystation://{user}:{password}@{server.addresses['kafka']}")


def pika_connection(server: Server, user: str, password: str) -> pika.BlockingConnection:
    host, port = server.addresses["amqp"].rsplit(":", 1)
    return pika.BlockingConnection(
        pika.ConnectionParameters(host, int(port), credentials=pika.PlainCredentials(user, password))
    )


# -- what a key is -----------------------------------------------------------------------------------------------------


def test_a_key_is_shown_once_and_listed_by_its_beginning(closed: Server) -> None:
    made = add_key(closed, role="read-only", note="nightly")
    assert made["secret"].startswith(made["key"] + "_")
    assert abs(made["expires_ms"] - made["created_ms"] - 90 * DAY_MS) < 1000
    shown = requests.get(url(closed, "/v1/keys?limit=1000"), auth=ADMIN, timeout=S).text
    assert made["key"] in shown
    assert made["secret"] not in shown
    assert {
        "key": made["key"],
        "user": "alice",
        "role": "read-only",
        "note": "nightly",
        "expired": False,
    }.items() <= next(one for one in json.loads(shown)["keys"] if one["key"] == made["key"]).items()
    found = requests.get(url(closed, f"/v1/keys?search={made['key']}"), auth=ADMIN, timeout=S).json()
    assert found["total"] == 1
    remove_key(closed, made)
    assert made["key"] not in requests.get(url(closed, "/v1/keys?limit=1000"), auth=ADMIN, timeout=S).text


def test_nothing_on_the_disk_or_in_the_log_has_the_key(tmp_path: Path) -> None:
    add_users(tmp_path / "data", PASSWORDS, superusers=("admin",))
    with Server(tmp_path) as server:
        made = add_key(server)
        assert requests.get(url(server, "/v1/whoami"), headers=bearer(made), timeout=S).json()["user"] == "alice"
        assert requests.delete(url(server, f"/v1/keys/{made['secret']}"), auth=ADMIN, timeout=S).status_code == 204
        wait_for(lambda: "remove-key" in command_audit(server), "the change is in the audit log")
    secret = made["secret"].rpartition("_")[2].encode()
    looked = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(looked) > 3
    assert not [path for path in looked if secret in path.read_bytes()]


def command_audit(server: Server) -> str:
    return requests.get(url(server, "/v1/audit?limit=100"), auth=ADMIN, timeout=S).text


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"user": "nobody"}, "there is no user"),
        ({"role": "owner"}, "read-only"),
        ({"expires_in_ms": 0}, "a second at least"),
        ({"expires_in_ms": 11 * 365 * DAY_MS}, "ten years at most"),
        ({"note": "two\nlines"}, "one line"),
        ({"note": "x" * 201}, "one line"),
    ],
)
def test_a_key_that_cannot_be_is_refused(closed: Server, terms: dict[str, Any], why: str) -> None:
    answer = requests.post(url(closed, "/v1/keys"), json={"user": "alice", **terms}, auth=ADMIN, timeout=S)
    assert answer.status_code in (400, 404)
    assert why in answer.json()["detail"]


def test_a_user_has_no_more_keys_than_the_most_and_expired_ones_make_room(own_closed: Any) -> None:
    server = own_closed()
    first = add_key(server, "bob", expires_in_ms=1000)
    for _ in range(MOST_OF_ONE - 1):
        add_key(server, "bob")
    wait_for(lambda: time.time() * 1000 > first["expires_ms"], "it has expired")
    add_key(server, "bob")
    answer = requests.post(url(server, "/v1/keys"), json={"user": "bob"}, auth=ADMIN, timeout=S)
    assert answer.status_code in (409, 429, 507), answer.text
    assert "remove one first" in answer.json()["detail"]
    assert requests.get(url(server, "/v1/keys"), auth=ADMIN, timeout=S).json()["total"] == MOST_OF_ONE


def test_a_password_cannot_begin_as_a_key_does(closed: Server) -> None:
    body = {"user": unique("user"), "password": "wsk_secret"}
    answer = requests.post(url(closed, "/v1/users"), json=body, auth=ADMIN, timeout=S)
    assert answer.status_code == 400
    assert "API keys" in answer.json()["detail"]


# -- by every protocol -------------------------------------------------------------------------------------------------


def test_http_and_the_management_api_take_it_as_a_bearer_and_as_the_password(closed: Server) -> None:
    made = add_key(closed)
    for path in ("/v1/overview", "/api/overview"):
        assert requests.get(url(closed, path), headers=bearer(made), timeout=S).status_code == 200
        assert requests.get(url(closed, path), auth=("alice", made["secret"]), timeout=S).status_code == 200
        assert requests.get(url(closed, path), auth=("bob", made["secret"]), timeout=S).status_code == 401
    assert requests.get(url(closed, "/v1/whoami"), headers=bearer(made), timeout=S).json()["user"] == "alice"


@pytest.mark.parametrize(
    "spoil", [lambda key: key[:-1], lambda key: key + "a", lambda key: "wsk_", lambda key: key[:14]]
)
def test_what_is_not_the_whole_key_is_refused(closed: Server, spoil: Callable[[str], str]) -> None:
    made = add_key(closed)
    wrong = spoil(made["secret"])
    assert requests.get(url(closed, "/v1/overview"), headers=bearer(wrong), timeout=S).status_code == 401
    assert requests.get(url(closed, "/v1/overview"), auth=("alice", wrong), timeout=S).status_code == 401


def test_native_kafka_and_amqp_take_it_as_the_password(closed: Server) -> None:
    made = add_key(closed)
    with native(closed, "alice", made["secret"]) as mq:
        mq.queue(unique("queue")).put("x")
    with pytest.raises(NotAuthenticated):
        native(closed, "bob", made["secret"]).queue("any").put("x")
    pika_connection(closed, "alice", made["secret"]).close()
    with pytest.raises((ProbableAuthenticationError, AMQPError)):
        pika_connection(closed, "bob", made["secret"])
    producer = kafka_producer(closed, "alice", made["secret"])
    producer.produce(unique("topic"), b"x")
    assert producer.flush(S) == 0


def test_a_client_that_logs_in_by_a_key_chooses_its_namespace_as_with_a_password(own_closed: Any) -> None:
    server = own_closed()
    with native(server, *ADMIN) as mq:
        mq.act("set-namespace", namespace="shop")
    made, topic = add_key(server), unique("topic")
    producer = kafka_producer(server, "alice@shop", made["secret"])
    producer.produce(topic, b"x")
    assert producer.flush(S) == 0
    with native(server, *ADMIN) as mq:
        assert f"shop.{topic}" in {one.topic for one in mq.topics()}
    with pytest.raises(NotAuthenticated):
        native(server, "bob@shop", made["secret"]).queue("any").put("x")


def sasl(server: Server, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.addresses["kafka"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }


def kafka_producer(server: Server, user: str, password: str) -> Producer:
    return Producer({**sasl(server, user, password), "message.timeout.ms": S * 1000})


def test_json_lines_take_it_as_the_password(closed: Server) -> None:
    import socket

    made = add_key(closed)
    host, port = closed.addresses["kafka"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=S) as wire:
        hello = {"action": "hello", "id": 1, "user": "alice", "password": made["secret"]}
        wire.sendall(json.dumps(hello).encode() + b"\n")
        assert b'"error"' not in wire.recv(65536)


# -- roles -------------------------------------------------------------------------------------------------------------


def test_a_read_only_key_of_a_superuser_looks_and_changes_nothing(closed: Server) -> None:
    topic, queue = unique("topic"), unique("queue")
    with native(closed, *ADMIN) as mq:
        mq.create_topic(topic)
        mq.publish(topic, "seen")
        mq.queue(queue).put("kept")
    made = add_key(closed, "admin", role="read-only")
    session = requests.Session()
    session.headers.update(bearer(made))

    def asks(method: str, path: str, **sent: Any) -> int:
        return session.request(method, url(closed, path), timeout=S, **sent).status_code

    assert session.get(url(closed, "/v1/whoami"), timeout=S).json() == {
        "user": "admin",
        "superuser": False,
        "required": True,
    }
    for path in (
        "/v1/overview",
        "/v1/users",
        "/v1/keys",
        "/v1/acls",
        "/v1/settings",
        f"/v1/queues/{queue}",
        "/api/queues",
    ):
        assert asks("GET", path) == 200, path
    for method, path, body in [
        ("POST", "/v1/users", {"user": unique("user"), "password": "x"}),
        ("POST", "/v1/keys", {"user": "admin"}),
        ("DELETE", f"/v1/keys/{made['key']}", None),
        ("PUT", f"/v1/queues/{unique('queue')}", {}),
        ("POST", f"/v1/queues/{queue}/messages", {"payload": "x"}),
        ("POST", f"/v1/queues/{queue}/take", {}),
        ("DELETE", f"/v1/queues/{queue}", None),
        ("POST", f"/v1/topics/{topic}/messages", {"payload": "x"}),
        ("DELETE", f"/v1/topics/{topic}", None),
        ("PATCH", "/v1/settings", {"log.retention.ms": 1}),
    ]:
        assert asks(method, path, json=body) == 403, (method, path)
    with native(closed, "admin", made["secret"]) as mq, pytest.raises(NotAllowed):
        mq.queue(queue).put("x")
    assert "seen" in session.get(url(closed, f"/v1/topics/{topic}/messages"), timeout=S).text


def test_a_read_only_key_enters_namespaces_and_reads_there(own_closed: Any) -> None:
    server = own_closed()
    with native(server, *ADMIN) as mq:
        mq.act("set-namespace", namespace="shop")
        mq.create_topic("shop.orders")
        mq.publish("shop.orders", "seen")
        mq.queue("shop/jobs").put("kept")
    made = add_key(server, "admin", role="read-only")
    consumer = Consumer({**sasl(server, "admin@shop", made["secret"]), "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", 0, 0)])
    assert wait_for(lambda: consumer.poll(0.2), "the message").value() == b"seen"
    consumer.close()
    host, port = server.addresses["amqp"].rsplit(":", 1)
    at = {"virtual_host": "shop", "credentials": pika.PlainCredentials("admin", made["secret"])}
    with pika.BlockingConnection(pika.ConnectionParameters(host, int(port), **at)) as connection:
        assert connection.channel().queue_declare("jobs", passive=True).method.message_count == 1
        with pytest.raises(AMQPError):
            connection.channel().basic_get("jobs")


def test_a_key_may_not_do_what_its_owner_may_not(own_closed: Any) -> None:
    server = own_closed()
    rules: Any = {
        "acls": [{"principal": "User:bob", "operation": "all", "resource": "queue", "name": "*", "allow": False}]
    }
    assert requests.post(url(server, "/v1/acls"), json=rules, auth=ADMIN, timeout=S).ok
    for role in ("full", "read-only"):
        made = add_key(server, "bob", role=role)
        answer = requests.put(url(server, "/v1/queues/jobs"), json={}, headers=bearer(made), timeout=S)
        assert answer.status_code == 403


def session_of(server: Server, user: str, key: dict[str, Any]) -> requests.Session:
    """A browser that has logged in at the dashboard by a key."""
    session = requests.Session()
    body = {"user": user, "password": str(key["secret"])}
    assert session.post(url(server, "/v1/login"), json=body, timeout=S).status_code == 204
    return session


def test_a_session_that_began_with_a_read_only_key_changes_nothing_either(closed: Server) -> None:
    with session_of(closed, "admin", add_key(closed, "admin", role="read-only")) as session:
        who = session.get(url(closed, "/v1/whoami"), timeout=S).json()
        assert (who["user"], who["superuser"]) == ("admin", False)
        assert session.get(url(closed, "/v1/users"), timeout=S).status_code == 200
        name, page = unique("user"), {"x-requested-with": "test"}
        body: dict[str, Any] = {"user": name, "password": "x", "superuser": True}
        assert session.post(url(closed, "/v1/users"), json=body, headers=page, timeout=S).status_code == 403
        assert name not in session.get(url(closed, "/v1/users?limit=1000"), timeout=S).text


def test_a_session_ends_with_the_key_that_it_began_with(closed: Server) -> None:
    made = add_key(closed, expires_in_ms=1500)
    with session_of(closed, "alice", made) as session:
        assert session.get(url(closed, "/v1/overview"), timeout=S).status_code == 200
        wait_for(lambda: time.time() * 1000 > made["expires_ms"], "it has expired")
        assert session.get(url(closed, "/v1/overview"), timeout=S).status_code == 401
    revoked = add_key(closed)
    with session_of(closed, "alice", revoked) as session:
        socket = websocket(
            f"ws://{closed.addresses['http']}/v1/subscriptions/stream?topic={unique('news')}",
            origin=Origin(url(closed, "")),
            additional_headers={"cookie": "; ".join(f"{one.name}={one.value}" for one in session.cookies)},
        )
        remove_key(closed, revoked)
        await_close(socket)
        assert session.get(url(closed, "/v1/overview"), timeout=S).status_code == 401


# -- its end -----------------------------------------------------------------------------------------------------------


def await_close(socket: Any) -> None:
    """The broker says why, and closes it; TimeoutError if it does not."""
    try:
        while True:
            socket.recv(timeout=S)
    except ConnectionClosed:
        pass


class Ends:
    """Connections of every kind that have logged in by a key, and whether they are still there."""

    def __init__(self, server: Server, key: dict[str, Any]) -> None:
        self.server, self.key = server, key
        self.native = native(server, "alice", key["secret"])
        self.native.queue("any").put("x")
        self.amqp = pika_connection(server, "alice", key["secret"])
        self.channel = self.amqp.channel()
        self.socket = websocket(
            f"ws://{server.addresses['http']}/v1/subscriptions/stream?topic={unique('news')}",
            additional_headers=bearer(key),
        )
        self.events = requests.get(
            url(server, f"/v1/subscriptions/stream?topic={unique('news')}"),
            headers={**bearer(key), "x-requested-with": "test"},
            stream=True,
            timeout=S,
        )
        assert self.events.status_code == 200
        self.kafka = kafka_producer(server, "alice", key["secret"])
        self.kafka.produce(unique("topic"), b"x")
        assert self.kafka.flush(S) == 0

    def check_all_ended(self) -> None:
        await_close(self.socket)
        list(self.events.iter_lines())  # until the broker ends it
        with pytest.raises((AMQPError, OSError)):
            self.amqp.sleep(S)
        with pytest.raises(WaystationError):
            self.native.queue("any").put("x")
        self.kafka.produce("any", b"x")
        assert logged_in_by(self.server, self.key) == []

    def close(self) -> None:
        for one in (self.native, self.events, self.socket):
            one.close()
        self.kafka.purge()


def logged_in_by(server: Server, key: dict[str, Any]) -> list[str]:
    shown = requests.get(url(server, "/v1/connections?limit=1000"), auth=ADMIN, timeout=S).json()["connections"]
    return [one["name"] for one in shown if one["user"] == "alice"]


def test_removing_a_key_ends_all_that_has_logged_in_by_it_and_nothing_else(own_closed: Any) -> None:
    server = own_closed()
    made, other = add_key(server), add_key(server, "bob")
    with native(server, "bob", other["secret"]) as mq:
        mq.queue("others").put("x")
        ends = Ends(server, made)
        remove_key(server, made)
        ends.check_all_ended()
        assert requests.get(url(server, "/v1/overview"), headers=bearer(made), timeout=S).status_code == 401
        mq.queue("others").put("y")
    ends.close()
    assert requests.get(url(server, "/v1/overview"), headers=bearer(other), timeout=S).status_code == 200


def test_an_expired_key_ends_all_that_has_logged_in_by_it(own_closed: Any) -> None:
    server = own_closed()
    made = add_key(server, expires_in_ms=8000)
    ends = Ends(server, made)
    ends.check_all_ended()
    assert time.time() * 1000 >= made["expires_ms"]
    assert requests.get(url(server, "/v1/overview"), headers=bearer(made), timeout=S).status_code == 401
    ends.close()


def test_keys_go_with_their_owner_and_do_not_come_back_with_its_name(own_closed: Any) -> None:
    server = own_closed()
    made = add_key(server, "bob")
    assert requests.delete(url(server, "/v1/users/bob"), auth=ADMIN, timeout=S).ok
    assert requests.get(url(server, "/v1/overview"), headers=bearer(made), timeout=S).status_code == 401
    new = {"user": "bob", "password": "another"}
    assert requests.post(url(server, "/v1/users"), json=new, auth=ADMIN, timeout=S).ok
    assert requests.get(url(server, "/v1/overview"), headers=bearer(made), timeout=S).status_code == 401
    assert requests.get(url(server, "/v1/keys"), auth=ADMIN, timeout=S).json()["total"] == 0


def test_a_key_that_is_added_while_its_owner_is_removed_is_not_added(tmp_path: Path) -> None:
    """Or it would be a key of the next user of this name."""

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.users.add("bob", User())
            async with broker.api_keys._changes._turn:
                adding = asyncio.ensure_future(broker.api_keys.add("bob", "full", DAY_MS))
                await until(lambda: broker.api_keys._changes._under_way)
                await broker.users.remove("bob")
            with pytest.raises(Conflict):
                await adding
            assert broker.api_keys.listing() == []

    asyncio.run(main())


def test_an_amqp_client_does_not_go_on_with_another_key(closed: Server) -> None:
    """It may have another role, and its own end."""
    full, other = add_key(closed, expires_in_ms=60_000), add_key(closed, role="read-only")
    connection = pika_connection(closed, "alice", full["secret"])
    connection.update_secret(full["secret"], "the same")
    with pytest.raises(AMQPError):
        connection.update_secret(other["secret"], "another")
    assert connection.is_closed


# -- restarts, the command line, the audit log -------------------------------------------------------------------------


def test_the_command_line_adds_lists_and_removes_keys_on_a_folder_and_at_a_running_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    add_users(data, PASSWORDS, superusers=("admin",))
    at = ("--data", str(data))
    made = json.loads(command("keys", "add", "alice", "--note", "ci", "--json", *at).stdout)
    plain = command("keys", "add", "bob", "--role", "read-only", "--expires", "1h", *at)
    assert plain.stdout.startswith("wsk_")
    assert "not shown again" in plain.stderr
    assert "no user" in command("keys", "add", "nobody", *at, check=False).stderr
    listed = command("keys", "list", *at).stdout
    assert made["key"] in listed
    assert made["secret"] not in listed
    with Server(tmp_path) as server:
        assert requests.get(url(server, "/v1/whoami"), headers=bearer(made), timeout=S).json()["user"] == "alice"
        to = ("--server", f"waystation://admin:{PASSWORDS['admin']}@{server.addresses['kafka']}")
        more = json.loads(command("keys", "add", "alice", "--json", *to).stdout)
        assert {json.loads(one)["key"] for one in command("keys", "list", "--json", *to).stdout.splitlines()} >= {
            made["key"],
            more["key"],
        }
        assert "removed" in command("keys", "remove", more["key"], *to).stdout
        assert command("keys", "remove", more["key"], *to, check=False).returncode == 1
        assert requests.get(url(server, "/v1/overview"), headers=bearer(more), timeout=S).status_code == 401
    command("users", "remove", "alice", *at)
    assert made["key"] not in command("keys", "list", *at).stdout
    bobs = plain.stdout.strip()
    command("keys", "remove", bobs, *at)
    assert "no keys" in command("keys", "list", *at).stdout
    assert "there is no key" in command("keys", "remove", bobs, *at, check=False).stderr
    with sqlite3.connect(data / "catalog.sqlite") as catalog:
        assert catalog.execute("select count(*) from entries where key like '%api-key%'").fetchone() == (0,)


def test_the_audit_log_has_keys_added_used_refused_and_removed(own_closed: Any) -> None:
    server = own_closed()
    made = add_key(server)
    for _ in range(3):
        assert requests.get(url(server, "/v1/overview"), headers=bearer(made), timeout=S).ok
    assert requests.get(url(server, "/v1/overview"), headers=bearer(made["secret"] + "x"), timeout=S).status_code == 401
    remove_key(server, made)
    wait_for(lambda: "remove-key" in command_audit(server), "it is in the audit log")
    entries = requests.get(url(server, "/v1/audit?limit=100"), auth=ADMIN, timeout=S).json()["entries"]
    changes = [(one["operation"], one["name"], one["result"]) for one in entries if one["kind"] == "change"]
    assert ("add-key", "alice", "ok") in changes
    assert [one["detail"] for one in entries if one["operation"] == "remove-key"] == [f"key {made['key']}"]
    logins = [one for one in entries if one["kind"] == "login" and "key:" in json.dumps(one)]
    assert len(logins) == 1, "as with passwords, the first of those that HTTP repeats"
    assert any(one["kind"] == "login" and one["result"] != "ok" and "API-KEY" in json.dumps(one) for one in entries)
    assert made["secret"] not in json.dumps(entries)
