"""Native and HTTP clients in a namespace, by their user or by the listener: plain names, and nothing from outside."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from websockets.sync.client import connect

import waystation as ws
from tests.protocols.native.kit import JsonLines
from tests.security.users_kit import PASSWORDS, add_users
from tests.security.users_kit import waystation as command
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import NotAllowed, NotFound
from waystation.security.rules import RESOURCES, Rule

RULES = [
    *(Rule("User:alice", "all", resource, "*", namespace="shop") for resource in RESOURCES if resource != "namespace"),
    Rule("User:alice", "read", "namespace", "shop"),
    *(Rule("User:bob", "all", resource, "*", namespace="lab") for resource in RESOURCES if resource != "namespace"),
    Rule("User:bob", "read", "namespace", "lab"),
]
LISTENERS = "tenant=kafka://127.0.0.1:0?namespace=shop web=http://127.0.0.1:0?namespace=shop"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("namespaces")
    add_users(folder / "data", {"admin": PASSWORDS["admin"]}, superusers=("admin",), rules=RULES)
    for user, home in (("alice", "shop"), ("bob", "lab")):
        more = ("--namespace", home, "--password-stdin", "--data", str(folder / "data"))
        command("users", "add", user, *more, stdin=f"{PASSWORDS[user]}\n")
    with Server(folder, arguments=["--listeners", LISTENERS]) as running:
        for name in ("shop", "lab"):
            command("namespaces", "create", name, "--server", address(running, "admin"))
        yield running


def address(server: Server, user: str, listener: str = "kafka") -> str:
    password = quote(PASSWORDS[user.partition("@")[0]], safe="")
    return f"waystation://{quote(user)}:{password}@{server.addresses[listener]}"


@pytest.fixture
def alice(server: Server) -> Iterator[ws.Client]:
    with ws.connect(address(server, "alice")) as mq:
        yield mq


@pytest.fixture
def admin(server: Server) -> Iterator[ws.Client]:
    """Outside, with full names."""
    with ws.connect(address(server, "admin")) as mq:
        yield mq


class Http:
    def __init__(self, server: Server, user: str, listener: str = "http") -> None:
        self.session = requests.Session()
        self.session.auth = (user.encode(), PASSWORDS[user.partition("@")[0]].encode())  # type: ignore[assignment]
        self.base = f"http://{server.addresses[listener]}"

    def __call__(self, method: str, path: str, body: Any = None, status: int = 200, **query: Any) -> Any:
        answer = self.session.request(method, f"{self.base}{path}", json=body, params=query, timeout=20)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None


def test_clients_that_log_in_count_for_the_limit_of_their_namespace_until_they_leave(
    server: Server, admin: ws.Client
) -> None:
    admin.act("set-namespace", namespace="tiny", max_connections=2)

    def counted() -> int:
        return int(admin.view("namespace", namespace="tiny")["connections"])

    kafka = {"bootstrap.servers": server.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    login = {"sasl.username": "admin@tiny", "sasl.password": PASSWORDS["admin"]}
    client = Producer({**kafka, **login})
    client.list_topics(timeout=20)
    wait_for(lambda: counted() == 1, "the Kafka client is counted")
    with ws.connect(address(server, "admin@tiny")):
        assert counted() == 2
        with pytest.raises(NotAllowed, match="namespace 'tiny' has 2 connections; its limit is 2"):
            ws.connect(address(server, "admin@tiny")).ping()
    wait_for(lambda: counted() == 1, "the native client is counted no more")
    del client
    wait_for(lambda: counted() == 0, "nor is the Kafka client")


# -- native ------------------------------------------------------------------------------------------------------------


def test_a_queue_has_its_plain_name_inside_and_the_full_one_outside(alice: ws.Client, admin: ws.Client) -> None:
    name = unique("jobs")
    jobs = alice.queue(name, max_deliveries=1, dead_letter=f"{name}.dead")
    assert jobs.put("one") == f"{name}#0"
    assert [info.queue for info in alice.queues(name)] == [name]
    assert f"shop/{name}" in [info.queue for info in admin.queues("shop/")]
    assert admin.queue(f"shop/{name}", passive=True).describe().settings.dead_letter == f"shop/{name}.dead"
    assert jobs.describe().settings.dead_letter == f"{name}.dead"
    found = alice.find(f"{name}#0")
    assert found is not None
    assert (found.place, found.text()) == (f"queue:{name}", "one")
    with jobs.get(timeout=20) as message:
        assert (message.queue, message.text()) == (name, "one")
        message.reject("no")
    dead = alice.queue(f"{name}.dead").get(timeout=20)
    assert dead.deaths[0]["queue"] == name
    dead.release()
    wait_for(lambda: alice.queue(f"{name}.dead").redrive().moved == 1, "it goes back to where it was")
    assert jobs.get(timeout=20).text() == "one"


def test_topics_are_published_and_subscribed_by_plain_names(alice: ws.Client, admin: ws.Client) -> None:
    topic, group = unique("news"), unique("readers")
    places = alice.publish(f"{topic}.eu", "hello").places
    assert places[0][0] == f"{topic}.eu"
    assert [info.topic for info in alice.topics(f"{topic}.#")] == [f"{topic}.eu"]
    assert admin.describe_topic(f"shop.{topic}.eu").topic == f"shop.{topic}.eu"
    for pattern, regex in ((f"{topic}.*", False), (f"{topic}\\.(eu|us)", True)):
        reader = alice.subscribe(pattern, mode="shared", group=unique("g"), start="earliest", regex=regex)
        message = reader.get_message(20)
        assert message is not None
        assert (message.topic, message.text()) == (f"{topic}.eu", "hello")
        message.ack()
        reader.close()
    with alice.subscribe(f"{topic}.eu", mode="shared", group=group, start="earliest", max_deliveries=1) as failing:
        first = failing.get_message(20)
        assert first is not None
        first.reject("broken")
        dead = alice.queue(f"{topic}.eu.{group}.dead").get(timeout=20)
        assert dead.text() == "hello"
        dead.ack()
    groups = [row["group"] for row in alice.view("groups", search=group)["groups"]]
    assert groups == [group]
    assert alice.view("group", group=group)["group"] == group


def test_routing_and_transactions_stay_inside(alice: ws.Client, admin: ws.Client) -> None:
    queue, exchange = unique("q"), unique("x")
    alice.queue(queue)
    routes = alice.exchange(exchange, "topic")
    routes.bind(f"queue:{queue}", "a.#")
    assert routes.route("x", routing_key="a.b") == [f"queue:{queue}"]
    assert routes.publish("by exchange", routing_key="a.b").queues == [queue]
    assert (exchange, f"queue:{queue}", "a.#", {}) in alice.routing().bindings
    with alice.transaction(unique("tx")) as tx:
        tx.put(queue, "in a transaction")
    assert [one.text() for one in alice.queue(queue).get_many(2, timeout=20)] == ["by exchange", "in a transaction"]
    assert f"shop/{exchange}" in [name for name, _, _ in admin.routing().exchanges]


def test_what_is_outside_is_neither_seen_nor_reached(alice: ws.Client, admin: ws.Client) -> None:
    queue, topic = unique("other"), unique("other")
    admin.queue(queue).put("secret", id=f"{queue}-id")
    admin.queue(f"lab/{queue}").put("secret")
    admin.publish(topic, "secret")
    for name in (queue, f"lab/{queue}", f"/{queue}", f"../{queue}"):
        with pytest.raises(NotFound) as caught:
            alice.queue(name, passive=True)
        assert "lab" not in str(caught.value).replace(repr(name), "")
    assert alice.find(f"{queue}-id") is None
    assert not {queue, f"lab/{queue}"} & {info.queue for info in alice.queues()}
    assert topic not in {info.topic for info in alice.topics()}
    with pytest.raises(NotFound):
        alice.describe_topic(topic)
    with pytest.raises(NotAllowed):
        alice.view("overview")


def test_a_reply_finds_who_has_asked(alice: ws.Client) -> None:
    name = unique("answers")

    @alice.respond(name)
    def double(message: ws.Message) -> int:
        return 2 * int(message.json())

    assert alice.request(name, 21, timeout=20).json() == 42


def test_json_lines_speak_plain_names_too(server: Server) -> None:
    with JsonLines(server.bootstrap) as lines:
        lines.ask("hello", user="alice", password=PASSWORDS["alice"])
        queue, topic = unique("q"), unique("t")
        lines.ask("declare_queue", queue=queue)
        lines.ask("put", queue=queue, message={"payload": "hello"})
        lines.ask("consume_queue", consumer=1, queue=queue, credit=1)
        pushed = lines.line()
        assert (pushed["messages"][0]["queue"], pushed["messages"][0]["id"]) == (queue, f"{queue}#0")
        answer = lines.try_ask("publish", message={"topic": topic, "payload": "x", "type": "text"})
        assert answer["topic"] == topic


def test_a_user_may_enter_only_where_rules_let_it(server: Server) -> None:
    for user in ("alice@lab", "bob@shop", "alice@nowhere"):
        with pytest.raises(ws.errors.WaystationError):
            ws.connect(address(server, user)).queue(unique("q"))
    with ws.connect(address(server, "admin@lab")) as mq:
        name = unique("q")
        mq.queue(name)
        assert mq.queue(name).describe().queue == name


def test_deleting_the_namespace_ends_its_native_connections(server: Server, admin: ws.Client) -> None:
    name = unique("gone")
    admin.act("set-namespace", namespace=name)
    with ws.connect(address(server, f"admin@{name}"), name="tenant") as mq:
        mq.queue("q")
        rows = [row for row in admin.view("connections", door="native")["connections"] if row["namespace"] == name]
        assert len(rows) == 1
        admin.act("delete-namespace", namespace=name)
        with pytest.raises(ws.errors.WaystationError):
            mq.queue("q", passive=True)


# -- HTTP --------------------------------------------------------------------------------------------------------------


def test_http_has_plain_names_in_paths_bodies_and_answers(server: Server, admin: ws.Client) -> None:
    alice, queue, topic, exchange = Http(server, "alice"), unique("q"), unique("t"), unique("x")
    made = alice("PUT", f"/v1/queues/{queue}", {"dead_letter": f"{queue}.dead"}, status=201)
    assert (made["queue"], made["settings"]["dead_letter"]) == (queue, f"{queue}.dead")
    stored = alice("POST", f"/v1/queues/{queue}/messages", {"payload": "shop/x", "headers": {"queue": "shop/y"}}, 201)
    assert stored["ids"] == [f"{queue}#0"]
    (message,) = alice("GET", f"/v1/queues/{queue}/peek")["messages"]
    assert (message["payload"], message["headers"], message["queue"]) == ("shop/x", {"queue": "shop/y"}, queue)
    assert alice("GET", f"/v1/queues/{queue}/messages/{queue}%230")["place"] == f"queue:{queue}"
    (taken,) = alice("POST", f"/v1/queues/{queue}/take")["messages"]
    alice("POST", "/v1/ack", {"ack_ids": [taken["ack_id"]]})
    assert alice("POST", f"/v1/topics/{topic}/messages", {"payload": "x"}, 201)["places"][0]["topic"] == topic
    assert alice("GET", f"/v1/topics/{topic}")["topic"] == topic
    (read,) = alice("GET", f"/v1/topics/{topic}/messages", partition=0)["messages"]
    assert (read["source"], read["id"]) == (topic, f"{topic}-0@0")
    assert alice("GET", f"/v1/messages/{topic}-0@0")["place"] == f"topic:{topic}"
    alice("PUT", f"/v1/exchanges/{exchange}", {"kind": "fanout"}, 201)
    alice("POST", f"/v1/exchanges/{exchange}/bindings", {"target": f"queue:{queue}"}, 201)
    assert alice("GET", f"/v1/exchanges/{exchange}")["bindings"][0]["target"] == f"queue:{queue}"
    assert alice("POST", f"/v1/exchanges/{exchange}/messages", {"payload": "y"}, 201)["queues"] == [queue]
    assert [row["queue"] for row in alice("GET", "/v1/queues", search=queue)["queues"]] == [queue]
    page = alice("GET", "/v1/topics", limit=1)
    assert alice("GET", "/v1/topics", limit=1, after=page["topics"][0]["topic"])["topics"] != page["topics"]
    assert f"shop/{queue}" in [info.queue for info in admin.queues("shop/")]
    refused = alice("GET", f"/v1/queues/lab%2F{queue}", status=404)
    assert "shop/" not in refused["detail"]


def test_streams_show_plain_names(server: Server) -> None:
    alice, topic = Http(server, "alice"), unique("t")
    alice("POST", f"/v1/topics/{topic}/messages", {"payload": "x"}, 201)
    path = f"ws://{server.addresses['http']}/v1/subscriptions/stream?topic={topic}&history=1"
    login = base64.b64encode(f"alice:{PASSWORDS['alice']}".encode()).decode()
    with connect(path, additional_headers={"authorization": f"Basic {login}"}) as socket:
        (message,) = json.loads(socket.recv(20))["messages"]
        assert (message["source"], message["id"]) == (topic, f"{topic}-0@0")


def test_what_is_delayed_in_the_namespace_is_listed_and_nothing_else(server: Server, admin: ws.Client) -> None:
    queue, topic, hour = unique("late"), unique("late"), 3600
    admin.act("set-namespace", namespace="shop.eu")
    for full in (f"shop/{queue}", f"lab/{queue}", queue):
        for _ in range(2):
            admin.queue(full).put("x", delay=hour)
    for full in (f"shop.{topic}", f"lab.{topic}", f"shop.eu.{topic}", topic):
        admin.create_topic(full)
        admin.publish(full, "x", delay=hour)
    alice = Http(server, "alice")
    there = alice("GET", "/v1/delayed", search="late")
    assert there["queues"] == [{"queue": queue, "messages": 2}]
    assert (there["messages"], there["to_topics"], there["total"], there["next"]) == ([], None, 1, None)
    more = unique("later")
    admin.queue(f"shop/{more}").put("x", delay=hour)
    page = alice("GET", "/v1/delayed", search="late", limit=1)
    behind = alice("GET", "/v1/delayed", search="late", limit=1, after=page["next"])
    assert [row["queue"] for row in (*page["queues"], *behind["queues"])] == sorted([queue, more])
    for path in ("/v1/delayed", "/v1/queues"):  # by its plain name, too; and a search looks at plain names
        rows = alice("GET", path, search="late", after=min(queue, more))["queues"]
        assert [row["queue"] for row in rows if row["queue"] in (queue, more)] == [max(queue, more)]
        assert alice("GET", path, search="shop")["queues"] == []
    (first,) = alice("GET", "/v1/delayed", queue=queue, limit=1)["messages"]
    behind = alice("GET", "/v1/delayed", queue=queue, after=f"{first['due_ms']}-{first['tag']}")
    assert len(behind["messages"]) == 1, "which is no name"
    assert behind["to_topics"] is None
    assert [row["queue"] for row in alice("GET", "/v1/delayed", queue=queue)["messages"]] == [queue] * 2
    queries: tuple[dict[str, Any], ...] = ({"topics": "true"}, {"topic": topic})
    for query in queries:
        to_topics = alice("GET", "/v1/delayed", **query)
        assert [row["topic"] for row in to_topics["messages"]] == [topic]
        assert to_topics["total"] in (None, 1)
    (waiting,) = alice("GET", "/v1/delayed", topic=topic)["messages"]
    alice("DELETE", f"/v1/delayed/topics/{topic}/{quote(waiting['id'], safe='')}", status=204)
    assert alice("GET", "/v1/delayed", topic=topic)["messages"] == []
    for prefix in ("", "lab/", f"shop/{queue}"):  # it is one of its own names
        rows = alice("GET", "/v1/delayed", prefix=prefix)["queues"]
        assert prefix != "" or queue in [row["queue"] for row in rows]
        assert prefix == "" or rows == []
    rows = Http(server, "admin")("GET", "/v1/delayed", search="late")["queues"]
    assert {f"shop/{queue}", f"lab/{queue}", queue} <= {row["queue"] for row in rows}


def test_a_prefix_shows_nobody_what_it_may_not_see(server: Server) -> None:
    bob = Http(server, "bob@/", "http")
    assert bob("GET", "/v1/delayed", status=403)["error"] == "NotAllowed"
    for prefix in ("shop/", "s"):
        there = bob("GET", "/v1/delayed", prefix=prefix)
        assert (there["queues"], there["to_topics"]) == ([], None)
    refused: tuple[dict[str, Any], ...] = ({}, {"prefix": "shop/"}, {"topic_prefix": "shop."})
    for query in refused:
        assert bob("GET", "/v1/delayed", **query, topics="true", status=403)["error"] == "NotAllowed"


def test_a_request_from_who_may_not_enter_is_refused(server: Server) -> None:
    assert Http(server, "bob@shop")("GET", "/v1/queues", status=403)["error"] == "NotAllowed"
    assert Http(server, "admin@nowhere")("GET", "/v1/queues", status=404)["error"] == "NotFound"


def test_a_header_says_in_which_namespace_a_request_is(server: Server, alice: ws.Client, admin: ws.Client) -> None:
    queue = unique("q")
    alice.queue(queue).put("hello")
    admin.queue(f"lab/{queue}")
    http = Http(server, "admin")
    assert http("GET", f"/v1/queues/{queue}", status=404)["error"] == "NotFound"
    for namespace, ready in (("shop", 1), ("lab", 0)):
        http.session.headers["Waystation-Namespace"] = namespace
        assert http("GET", f"/v1/queues/{queue}")["ready"] == ready
    http.session.headers["Waystation-Namespace"] = "/"
    assert http("GET", f"/v1/queues/{quote(f'shop/{queue}', safe='')}")["ready"] == 1


def test_the_header_wins_over_the_login_name_and_an_ack_needs_that_of_its_take(
    server: Server, alice: ws.Client, admin: ws.Client
) -> None:
    queue = unique("q")
    alice.queue(queue).put("hello")
    admin.queue(f"lab/{queue}")
    shop, lab = ({"Waystation-Namespace": name} for name in ("shop", "lab"))
    http = Http(server, "admin@lab")
    assert http("GET", f"/v1/queues/{queue}")["ready"] == 0
    http.session.headers.update(shop)
    assert http("GET", f"/v1/queues/{queue}")["ready"] == 1
    (message,) = http("POST", f"/v1/queues/{queue}/take")["messages"]
    body = {"ack_ids": [message["ack_id"]]}
    http.session.headers.update(lab)
    assert "in flight any more" in http("POST", "/v1/ack", body, status=409)["detail"]
    http.session.headers.update(shop)
    assert http("POST", "/v1/ack", body)["settled"] == 1


def test_a_header_lets_nobody_into_a_namespace_that_it_may_not_enter(server: Server) -> None:
    for user, wanted, status, error in (
        ("bob", "shop", 403, "NotAllowed"),
        ("alice", "lab", 403, "NotAllowed"),
        ("admin", "nowhere", 404, "NotFound"),
        ("alice", "nowhere", 403, "NotAllowed"),
    ):
        http = Http(server, user)
        http.session.headers["Waystation-Namespace"] = wanted
        assert http("GET", "/v1/queues", status=status)["error"] == error
    http = Http(server, "admin", "web")  # which is bound to another one
    http.session.headers["Waystation-Namespace"] = "lab"
    assert "'shop', not in 'lab'" in http("GET", "/v1/queues", status=403)["detail"]
    http.session.headers["Waystation-Namespace"] = "shop"
    assert http("GET", "/v1/queues")["queues"] is not None


# -- by the listener ---------------------------------------------------------------------------------------------------


def test_a_listener_puts_every_client_into_its_namespace(server: Server, alice: ws.Client) -> None:
    queue, topic = unique("q"), unique("t")
    with ws.connect(address(server, "admin", "tenant")) as mq:  # who is at home elsewhere
        mq.queue(queue).put("hello")
        mq.publish(topic, "hello")
    assert alice.queue(queue, passive=True).get(timeout=20).text() == "hello"
    assert Http(server, "admin", "web")("GET", f"/v1/topics/{topic}")["topic"] == topic
    terms = {
        "bootstrap.servers": server.addresses["tenant"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": PASSWORDS["admin"],
    }
    consumer = Consumer({**terms, "group.id": unique("g"), "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(30)
        assert message is not None
        assert (message.topic(), message.value()) == (topic, b"hello")
    finally:
        consumer.close()
    with pytest.raises(ws.errors.WaystationError):
        ws.connect(address(server, "bob", "tenant")).queue(queue)
    assert Http(server, "bob", "web")("GET", "/v1/queues", status=403)["error"] == "NotAllowed"


def test_rabbitmqs_api_is_confined_by_the_listener_too(server: Server, admin: ws.Client) -> None:
    queue = unique("q")
    for full in (f"shop/{queue}", f"lab/{queue}"):
        admin.queue(full)
    found = Http(server, "admin", "web")("GET", "/api/queues")
    assert {row["vhost"] for row in found} == {"shop"}


def test_without_users_a_listener_has_its_namespace_still(tmp_path: Path) -> None:
    with Server(tmp_path, arguments=["--listeners", LISTENERS]) as server:
        with pytest.raises(ws.errors.ConnectionLost):  # there is none of this name yet
            ws.connect(server.addresses["tenant"], timeout=2)
        assert requests.get(f"http://{server.addresses['web']}/v1/queues", timeout=20).status_code == 404
        requests.put(f"http://{server.addresses['http']}/v1/namespaces/shop", json={}, timeout=20).raise_for_status()
        with ws.connect(server.addresses["tenant"]) as mq:
            mq.queue("jobs").put("x")
        assert requests.get(f"http://{server.addresses['web']}/v1/queues/jobs", timeout=20).json()["queue"] == "jobs"
        producer = Producer({"bootstrap.servers": server.addresses["tenant"]})
        producer.produce("clicks", b"x")
        assert producer.flush(20) == 0
        topics = AdminClient({"bootstrap.servers": server.addresses["tenant"]}).list_topics(timeout=20).topics
        assert set(topics) == {"clicks"}
        with ws.connect(server.bootstrap) as mq:
            assert [info.queue for info in mq.queues()] == ["shop/jobs"]
            assert [info.topic for info in mq.topics()] == ["shop.clicks"]
