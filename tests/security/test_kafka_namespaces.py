"""Kafka's clients in a namespace: plain names of topics, groups and transactional ids, and nothing from outside."""

from __future__ import annotations

import base64
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

import waystation
from tests.security.test_kafka_logins import METADATA, authenticate, handshake, request
from tests.security.test_kafka_logins import _answer as answer_of
from tests.security.tls_kit import client_context, make_certificates, write_config
from tests.security.users_kit import PASSWORDS, add_users
from tests.security.users_kit import waystation as command
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for
from waystation.protocols.kafka.apis import APIS
from waystation.security.rules import RESOURCES, Rule

RULES = [
    *(Rule("User:alice", "all", resource, "*", namespace="shop") for resource in RESOURCES if resource != "namespace"),
    *(Rule("User:alice", "all", resource, "*", namespace="/") for resource in RESOURCES if resource != "namespace"),
    Rule("User:alice", "read", "namespace", "shop"),
    *(Rule("User:bob", "all", resource, "*", namespace="shop") for resource in ("topic", "group", "transactional-id")),
]
"""Alice may do everything in both; bob nothing but in the namespace, which he may not enter."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("namespaces")
    add_users(folder / "data", PASSWORDS, superusers=("admin",), rules=RULES)
    with Server(folder) as running:
        command("namespaces", "create", "shop", "--server", address(running, "admin"))
        command("namespaces", "create", "full", "--server", address(running, "admin"))
        yield running


def address(server: Server, user: str) -> str:
    return f"waystation://{user}:{quote(PASSWORDS[user], safe='')}@{server.bootstrap}"


def sasl(server: Server, login: str, mechanism: str = "PLAIN") -> dict[str, Any]:
    return {
        "bootstrap.servers": server.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": login,
        "sasl.password": PASSWORDS[login.partition("@")[0]],
    }


def topics_of(server: Server, login: str) -> set[str]:
    return set(AdminClient(sasl(server, login)).list_topics(timeout=DEADLINE_S).topics)


def create(server: Server, login: str, topic: str) -> None:
    admin = AdminClient(sasl(server, login))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)


def consumed(server: Server, login: str, topic: str, group: str, count: int, **more: Any) -> list[bytes | None]:
    consumer = Consumer({**sasl(server, login), "group.id": group, "auto.offset.reset": "earliest", **more})
    consumer.subscribe([topic])
    found: list[bytes | None] = []

    def all_there() -> bool:
        for message in consumer.consume(count, 0.2):
            if message.error() is None:
                assert message.topic() is not None
                assert not str(message.topic()).startswith("shop.")
                found.append(message.value())
        return len(found) >= count

    try:
        wait_for(all_there, "all messages")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_topics_and_groups_have_plain_names_inside_and_full_names_outside(
    server: Server, mechanism: str, protocol: str
) -> None:
    inside, topic, group = sasl(server, "alice@shop", mechanism), unique("orders"), unique("app")
    admin = AdminClient(inside)
    admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "100000"})])[topic].result(DEADLINE_S)
    producer = Producer(inside)
    for number in range(10):
        producer.produce(topic, str(number))
    assert producer.flush(DEADLINE_S) == 0
    found = consumed(server, "alice@shop", topic, group, 10, **{"group.protocol": protocol})
    assert sorted(found) == [str(number).encode() for number in range(10)]  # type: ignore[type-var]
    assert topic in topics_of(server, "alice@shop")
    assert not any(name.startswith(("shop.", "__")) for name in topics_of(server, "alice@shop"))
    outside = topics_of(server, "admin")
    assert f"shop.{topic}" in outside
    assert topic not in outside
    told = admin.describe_topics(TopicCollection([topic]))[topic].result(DEADLINE_S)
    assert told.name == topic
    groups = {one.group_id for one in admin.list_consumer_groups().result(DEADLINE_S).valid}
    assert group in groups
    assert not any(name.startswith("shop/") for name in groups)
    over_all = AdminClient(sasl(server, "admin"))
    wait_for(
        lambda: f"shop/{group}" in {one.group_id for one in over_all.list_consumer_groups().result(DEADLINE_S).valid},
        "listed by its full name",
    )
    described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    assert described.group_id == group
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(DEADLINE_S)
    assert offsets.group_id == group
    assert {one.topic for one in offsets.topic_partitions} == {topic}
    assert sum(max(one.offset, 0) for one in offsets.topic_partitions) == 10
    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert configs["retention.ms"].value == "100000"
    places: Any = OffsetSpec
    ends = admin.list_offsets({TopicPartition(topic, at): places.latest() for at in range(2)})
    assert sum(future.result(DEADLINE_S).offset for future in ends.values()) == 10
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(DEADLINE_S)
    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    wait_for(lambda: f"shop.{topic}" not in topics_of(server, "admin"), "deleted")


def test_the_same_name_is_another_topic_and_another_group_in_each_namespace(server: Server) -> None:
    topic, group = unique("orders"), unique("app")
    for login, value in (("alice", b"outside"), ("alice@shop", b"inside")):
        producer = Producer(sasl(server, login))
        producer.produce(topic, value)
        assert producer.flush(DEADLINE_S) == 0
    assert consumed(server, "alice", topic, group, 1) == [b"outside"]
    assert consumed(server, "alice@shop", topic, group, 1) == [b"inside"]
    with waystation.connect(address(server, "admin")) as mq:
        assert mq.view("topic", topic=f"shop.{topic}")["topic"] == f"shop.{topic}"


def test_transactions_and_a_subscription_by_pattern_stay_inside(server: Server) -> None:
    topic, tx = unique("paid"), unique("tx")
    create(server, "alice", topic)
    producer = Producer({**sasl(server, "alice@shop"), "transactional.id": tx})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"inside")
    producer.commit_transaction(DEADLINE_S)
    for protocol in ("consumer", "classic"):
        found = consumed(server, "alice@shop", f"^{topic[:-1]}.*", unique("app"), 1, **{"group.protocol": protocol})
        assert found == [b"inside"]
    assert f"shop/{tx}" in transactions(server)


def transactions(server: Server) -> str:
    """As kafka-python lists them to the administrator."""
    admin = KafkaAdminClient(
        bootstrap_servers=server.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username="admin",
        sasl_plain_password=PASSWORDS["admin"],
    )
    try:
        return repr(admin.list_transactions())
    finally:
        admin.close()


def test_kafka_python_works_in_a_namespace(server: Server) -> None:
    topic = unique("orders")
    login: dict[str, Any] = {
        "bootstrap_servers": server.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice@shop",
        "sasl_plain_password": PASSWORDS["alice"],
    }
    producer = KafkaProducer(**login)
    sent = producer.send(topic, b"x").get(DEADLINE_S)
    assert sent.topic == topic
    producer.close()
    consumer = KafkaConsumer(
        topic, **login, group_id=unique("app"), auto_offset_reset="earliest", consumer_timeout_ms=int(DEADLINE_S * 1000)
    )
    message = next(consumer)
    assert (message.topic, message.value) == (topic, b"x")
    consumer.close()


def test_a_user_has_a_home(server: Server) -> None:
    name, topic = unique("carol"), unique("orders")
    command(
        "users", "add", name, "--password-stdin", "--namespace", "shop", "--server", address(server, "admin"),
        stdin="carols\n",
    )  # fmt: skip
    rights = ["--allow", "all", "--topic", "*", "--server", address(server, "admin")]
    command("acls", "add", "--user", name, "--namespace", "shop", *rights)
    command(
        "acls", "add", "--user", name, "--allow", "read", "--namespace", "shop", "--server", address(server, "admin")
    )
    producer = Producer({**sasl(server, "alice"), "sasl.username": name, "sasl.password": "carols"})
    producer.produce(topic, b"x")
    assert producer.flush(DEADLINE_S) == 0
    assert f"shop.{topic}" in topics_of(server, "admin")
    refused = command(
        "users", "add", unique("dave"), "--password-stdin", "--namespace", "nowhere", "--server",
        address(server, "admin"), stdin="x\n", check=False,
    )  # fmt: skip
    assert refused.returncode


@pytest.mark.parametrize("login", ["bob@shop", "alice@full", "alice@nowhere"])
def test_who_may_not_enter_is_not_let_in(server: Server, login: str) -> None:
    """Bob may not enter the one, alice not the other, and the third is not there."""
    with pytest.raises(KafkaException):
        AdminClient({**sasl(server, login), "socket.timeout.ms": 2000}).list_topics(timeout=3)


def test_a_connection_counts_for_the_limit_of_its_namespace(server: Server) -> None:
    admin = address(server, "admin")
    command("namespaces", "create", "tiny", "--max-connections", "0", "--server", admin)
    with pytest.raises(KafkaException):
        AdminClient(sasl(server, "admin@tiny")).list_topics(timeout=3)
    command("namespaces", "alter", "tiny", "--max-connections", "5", "--server", admin)
    assert topics_of(server, "admin@tiny") == set()


def test_what_is_outside_is_not_found_by_its_name(server: Server) -> None:
    topic = unique("outside")
    create(server, "alice", topic)
    inside = AdminClient(sasl(server, "admin@shop"))
    with pytest.raises(KafkaException):
        inside.describe_topics(TopicCollection([topic]))[topic].result(DEADLINE_S)
    with pytest.raises(KafkaException):
        inside.delete_topics([topic])[topic].result(DEADLINE_S)
    with suppress(KafkaException):
        inside.delete_topics([f"../{topic}"])[f"../{topic}"].result(DEADLINE_S)
    assert topic in topics_of(server, "alice")


def test_what_is_outside_is_not_read_by_its_id(server: Server) -> None:
    """Newer clients fetch by the ids of topics, which have no namespace in them."""
    topic = unique("outside")
    create(server, "alice", topic)
    outside = AdminClient(sasl(server, "alice"))
    topic_id = outside.describe_topics(TopicCollection([topic]))[topic].result(DEADLINE_S).topic_id
    raw = UUID(bytes=base64.urlsafe_b64decode(str(topic_id) + "=="))
    assert metadata_by_id(server, "alice", raw) == (ErrorCode.none, topic)
    for login in ("alice@shop", "admin@shop"):
        code, name = metadata_by_id(server, login, raw)
        assert code != ErrorCode.none
        assert not name


def metadata_by_id(server: Server, login: str, topic_id: UUID) -> tuple[ErrorCode, str | None]:
    with closing(socket.create_connection(split_address(server.bootstrap), DEADLINE_S)) as line:
        ask(line, "sasl_handshake", 1, mechanism="PLAIN")
        auth = b"\0".join((b"", login.encode(), PASSWORDS[login.partition("@")[0]].encode()))
        assert ask(line, "sasl_authenticate", 2, auth_bytes=auth).error_code == ErrorCode.none
        wanted = {
            "topics": (("MetadataRequestTopic", {"topic_id": topic_id, "name": None}),),
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        (told,) = ask(line, "metadata", 12, **wanted).topics
        return ErrorCode(told.error_code), told.name


def ask(line: socket.socket, name: str, version: int, **fields: Any) -> Any:
    """One request by hand; `(class, fields)` in a tuple is a structure."""
    path, _, kind = schema_name_map[name][version][EntityType.request].partition(":")
    module = import_module(path)
    made = {
        key: tuple(getattr(module, one[0])(**one[1]) for one in value) if isinstance(value, tuple) else value
        for key, value in fields.items()
    }
    entity = getattr(module, kind)
    body = BytesIO()
    entity_writer(entity)(body, entity(**made))
    flexible = bool(entity.__flexible__)
    head = struct.pack(">hhih4s", APIS_BY_NAME[name].key, version, 7, 4, b"test") + (b"\0" if flexible else b"")
    line.sendall(struct.pack(">i", len(head) + len(body.getvalue())) + head + body.getvalue())
    (size,) = struct.unpack(">i", _read(line, 4))
    answer = _read(line, size)
    path, _, kind = schema_name_map[name][version][EntityType.response].partition(":")
    response, _ = entity_reader(getattr(import_module(path), kind))(answer, 5 if flexible else 4)
    return response


def _read(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = line.recv(size - len(data))
        assert more
        data += more
    return data


APIS_BY_NAME = {api.name: api for api in APIS.values()}


def test_topics_and_partitions_of_a_namespace_are_limited_and_nothing_happens(server: Server) -> None:
    admin = address(server, "admin")
    command("namespaces", "create", "small", "--max-topics", "2", "--max-partitions", "5", "--server", admin)
    inside = AdminClient(sasl(server, "admin@small"))
    inside.create_topics([NewTopic("one", 2, 1)])["one"].result(DEADLINE_S)
    with pytest.raises(KafkaException) as refused:
        inside.create_topics([NewTopic("wide", 4, 1)])["wide"].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION
    assert "partitions" in refused.value.args[0].str()
    inside.create_topics([NewTopic("two", 3, 1)])["two"].result(DEADLINE_S)
    for future in (
        inside.create_topics([NewTopic("three", 1, 1)])["three"],
        inside.create_partitions([NewPartitions("one", 3)])["one"],
    ):
        with pytest.raises(KafkaException) as refused:
            future.result(DEADLINE_S)
        assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION
    with waystation.connect(admin) as mq, pytest.raises(waystation.errors.Full):
        mq.publish("small.three", "x")  # created on first use, by another protocol
    assert topics_of(server, "admin@small") == {"one", "two"}
    assert "small.three" not in topics_of(server, "admin")
    inside.delete_topics(["two"])["two"].result(DEADLINE_S)
    inside.create_topics([NewTopic("three", 3, 1)])["three"].result(DEADLINE_S)


def test_a_group_in_a_namespace_changes_to_the_new_protocol_with_its_members(server: Server) -> None:
    topic, group = unique("orders"), unique("app")
    admin = AdminClient(sasl(server, "alice@shop"))
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(DEADLINE_S)
    create(server, "alice", topic)  # of one partition, outside: nobody here is to be given that
    common = {**sasl(server, "alice@shop"), "group.id": group, "auto.offset.reset": "earliest"}
    old = Consumer({**common, "group.protocol": "classic", "partition.assignment.strategy": "range"})
    old.subscribe([topic])
    new = Consumer({**common, "group.protocol": "consumer"})
    try:
        wait_for(lambda: old.poll(0.1) is None and len(old.assignment()) == 4, "the first has all four")
        described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
        assert {one.topic for one in described.members[0].assignment.topic_partitions} == {topic}
        new.subscribe([topic])

        def shared() -> bool:
            old.poll(0.1)
            new.poll(0.1)
            return len(old.assignment()) == 2 and len(new.assignment()) == 2

        wait_for(shared, "two each")
    finally:
        new.close()
        old.close()


def test_who_has_a_certificate_enters_a_namespace_by_a_login_only_if_it_may(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates", "bob")
    add_users(tmp_path / "broker" / "data", PASSWORDS, superusers=("admin",), rules=RULES)
    config = """
[tls]
certificate = "server.crt"
key = "server.key"
client-ca = "ca.crt"
client-certificates = "optional"
plain = true
[broker]
"ssl.principal.mapping.rules" = "RULE:^CN=([^,]+).*$/$1/"
"""
    with Server(tmp_path / "broker", arguments=write_config(certificates, config)) as server:
        command("namespaces", "create", "shop", "--server", address(server, "admin"))
        with (
            socket.create_connection(split_address(server.bootstrap), timeout=DEADLINE_S) as plain,
            client_context(certificates, "bob").wrap_socket(plain, server_hostname="localhost") as wire,
        ):
            for step in (handshake("PLAIN"), authenticate(b"\0bob@shop\0" + PASSWORDS["bob"].encode())):
                wire.sendall(step)
                answer_of(wire)
            wire.sendall(request(METADATA, 1, struct.pack(">i", 0)))
            assert answer_of(wire) is None
