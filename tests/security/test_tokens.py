"""Tokens of an identity provider: Kafka's clients, HTTP, AMQP and the native client; rotated keys, expired tokens."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pika
import pika.exceptions
import pytest
import requests
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokenProvider
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as websocket

import waystation as ws
from tests.broker.kit import broker_on
from tests.security.test_kafka_logins import METADATA, authenticate, handshake, request, talk
from tests.security.users_kit import PASSWORDS, add_users
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import NotAuthenticated
from waystation.security.principals import Principal
from waystation.security.sasl.exchange import Failed
from waystation.security.tokens import REFETCH_S, TokenOwner, Tokens, TokenTerms
from waystation.security.users import User

ISSUER, AUDIENCE = "https://id.example", "waystation"


class Provider:
    """An identity provider: keys that it serves, and tokens that it signs."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                body = json.dumps(outer.jwks()).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.rotate("one")

    def rotate(self, name: str, *, curve: bool = False) -> None:
        """From now on there is this key alone."""
        key: Any = ec.generate_private_key(ec.SECP256R1()) if curve else rsa.generate_private_key(65537, 2048)
        self.keys = {name: key}

    def jwks(self) -> dict[str, Any]:
        return {"keys": [{**_jwk(key), "kid": name, "use": "sig"} for name, key in self.keys.items()]}

    def token(self, name: str = "alice", *, seconds: float = 300, key: Any = None, **claims: Any) -> str:
        kid, own = next(iter(self.keys.items()))
        said = {"sub": name, "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + seconds, **claims}
        algorithm = "ES256" if isinstance(key or own, ec.EllipticCurvePrivateKey) else "RS256"
        return jwt.encode(said, key or own, algorithm=algorithm, headers={"kid": kid})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _jwk(key: Any) -> dict[str, Any]:
    kind = jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
    found = kind.to_jwk(key.public_key(), as_dict=True)
    return dict(found)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    found = Provider()
    yield found
    found.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[Server]:
    settings: dict[str, str | int | bool] = {
        "auth.required": True,
        "auth.superusers": "alice,bob,carol,dave,erin",  # what they may do is not what is tested here
        "sasl.oauthbearer.jwks.endpoint.url": provider.url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.clock.skew.seconds": 0,
        "waystation.oauth.groups.claim": "groups",
        "connection.failed.authentication.delay.ms": 1,
    }
    with Server(tmp_path_factory.mktemp("guarded"), settings=settings) as server:
        yield server


def confluent(server: Server, token: Callable[[], str], seconds: float = 300) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token(), time.time() + seconds),
        "log_level": 0,
    }


def test_confluent_kafka_logs_in_by_token(guarded: Server, provider: Provider) -> None:
    producer = Producer(confluent(guarded, provider.token))
    producer.produce(unique("token"), b"hello")
    assert producer.flush(20) == 0


def test_confluent_kafka_is_refused_with_a_token_of_somebody_else(guarded: Server, provider: Provider) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    admin = AdminClient(confluent(guarded, lambda: provider.token(key=stranger)))
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)


def test_kafka_python_logs_in_by_token(guarded: Server, provider: Provider) -> None:
    class Own(PythonTokenProvider):  # type: ignore[misc]  # it has no types
        def token(self) -> str:
            return provider.token("bob")

    producer = KafkaProducer(
        bootstrap_servers=guarded.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Own(),
    )
    producer.send(unique("token"), b"hello").get(20)
    producer.close()


def test_aiokafka_logs_in_by_token(guarded: Server, provider: Provider) -> None:
    class Own(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
        async def token(self) -> str:
            return provider.token("bob")

    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=guarded.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Own(),
        )
        async with producer:
            await producer.send_and_wait(unique("token"), b"hello")

    asyncio.run(run())


def test_a_token_is_a_bearer_of_http_a_password_of_amqp_and_of_the_native_client(
    guarded: Server, provider: Provider
) -> None:
    who = f"http://{guarded.addresses['http']}/v1/whoami"
    overview = f"http://{guarded.addresses['http']}/v1/overview"
    bearer = {"authorization": f"Bearer {provider.token('carol')}"}
    assert requests.get(who, headers=bearer, timeout=20).json()["user"] == "carol"
    assert requests.get(overview, headers={"authorization": "Bearer a.b.c"}, timeout=20).status_code == 401
    host, _, port = guarded.addresses["amqp"].rpartition(":")
    credentials = pika.PlainCredentials("", provider.token("dave"))
    pika.BlockingConnection(pika.ConnectionParameters(host, int(port), credentials=credentials)).close()
    url = f"waystation://x:{provider.token('erin')}@{guarded.bootstrap}?mechanism=OAUTHBEARER"
    with ws.connect(url) as mq:
        users = [one["user"] for one in mq.view("connections")["connections"] if one["door"] == "native"]
    assert users == ["erin"]
    with pytest.raises(NotAuthenticated):
        ws.connect(f"waystation://x:a.b.c@{guarded.bootstrap}?mechanism=OAUTHBEARER")


def test_a_name_with_an_at_in_it_is_nobody_elses(tmp_path: Path, provider: Provider) -> None:
    """Mail addresses are usual names: their first part is not a user here, and their second no namespace."""
    add_users(tmp_path / "data", PASSWORDS, superusers=("admin",))
    settings = {"sasl.oauthbearer.jwks.endpoint.url": provider.url}
    with Server(tmp_path, settings=settings) as server:
        said = {"authorization": f"Bearer {provider.token('admin@example.com')}"}
        who = requests.get(f"http://{server.addresses['http']}/v1/whoami", headers=said, timeout=20).json()
        assert (who["user"], who["superuser"]) == ("admin@example.com", False)
        producer = Producer(confluent(server, lambda: provider.token("admin@example.com")))
        producer.produce(unique("token"), b"hello")
        assert producer.flush(20) == 0


def test_a_certificate_or_a_token_has_the_groups_of_a_user_of_exactly_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.users.add("alice", User(superuser=True, groups=("ops",)))
            named = broker.authenticator._named
            assert named("alice") == Principal("alice", groups=("ops",), superuser=True)
            assert named("alice@example.com", ("some",)) == Principal("alice@example.com", groups=("some",))

    asyncio.run(main())


def bearer(token: str) -> bytes:
    return authenticate(b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01")


def test_the_session_of_a_kafka_client_lasts_as_long_as_its_token(guarded: Server, provider: Provider) -> None:
    answers = talk(guarded, handshake("OAUTHBEARER"), bearer(provider.token(seconds=60)))
    assert answers[1] is not None
    assert 0 < struct.unpack(">q", answers[1][-8:])[0] <= 60_000


def test_a_kafka_client_has_to_log_in_again_when_its_token_has_expired(guarded: Server, provider: Provider) -> None:
    """Not a sleep for luck: the answer to metadata says whether the session has ended, and it is asked until it has."""
    metadata = request(METADATA, 1, struct.pack(">i", 0))

    def expired() -> bool:
        many = [metadata] * 30_000
        answers = talk(guarded, handshake("OAUTHBEARER"), bearer(provider.token(seconds=1)), *many)
        return answers[1] is not None and answers[1][:2] == b"\0\0" and answers[2] is not None and answers[-1] is None

    assert expired()


def test_an_amqp_connection_ends_with_its_token_and_goes_on_with_a_new_one(guarded: Server, provider: Provider) -> None:
    host, _, port = guarded.addresses["amqp"].rpartition(":")

    def connect(seconds: float) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials("", provider.token("dave", seconds=seconds))
        return pika.BlockingConnection(pika.ConnectionParameters(host, int(port), credentials=credentials))

    renewed = connect(3)
    renewed.update_secret(provider.token("dave"), "renewed")
    short = connect(2)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="token"):
        short.process_data_events(20)
    renewed.process_data_events(2)
    renewed.channel().queue_declare(unique("queue"))
    renewed.close()


@pytest.mark.parametrize("kind", ["websocket", "events"])
def test_a_stream_of_http_ends_with_the_token_that_it_began_with(
    guarded: Server, provider: Provider, kind: str
) -> None:
    path = f"{guarded.addresses['http']}/v1/subscriptions/stream?topic={unique('news')}"
    headers = {"authorization": f"Bearer {provider.token('erin', seconds=3)}", "x-requested-with": "test"}
    if kind == "websocket":
        with websocket(f"ws://{path}", additional_headers=headers) as stream:
            assert "has expired" in str(stream.recv(timeout=30))
            with pytest.raises(ConnectionClosed):
                stream.recv(timeout=30)
    else:
        with requests.get(f"http://{path}", headers=headers, stream=True, timeout=30) as events:
            assert events.status_code == 200
            assert "has expired" in "".join(line.decode() for line in events.iter_lines())


def test_keys_are_rotated_without_a_restart(guarded: Server, provider: Provider) -> None:
    who = f"http://{guarded.addresses['http']}/v1/whoami"

    def user(token: str) -> str:
        return str(requests.get(who, headers={"authorization": f"Bearer {token}"}, timeout=20).json()["user"])

    old = provider.token("carol")
    assert user(old) == "carol"
    provider.rotate("two", curve=True)
    wait_for(lambda: user(provider.token("carol")) == "carol" or None, "the new key is known", within_s=3 * REFETCH_S)
    assert user(old) == ""


# -- the checks of a token, without a broker ---------------------------------------------------------------------------


@pytest.fixture
def own() -> Iterator[Provider]:
    found = Provider()
    yield found
    found.close()


def checker(provider: Provider, now: Callable[[], float] = lambda: 0.0, **terms: Any) -> Tokens:
    given = {"issuer": ISSUER, "audience": (AUDIENCE,), "groups_claim": "groups", "skew_s": 0, **terms}
    return Tokens(TokenTerms(provider.url, **given), now)


def test_a_token_names_its_user_and_groups(own: Provider) -> None:
    found = checker(own).check(own.token(groups=["a", "b", 7]))
    assert isinstance(found, TokenOwner)
    assert (found.name, found.groups) == ("alice", ("a", "b"))
    by_mail = checker(own, name_claim="email").check(own.token(email="alice@example"))
    assert isinstance(by_mail, TokenOwner)
    assert by_mail.name == "alice@example"


def test_a_token_that_is_not_right_is_refused(own: Provider) -> None:
    tokens = checker(own)
    header, payload, signature = own.token().split(".")
    wrong = [
        own.token(seconds=-1),
        own.token(iss="https://evil.example"),
        own.token(aud="others"),
        own.token(nbf=time.time() + 100),
        own.token(sub=""),
        own.token(sub="x" * 200),
        own.token(key=rsa.generate_private_key(65537, 2048)),
        jwt.encode({"sub": "alice", "iss": ISSUER, "aud": AUDIENCE}, next(iter(own.keys.values())), "RS256"),
        jwt.encode({"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 9}, "", algorithm="none"),
        jwt.encode({"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 9}, "secret" * 9, "HS256"),
        f"{header}.{payload}.",
        f"{header}.{payload[:-2]}AA.{signature}",
        "",
        "a.b.c",
        "\x00.\x00.\x00",
        "x" * 100_000,
    ]
    for token in wrong:
        assert isinstance(tokens.check(token), Failed), token[:80]


def test_invented_key_ids_do_not_flood_the_provider(own: Provider) -> None:
    now = 0.0
    tokens = checker(own, lambda: now)
    assert isinstance(tokens.check(own.token()), TokenOwner)
    invented = jwt.encode({"sub": "x"}, next(iter(own.keys.values())), "RS256", headers={"kid": "invented"})
    for _ in range(50):
        assert isinstance(tokens.check(invented), Failed)
    assert own.asked == 1
    now += REFETCH_S + 1
    assert isinstance(tokens.check(invented), Failed)
    assert own.asked == 2


def test_keys_hold_while_the_provider_cannot_be_reached(own: Provider) -> None:
    now = 0.0
    tokens = checker(own, lambda: now)
    token = own.token(seconds=100_000)
    assert isinstance(tokens.check(token), TokenOwner)
    own.close()
    now += 7200
    assert isinstance(tokens.check(token), TokenOwner)
