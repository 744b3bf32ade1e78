"""Kafka's clients log in by each mechanism; a wrong password does not enter, and nothing is answered before a login."""

from __future__ import annotations

import asyncio
import re
import select
import socket
import struct
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as PythonKafkaError

from tests.security.users_kit import PASSWORDS
from tests.support.names import unique
from tests.support.server import Server
from waystation.broker.broker import LAST_ANSWER_S
from waystation.wire import scram

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def confluent(server: Server, mechanism: str, name: str, password: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
        "log_level": 0,
        **more,
    }


def sasl(server: Server, mechanism: str, name: str, password: str) -> dict[str, Any]:
    """For kafka-python and aiokafka, which call it the same."""
    return {
        "bootstrap_servers": server.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": name,
        "sasl_plain_password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["admin", "alice"])
def test_confluent_kafka_logs_in(closed: Server, mechanism: str, name: str) -> None:
    terms = confluent(closed, mechanism, name, PASSWORDS[name])
    topic = unique("sasl")
    producer = Producer(terms)
    producer.produce(topic, b"hello")
    assert producer.flush(20) == 0
    consumer = Consumer({**terms, "group.id": unique("group"), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.error() is None
    assert message.value() == b"hello"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", "wrong")])
def test_confluent_kafka_is_told_that_the_login_failed(
    closed: Server, mechanism: str, name: str, password: str
) -> None:
    seen: list[KafkaError] = []
    admin = AdminClient(confluent(closed, mechanism, name, password, error_cb=seen.append))
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    admin.poll(0.1)
    assert any(error.code() == KafkaError._AUTHENTICATION for error in seen)
    said = {
        error.str().partition(": ")[2].partition(" (after")[0]
        for error in seen
        if error.code() == KafkaError._AUTHENTICATION
    }
    assert said == {
        f"SASL authentication error: Authentication failed during authentication due to invalid credentials with SASL"
        f" mechanism {mechanism}"
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(closed: Server, mechanism: str) -> None:
    terms = sasl(closed, mechanism, "alice", PASSWORDS["alice"])
    topic = unique("sasl")
    producer = KafkaProducer(**terms)
    producer.send(topic, b"hello").get(20)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **terms)
    assert next(iter(consumer)).value == b"hello"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_is_refused_with_a_wrong_password(closed: Server, mechanism: str) -> None:
    with pytest.raises(PythonKafkaError):
        KafkaProducer(**sasl(closed, mechanism, "alice", "wrong"), bootstrap_timeout_ms=3_000)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_logs_in(closed: Server, mechanism: str) -> None:
    async def run() -> bytes:
        terms = sasl(closed, mechanism, "bob", PASSWORDS["bob"])
        topic = unique("sasl")
        async with AIOKafkaProducer(**terms) as producer:
            await producer.send_and_wait(topic, b"hello")
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **terms) as consumer:
            return bytes((await asyncio.wait_for(consumer.getone(), 20)).value)

    assert asyncio.run(run()) == b"hello"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_is_refused_with_a_wrong_password(closed: Server, mechanism: str) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(**sasl(closed, mechanism, "bob", "wrong"))
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(AioKafkaError):
        asyncio.run(run())


def test_a_client_that_does_not_log_in_gets_nothing(closed: Server) -> None:
    admin = AdminClient({"bootstrap.servers": closed.bootstrap, "log_level": 0})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)


# -- on the wire -------------------------------------------------------------------------------------------------------


def request(api: int, version: int, body: bytes = b"", client: bytes = b"t") -> bytes:
    head = struct.pack(">hhih", api, version, 7, len(client)) + client
    return struct.pack(">i", len(head) + len(body)) + head + body


def handshake(mechanism: str) -> bytes:
    return request(17, 1, struct.pack(">h", len(mechanism)) + mechanism.encode())


def authenticate(data: bytes, version: int = 1) -> bytes:
    return request(36, version, struct.pack(">i", len(data)) + data)


def talk(server: Server, *requests: bytes) -> list[bytes | None]:
    """The answers, without their heads; None: the connection was closed instead."""
    host, _, port = server.bootstrap.rpartition(":")
    answers: list[bytes | None] = []
    with socket.create_connection((host, int(port)), timeout=20) as link:
        for one in requests:
            link.sendall(one)
            answers.append(_answer(link))
            if answers[-1] is None:
                break
    return answers


def _answer(link: socket.socket) -> bytes | None:
    def exactly(size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = link.recv(size - len(found))
            if not more:
                raise EOFError
            found += more
        return found

    try:
        return exactly(struct.unpack(">i", exactly(4))[0])[4:]
    except (EOFError, ConnectionResetError):
        return None


PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
PLAIN_ALICE = b"\0alice\0" + PASSWORDS["alice"].encode()


def test_before_the_login_only_api_versions_and_sasl_are_answered(closed: Server) -> None:
    from waystation.protocols.kafka.apis import APIS

    for api in APIS.values():
        if api.name in ("api_versions", "sasl_handshake", "sasl_authenticate"):
            continue
        assert talk(closed, request(api.key, api.min_version)) == [None], api.name
    assert talk(closed, request(API_VERSIONS, 0))[0] is not None


def test_a_login_opens_the_connection_and_another_principal_cannot_take_it_over(closed: Server) -> None:
    metadata = request(METADATA, 1, struct.pack(">i", 0))
    answers = talk(closed, handshake("PLAIN"), authenticate(PLAIN_ALICE), metadata)
    assert answers[1] is not None
    assert answers[1][:2] == b"\0\0"
    assert answers[2] is not None
    again = talk(
        closed, handshake("PLAIN"), authenticate(PLAIN_ALICE), handshake("PLAIN"), authenticate(PLAIN_ALICE), metadata
    )
    assert again[-1] is not None
    bob = b"\0bob\0" + PASSWORDS["bob"].encode()
    other = talk(closed, handshake("PLAIN"), authenticate(PLAIN_ALICE), handshake("PLAIN"), authenticate(bob), metadata)
    assert other[3] is not None
    assert struct.unpack(">h", other[3][:2])[0] == 58
    assert other[4] is None


def test_what_is_out_of_order_is_refused_and_ends_the_connection(closed: Server) -> None:
    unknown = talk(closed, handshake("GSSAPI"), handshake("PLAIN"))
    assert unknown[0] is not None
    assert struct.unpack(">h", unknown[0][:2])[0] == 33
    assert b"SCRAM-SHA-256" in unknown[0]
    assert unknown[1] is None
    early = talk(closed, authenticate(PLAIN_ALICE), handshake("PLAIN"))
    assert early[0] is not None
    assert struct.unpack(">h", early[0][:2])[0] == 34
    assert early[1] is None
    failed = talk(closed, handshake("PLAIN"), authenticate(b"\0alice\0no"), handshake("PLAIN"))
    assert failed[1] is not None
    assert struct.unpack(">h", failed[1][:2])[0] == 58
    assert failed[2] is None


def test_a_handshake_from_before_kafka_1_is_refused_though_it_is_told_as_offered(closed: Server) -> None:
    old = request(17, 0, struct.pack(">h", 5) + b"PLAIN")
    answers = talk(closed, old, authenticate(PLAIN_ALICE))
    assert answers[0] is not None
    assert struct.unpack(">h", answers[0][:2])[0] == 35
    assert answers[1] is None
    offered = talk(closed, request(API_VERSIONS, 0))[0]
    assert offered is not None
    assert struct.pack(">hhh", 17, 0, 1) in offered, "librdkafka up to 2.0 looks for version 0"


def test_nobody_can_send_much_before_the_login(closed: Server) -> None:
    large = struct.pack(">i", 600 * 1024) + struct.pack(">hhi", 36, 1, 7)
    assert talk(closed, large) == [None]


# -- passwords by Kafka's tools ----------------------------------------------------------------------------------------


def test_an_admin_client_describes_sets_and_deletes_scram_credentials(own_closed: Any) -> None:
    server = own_closed()
    admin: Any = AdminClient(confluent(server, "SCRAM-SHA-256", "admin", PASSWORDS["admin"]))
    everybody = admin.describe_user_scram_credentials().result(20)
    assert sorted(everybody) == ["admin", "alice", "bob"]
    assert {info.mechanism for info in everybody["bob"].scram_credential_infos} == {
        ScramMechanism.SCRAM_SHA_256,
        ScramMechanism.SCRAM_SHA_512,
    }
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    changes = [UserScramCredentialUpsertion("eve", info, b"geheim", b"salt")]
    for done in admin.alter_user_scram_credentials(changes).values():
        done.result(20)
    for mechanism in ("SCRAM-SHA-512", "PLAIN"):
        assert AdminClient(confluent(server, mechanism, "eve", "geheim")).list_topics(timeout=20)
    with pytest.raises(KafkaException):
        AdminClient(confluent(server, "SCRAM-SHA-256", "eve", "geheim")).list_topics(timeout=2)
    deletion = UserScramCredentialDeletion("eve", ScramMechanism.SCRAM_SHA_512)
    for done in admin.alter_user_scram_credentials([deletion]).values():
        done.result(20)
    with pytest.raises(KafkaException):
        admin.describe_user_scram_credentials(["eve"])["eve"].result(20)
    weak = UserScramCredentialUpsertion("eve", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 100), b"x", b"salt")
    with pytest.raises(KafkaException, match="iterations"):
        admin.alter_user_scram_credentials([weak])["eve"].result(20)


# -- who does not exist ------------------------------------------------------------------------------------------------

STRANGERS = [f"nobody-{number}" for number in range(40)]


def rounds_told(server: Server, name: str, mechanism: str = "SCRAM-SHA-256") -> int:
    """What the broker answers to the first message of a login, before any password was shown."""
    answers = talk(server, handshake(mechanism), authenticate(f"n,,n={name},r=abc".encode()))
    assert answers[1] is not None
    assert answers[1][:2] == b"\0\0"
    found = re.search(rb",i=(\d+)", answers[1])
    assert found is not None, answers[1]
    return int(found[1])


def set_rounds(server: Server, rounds: dict[str, int], mechanism: Any = ScramMechanism.SCRAM_SHA_256) -> None:
    admin: Any = AdminClient(confluent(server, "SCRAM-SHA-512", "admin", PASSWORDS["admin"]))
    changes = [
        UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, number), PASSWORDS.get(name, "x").encode())
        for name, number in rounds.items()
    ]
    for done in admin.alter_user_scram_credentials(changes).values():
        done.result(20)


def test_strangers_are_answered_with_the_rounds_that_users_have(own_closed: Any) -> None:
    server = own_closed()
    usual = rounds_told(server, "alice")
    assert {rounds_told(server, name) for name in STRANGERS[:5]} == {usual}
    # Everybody's passwords are set by Kafka's tools, with other rounds: the broker's own would tell who is none.
    set_rounds(server, dict.fromkeys(("alice", "bob", "admin"), 5000))
    assert {rounds_told(server, name) for name in ("alice", "bob", "admin")} == {5000}
    assert {rounds_told(server, name) for name in STRANGERS[:5]} == {5000}
    assert rounds_told(server, "alice", "SCRAM-SHA-512") == usual, "each mechanism has its own"
    assert {rounds_told(server, name, "SCRAM-SHA-512") for name in STRANGERS[:5]} == {usual}


@pytest.mark.parametrize("restarted", [False, True], ids=["just started", "restarted"])
def test_a_login_that_is_under_way_when_another_user_changes_goes_on(own_closed: Any, restarted: bool) -> None:
    server = own_closed()
    if restarted:
        server.stop()
        server.restart()
    host, _, port = server.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as link:
        link.sendall(handshake("PLAIN"))
        assert _answer(link) is not None
        set_rounds(server, {"bob": 5000})
        assert not select.select([link], [], [], 4 * LAST_ANSWER_S)[0], "nothing is said, nothing is closed"
        link.sendall(authenticate(PLAIN_ALICE))
        answer = _answer(link)
        assert answer is not None
        assert answer[:2] == b"\0\0"


def test_where_users_have_different_rounds_strangers_have_them_too_each_always_the_same(own_closed: Any) -> None:
    server = own_closed()
    set_rounds(server, {"alice": 5000, "bob": 6000, "admin": 6000})
    told = {name: rounds_told(server, name) for name in STRANGERS}
    assert set(told.values()) == {5000, 6000}, "both occur: rounds say of nobody that there is no such user"
    assert {name: rounds_told(server, name) for name in STRANGERS} == told
    server.stop()
    server.restart()
    assert {name: rounds_told(server, name) for name in STRANGERS} == told


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_name_with_a_namespace_does_not_tell_whether_the_user_exists(closed: Server, mechanism: str) -> None:
    """What is asked of NAME and of NAME@NAMESPACE is the same for a user, so it is for nobody."""

    def terms(name: str) -> dict[str, bytes]:
        first = talk(closed, handshake(mechanism), authenticate(b"n,,n=%b,r=abc" % name.encode()))[1]
        assert first is not None
        size = struct.unpack_from(">h", first, 2)[0]  # the error's text, which is null
        at = 4 + max(size, 0)
        said = first[at + 4 : at + 4 + struct.unpack_from(">i", first, at)[0]]
        found = dict(scram.attributes(said))
        return {key: found[key] for key in "si"}

    for name in ("alice", "nobody"):
        assert terms(name) == terms(f"{name}@shop") == terms(f"{name}@elsewhere") != terms(f"{name}@shop@shop")
    assert terms("alice") != terms("nobody") != terms("somebody")
