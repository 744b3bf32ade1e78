"""Several listeners of a protocol, each with its name, TLS, logins, and the address that it advertises."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
import requests
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

import waystation as ws
from tests.security.tls_kit import make_certificates, write_config
from tests.security.users_kit import ALL, PASSWORDS, add_users
from tests.support.names import unique
from tests.support.server import Server
from waystation.errors import NotAuthenticated

CONFIG = """
[tls]
certificate = "server.crt"
key = "server.key"

[listeners.internal]
protocol = "kafka"
address = "127.0.0.1:0"
tls = "off"
auth-required = false

[listeners.external]
protocol = "kafka"
address = "127.0.0.1:0"
advertised = "localhost"
mechanisms = ["SCRAM-SHA-512"]

[listeners.tunnel]
protocol = "kafka"
address = "127.0.0.1:0"
advertised = "broker.example.com:9093"
tls = "off"
auth-required = false

[listeners.web]
protocol = "http"
address = "127.0.0.1:0"
advertised = "broker.example.com:8080"
tls = "off"

[listeners.rabbits]
protocol = "amqp"
address = "127.0.0.1:0"
tls = "on"
mechanisms = "PLAIN"
"""


class Stage:
    def __init__(self, server: Server, certificates: Path) -> None:
        self.server = server
        self.ca = str(certificates / "ca.crt")

    def port(self, listener: str) -> int:
        return int(self.server.addresses[listener].rpartition(":")[2])

    @property
    def internal(self) -> dict[str, Any]:
        """Terms of confluent-kafka."""
        return {"bootstrap.servers": self.server.addresses["internal"], "log_level": 0}

    @property
    def external(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.port('external')}",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.ca,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": PASSWORDS["alice"],
            "log_level": 0,
        }

    @property
    def external_in_python(self) -> dict[str, Any]:
        """The same of kafka-python."""
        return {
            "bootstrap_servers": f"127.0.0.1:{self.port('external')}",
            "security_protocol": "SASL_SSL",
            "ssl_cafile": self.ca,
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORDS["alice"],
        }


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("listeners")
    certificates = make_certificates(folder / "certificates")
    add_users(folder / "data", PASSWORDS, superusers=["admin"], rules=ALL)
    with Server(folder, arguments=write_config(certificates, CONFIG)) as server:
        yield Stage(server, certificates)


def brokers(terms: dict[str, Any]) -> list[tuple[str | None, int]]:
    found = AdminClient(terms).list_topics(timeout=20).brokers.values()
    return [(one.host, one.port) for one in found]


def test_a_client_is_told_the_address_of_the_listener_that_it_came_by(stage: Stage) -> None:
    assert brokers(stage.internal) == [("127.0.0.1", stage.port("internal"))]
    assert brokers(stage.external) == [("localhost", stage.port("external"))]
    assert brokers({"bootstrap.servers": stage.server.addresses["tunnel"]}) == [("broker.example.com", 9093)]
    admin = AdminClient(stage.external)
    described = admin.describe_cluster().result(20)
    assert [(one.host, one.port) for one in described.nodes] == [("localhost", stage.port("external"))]


@pytest.mark.parametrize("way", ["internal", "external"])
def test_confluent_kafka_works_by_each_listener(stage: Stage, way: str) -> None:
    terms, topic = getattr(stage, way), unique("topic")
    producer = Producer(terms)
    producer.produce(topic, b"hello")
    assert producer.flush(30) == 0
    consumer = Consumer({**terms, "group.id": unique("group"), "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        found = consumer.poll(30)
        assert found is not None
        assert found.value() == b"hello"
    finally:
        consumer.close()


def test_kafka_python_works_by_each_listener(stage: Stage) -> None:
    topic = unique("topic")
    producer = KafkaProducer(**stage.external_in_python)
    producer.send(topic, b"hello").get(30)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=stage.server.addresses["internal"],
        group_id=unique("group"),
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    assert next(consumer).value == b"hello"
    consumer.close()
    admin = KafkaAdminClient(**stage.external_in_python)
    (one,) = admin.describe_cluster()["brokers"]
    assert (one["host"], one["port"]) == ("localhost", stage.port("external"))
    admin.close()


def test_a_listener_that_asks_for_a_login_gets_one_by_its_own_mechanisms(stage: Stage) -> None:
    for wrong in ({"sasl.mechanism": "SCRAM-SHA-256"}, {"sasl.mechanism": "PLAIN"}, {"security.protocol": "SSL"}):
        with pytest.raises(KafkaException):
            AdminClient({**stage.external, **wrong}).list_topics(timeout=3)
    usual = {**stage.external, "bootstrap.servers": stage.server.bootstrap, "sasl.mechanism": "PLAIN"}
    assert brokers(usual) == [("127.0.0.1", stage.port("kafka"))]


def test_the_native_protocol_is_spoken_there_as_the_listener_is(stage: Stage) -> None:
    with ws.connect(stage.server.addresses["internal"]) as mq:
        mq.queue(unique("queue")).put("hello")
    external = f"localhost:{stage.port('external')}"
    with pytest.raises(NotAuthenticated):
        ws.connect(f"waystations://{external}?ca={stage.ca}")
    with pytest.raises(NotAuthenticated):  # SCRAM-SHA-256
        ws.connect(f"waystations://admin:{PASSWORDS['admin']}@{external}?ca={stage.ca}")
    with ws.connect(f"waystations://admin:{PASSWORDS['admin']}@{external}?ca={stage.ca}&mechanism=SCRAM-SHA-512") as mq:
        assert mq.view("overview")


def test_settings_tell_kafka_clients_what_the_listener_is(stage: Stage) -> None:
    def told(terms: dict[str, Any]) -> tuple[str, str]:
        admin = AdminClient(terms)
        (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
        found = future.result(20)
        return found["advertised.listeners"].value, found["listener.security.protocol.map"].value

    port = stage.port("external")
    assert told(stage.external) == (f"EXTERNAL://localhost:{port}", "EXTERNAL:SASL_SSL")
    assert told(stage.internal)[1] == "INTERNAL:PLAINTEXT"


def test_http_and_amqp_have_several_listeners_too(stage: Stage) -> None:
    plain = f"http://{stage.server.addresses['web']}/v1/overview"
    usual = f"https://{stage.server.addresses['http']}/v1/overview"
    login: Any = ("admin", PASSWORDS["admin"])
    assert requests.get(usual, auth=login, verify=stage.ca, timeout=20).ok
    assert requests.get(plain, auth=login, timeout=20).ok
    assert requests.get(plain, auth=login, headers={"host": "broker.example.com:8080"}, timeout=20).ok
    elsewhere = requests.get(plain, auth=login, headers={"host": "other.example.com"}, timeout=20)
    assert elsewhere.status_code == 403
    context = ssl.create_default_context(cafile=stage.ca)
    parameters = pika.ConnectionParameters(
        "localhost",
        stage.port("rabbits"),
        credentials=pika.PlainCredentials("bob", PASSWORDS["bob"]),
        ssl_options=pika.SSLOptions(context, "localhost"),
    )
    connection = pika.BlockingConnection(parameters)
    connection.channel().queue_declare("q")
    connection.close()


def test_who_need_not_log_in_may_do_what_rules_allow_everybody(tmp_path: Path) -> None:
    add_users(tmp_path / "data", {"alice": "secret"}, rules=())
    listener = "inside=kafka://127.0.0.1:0?auth-required=false"
    with Server(tmp_path, arguments=["--listeners", listener]) as server:
        terms: dict[str, Any] = {"bootstrap.servers": server.addresses["inside"], "log_level": 0}
        assert AdminClient(terms).list_topics(timeout=20).topics == {}
        failed: list[object] = []
        producer = Producer({**terms, "message.timeout.ms": 3000})
        producer.produce("orders", b"x", on_delivery=lambda error, _: failed.append(error))
        producer.flush(20)
        assert [error for error in failed if error is not None]
