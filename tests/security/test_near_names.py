"""Errors that say what was perhaps meant (did you mean …?): only what the client may see, in its own namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pika
import pika.exceptions
import pytest
import requests
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, ResourceType
from requests.auth import HTTPBasicAuth

import waystation as ws
from tests.protocols.native.kit import JsonLines
from tests.security.users_kit import PASSWORDS, add_users
from tests.security.users_kit import waystation as command
from tests.support.server import Server
from waystation.errors import NotFound
from waystation.security.rules import RESOURCES, Rule

MISSING, SEEN, HIDDEN = "orders-2026-eu", "orders-2025-eu", "orders-2026-us"
"""What a client asks for, what it may see, and what is more like it, but not for this client."""
TENANTS = ("shop", "shop-eu")
RULES = [
    *(Rule("User:bob", "all", resource, name) for resource in RESOURCES for name in (MISSING, SEEN)),
    Rule("User:bob", "read", "namespace", "/"),
    *(Rule("User:alice", "all", resource, "*", namespace="shop") for resource in RESOURCES if resource != "namespace"),
    Rule("User:alice", "read", "namespace", "shop"),
    Rule("User:alice", "read", "namespace", "shop-uk"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Users: admin, bob outside of namespaces with rules for single names, alice in the namespace `shop`."""
    folder: Path = tmp_path_factory.mktemp("near")
    data = folder / "data"
    add_users(data, {name: PASSWORDS[name] for name in ("admin", "bob")}, superusers=("admin",), rules=RULES)
    more = ("--namespace", "shop", "--password-stdin", "--data", str(data))
    command("users", "add", "alice", *more, stdin=f"{PASSWORDS['alice']}\n")
    with Server(folder, settings={"auto.create.topics.enable": False}) as running:
        with ws.connect(address(running, "admin")) as admin:
            for name in TENANTS:
                admin.act("set-namespace", namespace=name)
            for queue in (SEEN, HIDDEN, f"shop/{SEEN}", f"shop-eu/{MISSING}", f"shop-eu/{HIDDEN}"):
                admin.queue(queue)
                admin.exchange(queue, "fanout")
            for topic in (SEEN, HIDDEN, f"shop.{SEEN}", f"shop-eu.{MISSING}", f"shop-eu.{HIDDEN}"):
                admin.create_topic(topic)
            for user, topic, inside in (
                ("admin", HIDDEN, HIDDEN),
                ("bob", SEEN, SEEN),
                ("alice", f"shop.{SEEN}", SEEN),
            ):
                with ws.connect(address(running, user)) as mq:
                    mq.commit_offsets(topic if user != "alice" else inside, [(inside, 0, 0)])
        yield running


def address(server: Server, user: str) -> str:
    password = quote(PASSWORDS[user.partition("@")[0]], safe="")
    return f"waystation://{quote(user)}:{password}@{server.bootstrap}"


def refused(call: Callable[[], object], error: type[Exception] = NotFound) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def check(text: str, kind: str = "") -> None:
    """What it names is `SEEN`, as the client calls it, and nothing else. `kind`: then it does name that; without one it
    names nothing, as the page of errors says."""
    assert HIDDEN not in text
    assert "shop" not in text.replace("in vhost 'shop'", "")
    if kind:
        assert f"there is no {kind} '{MISSING}'; did you mean '{SEEN}'?" in text
    else:
        assert "did you mean" not in text


@pytest.mark.parametrize("user", ["bob", "alice"])
def test_native_clients_are_told_of_what_they_may_see(server: Server, user: str) -> None:
    with ws.connect(address(server, user)) as mq:
        check(refused(lambda: mq.queue(MISSING, passive=True)), "queue")
        check(refused(lambda: mq.describe_topic(MISSING)), "topic")
        check(refused(lambda: mq.view("topic", topic=MISSING)), "topic")
        check(refused(lambda: mq.view("topic-settings", topic=MISSING)), "topic")
        check(refused(lambda: mq.publish(MISSING, "x")), "topic")
        check(refused(lambda: mq.exchange(MISSING, passive=True)), "exchange")
        check(refused(lambda: mq.view("group", group=MISSING)), "group")
    with JsonLines(server.bootstrap) as lines:
        lines.ask("hello", user=user, password=PASSWORDS[user])
        check(str(lines.try_ask("put", queue=MISSING, message={"payload": "x"})), "queue")


@pytest.mark.parametrize("user", ["bob", "alice"])
def test_http_clients_are_told_of_what_they_may_see(server: Server, user: str) -> None:
    def problem(path: str) -> str:
        login = HTTPBasicAuth(user, PASSWORDS[user].encode().decode("latin-1"))  # which it encodes again
        answer = requests.get(f"http://{server.addresses['http']}/v1/{path}", auth=login, timeout=20)
        assert answer.status_code == 404, answer.text
        return str(answer.json()["detail"])

    check(problem(f"queues/{MISSING}"), "queue")
    check(problem(f"topics/{MISSING}"), "topic")
    check(problem(f"exchanges/{MISSING}"), "exchange")
    check(problem(f"groups/{MISSING}"), "group")


def test_a_request_to_a_namespace_that_is_not_there_is_told_of_one_that_it_may_see(server: Server) -> None:
    def problem(user: str, login: str, status: int, **headers: str) -> str:
        auth = HTTPBasicAuth(login, PASSWORDS[user].encode().decode("latin-1"))
        url = f"http://{server.addresses['http']}/v1/queues"
        answer = requests.get(url, auth=auth, headers=headers, timeout=20)
        assert answer.status_code == status, answer.text
        return str(answer.json()["detail"])

    wanted = "there is no namespace 'shoo'; did you mean 'shop'?"
    assert problem("admin", "admin", 404, **{"Waystation-Namespace": "shoo"}) == wanted
    assert problem("admin", "admin@shoo", 404) == wanted
    others = problem("alice", "alice", 404, **{"Waystation-Namespace": "shop-uk"})
    assert others == "there is no namespace 'shop-uk'; did you mean 'shop'?", "shop-eu is nearer, and not for alice"


@pytest.mark.parametrize(("user", "vhost"), [("bob", "/"), ("alice", "shop")])
def test_amqp_clients_are_told_of_nothing_else(server: Server, user: str, vhost: str) -> None:
    host, _, port = server.addresses["amqp"].partition(":")
    login = pika.PlainCredentials(user, PASSWORDS[user])
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), vhost, login))

    def said(call: Callable[[pika.adapters.blocking_connection.BlockingChannel], object]) -> str:
        return refused(lambda: call(connection.channel()), pika.exceptions.ChannelClosedByBroker)

    check(said(lambda channel: channel.queue_declare(MISSING, passive=True)))
    check(said(lambda channel: channel.exchange_declare(MISSING, passive=True)))
    check(said(lambda channel: channel.basic_get(MISSING)))
    check(said(lambda channel: channel.queue_bind(SEEN, MISSING)))
    check(said(lambda channel: channel.queue_bind(MISSING, SEEN)))
    connection.close()


def test_kafka_clients_are_told_of_nothing_else(server: Server) -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    for user in ("bob", "alice"):
        who = {"sasl.username": user, "sasl.password": PASSWORDS[user]}
        admin = AdminClient({"bootstrap.servers": server.bootstrap, **login, **who})
        asked = [
            *admin.describe_configs([ConfigResource(ResourceType.TOPIC, MISSING)]).values(),
            *admin.create_partitions([NewPartitions(MISSING, 3)]).values(),
            *admin.delete_topics([MISSING]).values(),
            *admin.delete_consumer_groups([MISSING]).values(),
        ]
        for answer in asked:
            check(refused(lambda answer=answer: answer.result(20), KafkaException))  # type: ignore[misc]


def test_names_of_other_namespaces_are_not_told(server: Server) -> None:
    text = refused(lambda: ws.connect(address(server, "alice@shop-uk")).queue("q"))
    assert "did you mean" not in text, "it may not describe the others"
    with ws.connect(address(server, "admin")) as admin:
        assert "did you mean 'shop'" in refused(lambda: admin.view("namespace", namespace="shp"))


def test_administrators_are_told_of_what_is_in_the_namespace_that_they_ask_about(server: Server) -> None:
    with ws.connect(address(server, "admin")) as admin:
        text = refused(lambda: admin.queue(f"shop/{MISSING}", passive=True))
        assert text == f"there is no queue 'shop/{MISSING}'; did you mean 'shop/{SEEN}'?"
        text = refused(lambda: admin.describe_topic(f"shop.{MISSING}"))
        assert text == f"there is no topic 'shop.{MISSING}'; did you mean 'shop.{SEEN}'?"


def test_who_may_not_describe_a_thing_is_answered_as_if_it_were_not_there(server: Server) -> None:
    """By every protocol, with the same words: bob has rules for other names, and nothing is called `ABSENT`."""
    absent = "orders-2026-xx"
    assert len(absent) == len(HIDDEN)

    def native(call: Callable[[ws.Client, str], object]) -> None:
        with ws.connect(address(server, "bob")) as mq:
            said = [refused(lambda name=name: call(mq, name), Exception) for name in (HIDDEN, absent)]  # type: ignore[misc]
        assert said[0].replace(HIDDEN, absent) == said[1]

    native(lambda mq, name: mq.queue(name, passive=True))
    native(lambda mq, name: mq.queue(name))
    native(lambda mq, name: mq.describe_topic(name))
    native(lambda mq, name: mq.publish(name, "x"))
    native(lambda mq, name: mq.exchange(name, passive=True))
    native(lambda mq, name: mq.view("group", group=name))
    native(lambda mq, name: mq.view("topic-settings", topic=name))
    login = HTTPBasicAuth("bob", PASSWORDS["bob"])
    for method, path in (
        ("GET", "queues/{}"),
        ("PUT", "queues/{}"),
        ("DELETE", "queues/{}"),
        ("POST", "queues/{}/take"),
        ("GET", "topics/{}"),
        ("GET", "topics/{}/messages?partition=0"),
        ("GET", "exchanges/{}"),
        ("GET", "groups/{}"),
    ):
        urls = [f"http://{server.addresses['http']}/v1/{path.format(name)}" for name in (HIDDEN, absent)]
        answers = [requests.request(method, url, auth=login, timeout=20) for url in urls]
        assert answers[0].status_code == answers[1].status_code >= 400
        assert answers[0].text.replace(HIDDEN, absent) == answers[1].text
    host, _, port = server.addresses["amqp"].partition(":")
    plain = pika.PlainCredentials("bob", PASSWORDS["bob"])
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), "/", plain))
    calls: list[Callable[[pika.adapters.blocking_connection.BlockingChannel, str], object]] = [
        lambda channel, name: channel.queue_declare(name, passive=True),
        lambda channel, name: channel.queue_declare(name, durable=True),
        lambda channel, name: channel.queue_delete(name),
        lambda channel, name: channel.basic_get(name),
        lambda channel, name: channel.basic_consume(name, print),
        lambda channel, name: channel.exchange_declare(name, passive=True),
        lambda channel, name: channel.queue_bind(SEEN, name),
    ]
    for call in calls:
        said = []
        for name in (HIDDEN, absent):
            channel = connection.channel()
            said.append(refused(lambda: call(channel, name), pika.exceptions.ChannelClosedByBroker))  # noqa: B023
        assert said[0].replace(HIDDEN, absent) == said[1]
    connection.close()
    terms = {"bootstrap.servers": server.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    admin = AdminClient({**terms, "sasl.username": "bob", "sasl.password": PASSWORDS["bob"]})
    for what in (HIDDEN, absent):
        found = admin.list_topics(what, timeout=20).topics[what]
        assert found.error is not None
        assert found.error.name() == "TOPIC_AUTHORIZATION_FAILED"
        assert not found.partitions
        for answer in (
            *admin.describe_configs([ConfigResource(ResourceType.TOPIC, what)]).values(),
            *admin.create_partitions([NewPartitions(what, 9)]).values(),
            *admin.delete_topics([what]).values(),
        ):
            assert "TOPIC_AUTHORIZATION_FAILED" in refused(lambda: answer.result(20), KafkaException)  # noqa: B023
    assert HIDDEN not in admin.list_topics(timeout=20).topics
