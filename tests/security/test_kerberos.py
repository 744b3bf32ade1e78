"""GSSAPI: Kafka's clients and native ones log in by Kerberos tickets of a real KDC; whom a principal stands for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.kerberos_kit import REALM, Realm, kerberos_realm, missing
from tests.security.users_kit import PASSWORDS, add_users
from tests.support.names import unique
from tests.support.server import Server
from waystation.errors import InvalidSetting
from waystation.security.kerberos_names import parse_kerberos_rules, user_of_principal
from waystation.security.principals import Principal
from waystation.security.rules import Rule
from waystation.security.sasl.exchange import Challenge, Failed, LoggedIn
from waystation.security.sasl.gssapi import MOST_TOKENS, OFFER, GssapiExchange, GssContext, GssFailed

RULES = "RULE:[2:$1/$2@$0](^worker/.*)s/\\/.*//,RULE:[1:$1@$0](^Big.*@.*)s/@.*//L,DEFAULT"


class KerberosServer(Server):
    """With the realm's environment."""

    realm: Realm

    def _environment(self) -> dict[str, str]:
        mine = {name: value for name, value in self.realm.environment.items() if name.startswith("KRB5")}
        return {**super()._environment(), **mine}


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    why = missing()
    if why:
        pytest.skip(why)
    with kerberos_realm(tmp_path_factory.mktemp("realm")) as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, realm: Realm) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("kerberized")
    rules = [
        *(Rule(f"User:{name}", "all", "topic", "*") for name in ("alice", "worker", "bigone")),
        Rule("User:bigone", "all", "queue", "*"),
    ]
    add_users(folder / "data", {"admin": PASSWORDS["admin"]}, superusers=("admin",), rules=rules)
    settings: dict[str, str | int | bool] = {
        "waystation.kerberos.keytab": str(realm.keytab("kafka/localhost", "kafka/127.0.0.1", "other/localhost")),
        "sasl.kerberos.principal.to.local.rules": RULES,
        "connection.failed.authentication.delay.ms": 1,
    }
    started = KerberosServer(folder, settings=settings)
    started.realm = realm
    with started:
        yield started


def python(environment: dict[str, str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the library reads the environment once."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


KAFKA_PYTHON = """
import sys
from kafka import KafkaProducer
producer = KafkaProducer(
    bootstrap_servers=sys.argv[1], security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI",
    sasl_kerberos_service_name=sys.argv[3], sasl_kerberos_domain_name="localhost", max_block_ms=20000,
)
producer.send(sys.argv[2], b"hello").get(30)
print("published")
"""

AIOKAFKA = """
import asyncio, sys
from aiokafka import AIOKafkaProducer
async def main():
    producer = AIOKafkaProducer(
        bootstrap_servers=sys.argv[1], security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI",
        sasl_kerberos_service_name=sys.argv[3], sasl_kerberos_domain_name="localhost",
    )
    await producer.start()
    await producer.send_and_wait(sys.argv[2], b"hello")
    await producer.stop()
    print("published")
asyncio.run(asyncio.wait_for(main(), 60))
"""

NATIVE = """
import socket, sys
import gssapi, msgspec
from waystation.protocol import MAGIC, Authenticate, Hello
host, _, port = sys.argv[1].rpartition(":")
link = socket.create_connection((host, int(port)), timeout=30)
def ask(command, first=b""):
    body = msgspec.msgpack.encode(command)
    link.sendall(first + len(body).to_bytes(4, "big") + body)
    size = int.from_bytes(exactly(4), "big")
    return exactly(size)
def exactly(size):
    found = b""
    while len(found) < size:
        more = link.recv(size - len(found))
        if not more: raise SystemExit("closed")
        found += more
    return found
def value(answer, name):
    def walk(one):
        if isinstance(one, dict):
            if name in one: return one[name]
            one = list(one.values())
        if isinstance(one, list):
            for each in one:
                found = walk(each)
                if found is not None: return found
    return walk(msgspec.msgpack.decode(answer))
name = gssapi.Name(sys.argv[3] + "@localhost", gssapi.NameType.hostbased_service)
context = gssapi.SecurityContext(name=name, usage="initiate", flags=gssapi.RequirementFlag.mutual_authentication)
answer = ask(Hello(id=1, mechanism="GSSAPI", data=context.step()), MAGIC)
challenge = value(answer, "challenge")
if challenge is None: raise SystemExit(repr(answer))
token = context.step(challenge) or b""
challenge = value(ask(Authenticate(id=2, data=token)), "challenge")
offer = context.unwrap(challenge).message
assert offer[0] & 1, offer
answer = ask(Authenticate(id=3, data=context.wrap(bytes((1, 0, 0, 0)), False).message))
print("entered" if value(answer, "connection") else repr(answer))
"""


@pytest.mark.parametrize("client", [KAFKA_PYTHON, AIOKAFKA], ids=["kafka-python", "aiokafka"])
@pytest.mark.parametrize("principal", ["alice", "worker/node1.example.com", "BigOne"])
def test_a_kafka_client_logs_in_by_its_ticket(server: Server, realm: Realm, client: str, principal: str) -> None:
    done = python(realm.client(principal), client, server.bootstrap, unique("kerberos"), "kafka")
    assert "published" in done.stdout, done.stdout + done.stderr[-2000:]


def test_kcat_logs_in_by_its_ticket(server: Server, realm: Realm) -> None:
    kcat = shutil.which("kcat")
    if kcat is None or "sasl_gssapi" not in subprocess.run([kcat, "-V"], capture_output=True, text=True).stdout:
        pytest.skip("kcat with GSSAPI is not installed")
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.keytab": str(realm.keytab("alice")),
        "sasl.kerberos.principal": f"alice@{REALM}",
    }
    more = [part for name, value in options.items() for part in ("-X", f"{name}={value}")]
    done = subprocess.run(
        [kcat, "-b", server.bootstrap, *more, "-P", "-t", unique("kerberos")],
        env=realm.client("alice"),
        input="hello\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "No worthy mechs found" in done.stderr:
        pytest.skip("libsasl2-modules-gssapi-mit is not installed")
    assert done.returncode == 0, done.stderr


def test_a_native_client_logs_in_by_its_ticket(server: Server, realm: Realm) -> None:
    done = python(realm.client("BigOne"), NATIVE, server.bootstrap, "", "kafka")
    assert done.stdout.strip() == "entered", done.stdout + done.stderr[-2000:]


def test_who_has_no_right_has_none_by_kerberos_either(server: Server, realm: Realm) -> None:
    done = python(realm.client("eve"), KAFKA_PYTHON, server.bootstrap, unique("kerberos"), "kafka")
    assert "published" not in done.stdout
    assert "uthoriz" in done.stderr, done.stderr[-2000:]


def test_a_ticket_for_another_service_of_the_keytab_is_refused(server: Server, realm: Realm) -> None:
    done = python(realm.client("alice"), NATIVE, server.bootstrap, "", "other")
    assert "entered" not in done.stdout
    assert "the ticket is for other/localhost" in server.log.read_text()


def test_a_principal_that_stands_for_nobody_is_refused(server: Server, realm: Realm) -> None:
    done = python(realm.client("worker/a"), NATIVE, server.bootstrap, "", "kafka")
    assert done.stdout.strip() == "entered"
    done = python(realm.environment, NATIVE, server.bootstrap, "", "kafka")
    assert done.returncode != 0, "without a ticket"


def test_a_keytab_that_is_not_there_is_refused_at_the_start(tmp_path: Path, realm: Realm) -> None:
    server = Server(tmp_path, settings={"waystation.kerberos.keytab": str(tmp_path / "no.keytab")})
    with pytest.raises(AssertionError):
        server.start()
    assert "no.keytab cannot be read" in server.log.read_text()


# -- without Kerberos --------------------------------------------------------------------------------------------------


class FakeContext:
    """What the library would do with tokens that are plain text: a double for faults that no client makes."""

    def __init__(self, *, tokens: int = 1, mutual: bool = True) -> None:
        self._left = tokens
        self._mutual = mutual

    def step(self, token: bytes) -> bytes:
        if token == b"bad":
            raise GssFailed("no such ticket")
        self._left -= 1
        return b"token" if self._mutual or self._left else b""

    @property
    def complete(self) -> bool:
        return self._left <= 0

    def wrap(self, data: bytes) -> bytes:
        return b"wrapped" + data

    def unwrap(self, data: bytes) -> bytes:
        if not data.startswith(b"wrapped"):
            raise GssFailed("not signed")
        return data.removeprefix(b"wrapped")

    @property
    def initiator(self) -> str:
        return f"alice@{REALM}"


def exchange(context: GssContext) -> GssapiExchange:
    return GssapiExchange(lambda: context, lambda _: LoggedIn(Principal("alice")))


def test_the_exchange_is_rfc_4752s() -> None:
    login = exchange(FakeContext())
    assert login.step(b"ticket") == Challenge(b"token")
    assert login.step(b"") == Challenge(b"wrapped" + OFFER)
    assert login.step(b"wrapped\x01\0\0\0") == LoggedIn(Principal("alice"))
    assert isinstance(login.step(b""), Failed)
    login = exchange(FakeContext(mutual=False))
    assert login.step(b"ticket") == Challenge(b"wrapped" + OFFER), "nothing of Kerberos's is left to say"
    assert login.step(b"wrapped\x01\0\0\0bob") == LoggedIn(Principal("alice")), "nobody acts as another"


@pytest.mark.parametrize(
    "messages",
    [
        (b"bad",),
        (b"ticket", b"not empty"),
        (b"ticket", b"", b"not wrapped"),
        (b"ticket", b"", b"wrapped\x02\0\x10\0"),
        (b"ticket", b"", b"wrapped\x01"),
        (b"ticket", b"", b""),
    ],
)
def test_what_is_wrong_fails_and_stays_so(messages: tuple[bytes, ...]) -> None:
    login = exchange(FakeContext())
    *before, last = messages
    for one in before:
        assert isinstance(login.step(one), Challenge)
    assert isinstance(login.step(last), Failed)
    assert isinstance(login.step(b"ticket"), Failed)


def test_a_client_that_never_comes_to_an_end_is_refused() -> None:
    login = exchange(FakeContext(tokens=1000))
    outcomes = [login.step(b"more") for _ in range(MOST_TOKENS + 1)]
    assert all(isinstance(one, Challenge) for one in outcomes[:-1])
    assert isinstance(outcomes[-1], Failed)


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        ("DEFAULT", "alice@HERE", "alice"),
        ("DEFAULT", "alice/admin@HERE", "alice"),
        ("DEFAULT", "alice@ELSEWHERE", None),
        ("", "alice@HERE", None),
        (RULES, "worker/node1@HERE", "worker"),
        (RULES, "BigOne@ELSEWHERE", "bigone"),
        (RULES, "other/node1@ELSEWHERE", None),
        ("RULE:[1:$1]", "alice@ANY", "alice"),
        ("RULE:[1:$1@$0](.*@ANY)s/@.*//,DEFAULT", "bob@ANY", "bob"),
        ("RULE:[2:$1-$2](web-.*)s/-/_/g/U", "web/a-b@ANY", "WEB_A_B"),
        ("RULE:[1:$1](a(l|i)+ce)s/a(.*)/$1/", "alice@ANY", "lice"),
        ("RULE:[1:$1@$0]", "alice@ANY", None),
        ("DEFAULT", "no realm", None),
        ("DEFAULT", "a/b/c@HERE", None),
    ],
)
def test_rules_say_whom_a_principal_stands_for(rules: str, principal: str, user: str | None) -> None:
    assert user_of_principal(parse_kerberos_rules(rules), principal, "HERE") == user


@pytest.mark.parametrize("rules", ["RULE", "RULE:[3:$1]", "RULE:[1:$1](", "RULE:[1:$1](*)", "DEFAULT DEFAULT", "x"])
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(InvalidSetting, match=r"principal\.to\.local\.rules"):
        parse_kerberos_rules(rules)
