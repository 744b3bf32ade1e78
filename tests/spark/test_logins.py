"""Readers and writers of a broker that asks who they are, over TLS: they log in everywhere, and no secret is shown."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from tests.security.tls_kit import client_context, make_certificates, write_config
from tests.security.users_kit import PASSWORDS, add_users, waystation
from tests.spark.cluster_kit import cluster_environment
from tests.support.server import ROOT, Server
from tests.support.waiting import wait_for
from waystation.client.sync.client import Client
from waystation.errors import ConnectionLost, NotAllowed, NotAuthenticated
from waystation.protocol import DescribeTopic, TopicInfo
from waystation.security.rules import RESOURCES, Rule
from waystation.spark.links.broker_link import connect_once
from waystation.spark.links.login_options import lowered, read_servers
from waystation.spark.links.native_link import link_to_any
from waystation.spark.links.servers import Servers
from waystation.spark.reading.fetch_wire import Fetch
from waystation.spark.reading.fetching import Cluster
from waystation.spark.writing.rights import check_writes

pytestmark = pytest.mark.quick

SECRET = "correct-horse-battery-staple"
USERS = {**PASSWORDS, "alice": SECRET}
CONFIG = """
[tls]
certificate = "server.crt"
key = "server.key"
client-ca = "ca.crt"
[broker]
"ssl.principal.mapping.rules" = "RULE:^CN=([^,]+).*$/$1/"
"connection.failed.authentication.delay.ms" = 1
"""
RULES = (
    *(Rule("User:alice", "all", resource, "*") for resource in RESOURCES),
    Rule("User:bob", "describe", "topic", "seen"),
    Rule("User:bob", "describe", "queue", "*"),
    Rule("User:bob", "write", "transactional-id", "spark/", "prefixed"),
)


class Guarded:
    """The broker, its certificates, and who is who."""

    def __init__(self, server: Server, certificates: Path) -> None:
        self.server = server
        self.certificates = certificates

    def options(self, **more: str) -> dict[str, str]:
        return {"servers": self.server.bootstrap, "ca": str(self.certificates / "ca.crt"), **more}

    def servers(self, **more: str) -> Servers:
        return read_servers(lowered(self.options(**more)))

    def http(self, path: str) -> str:
        """As an administrator sees it in the dashboard."""
        request = urllib.request.Request(f"https://{self.server.addresses['http']}{path}")
        login = b64encode(f"admin:{USERS['admin']}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
        with urllib.request.urlopen(request, context=client_context(self.certificates), timeout=20) as answer:
            return str(answer.read().decode())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    certificates = make_certificates(folder / "certificates", "alice")
    add_users(folder / "data", USERS, superusers=("admin",), rules=RULES)
    with Server(folder, arguments=write_config(certificates, CONFIG)) as server:
        found = Guarded(server, certificates)
        with connect_once(found.servers(user="alice", password=SECRET)) as mq:
            for topic in ("orders", "copies", "seen"):
                mq.create_topic(topic, 1)
            mq.publish_many("orders", [str(n) for n in range(10)])
            mq.queue("tasks").put_many(["a", "b", "c"])
        yield found


def reads(servers: Servers) -> int:
    """Records of the topic orders, if each kind of connection lets this one in."""
    link = link_to_any(servers, "test")
    try:
        assert link.ask(DescribeTopic(topic="orders"), TopicInfo).topic == "orders"
    finally:
        link.close()
    with connect_once(servers) as mq:
        assert mq.describe_topic("orders").topic == "orders"
    cluster = Cluster(servers, 1)
    try:
        end = cluster.offsets({("orders", 0): -1}, True)["orders", 0]
        assert cluster.fetch(Fetch({("orders", 0): 0}, True, 1_000_000))["orders", 0].size > 0
        return end
    finally:
        cluster.forget()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_every_kind_of_connection_logs_in(guarded: Guarded, mechanism: str) -> None:
    assert reads(guarded.servers(user="alice", password=SECRET, mechanism=mechanism)) >= 10


def test_a_certificate_is_a_login(guarded: Guarded) -> None:
    own = {
        "certificate": str(guarded.certificates / "alice.crt"),
        "certificateKey": str(guarded.certificates / "alice.key"),
    }
    assert reads(guarded.servers(**own)) >= 10
    assert reads(guarded.servers(**own, mechanism="EXTERNAL")) >= 10


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"user": "alice", "password": "wrong-one"}, "refused the login of user 'alice' by SCRAM-SHA-256: check the"),
        ({"user": "alice", "password": "wrong-one", "mechanism": "PLAIN"}, "options user and password"),
        ({"token": "wrong-one"}, "refused the login of the token by OAUTHBEARER: check the option token"),
        ({}, "asks for a login: give the options user and passwordFile"),
        ({"ca": "", "user": "alice", "password": "wrong-one"}, "speaks TLS alone: give the option ca"),
        ({"ca": "", "tls": "true"}, "certificate is not accepted .* Give the certificate authority"),
    ],
)
def test_a_login_that_fails_is_told_what_to_do_at_once(guarded: Guarded, options: dict[str, str], says: str) -> None:
    servers = guarded.servers(**options)
    cluster = Cluster(servers, 300)
    for work in (lambda: link_to_any(servers, "test"), lambda: connect_once(servers), lambda: cluster.topics()):
        with pytest.raises(NotAuthenticated, match=says) as caught:
            work()
        assert "wrong-one" not in str(caught.value)


def test_tls_is_not_spoken_to_a_port_without_it(tmp_path: Path, guarded: Guarded) -> None:
    with Server(tmp_path) as plain:
        servers = guarded.servers(servers=plain.bootstrap)
        for work in (lambda: link_to_any(servers, "t"), lambda: connect_once(servers), Cluster(servers, 300).topics):
            with pytest.raises(NotAuthenticated, match="that port does not speak TLS"):
                work()


@pytest.mark.parametrize("error", [ssl.SSLEOFError(), ssl.SSLZeroReturnError(), ConnectionResetError()])
def test_however_a_port_without_tls_hangs_up_it_is_told_apart(tmp_path: Path, guarded: Guarded, error: OSError) -> None:
    with Server(tmp_path) as plain:
        servers = guarded.servers(servers=plain.bootstrap)
        told = servers.tls_failure(servers.addresses[0], error)
        assert isinstance(told, NotAuthenticated)
        assert "that port does not speak TLS" in str(told)


def _certificate(folder: Path, name: str, authority: Path) -> Path:
    """One that was valid in January 2020, with its key in the same file."""
    issuer = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
    signer = load_pem_private_key((authority / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    made = x509.CertificateBuilder().subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
    made = made.issuer_name(issuer.subject).public_key(key.public_key()).serial_number(7)
    made = made.not_valid_before(datetime(2020, 1, 1)).not_valid_after(datetime(2020, 2, 1))
    local = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = made.add_extension(local, critical=False).sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    file = folder / f"{name}-old.pem"
    own = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(signed.public_bytes(Encoding.PEM) + own)
    return file


def test_an_expired_certificate_of_the_client_is_named(guarded: Guarded, tmp_path: Path) -> None:
    servers = guarded.servers(certificate=str(_certificate(tmp_path, "alice", guarded.certificates)))
    for work in (lambda: link_to_any(servers, "t"), lambda: connect_once(servers), Cluster(servers, 300).topics):
        with pytest.raises(NotAuthenticated, match=r"refuses this client's certificate .* that has not expired"):
            work()


def test_an_expired_certificate_of_the_broker_is_named(guarded: Guarded, tmp_path: Path) -> None:
    """A broker does not start with one, so it is made to expire on the way: here by a listener that has it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate(tmp_path, "broker", guarded.certificates))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    opened, _ = listener.accept()
                except OSError:
                    return
                with opened, suppress(OSError):
                    context.wrap_socket(opened, server_side=True).close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        servers = guarded.servers(servers=f"127.0.0.1:{listener.getsockname()[1]}")
        for work in (lambda: link_to_any(servers, "t"), lambda: connect_once(servers), Cluster(servers, 300).topics):
            with pytest.raises(NotAuthenticated, match=r"certificate has expired.* has to be replaced on the broker"):
                work()


def test_rights_are_asked_before_anything_is_written(guarded: Guarded) -> None:
    bob = guarded.servers(user="bob", password=USERS["bob"])
    alice = guarded.servers(user="alice", password=SECRET)
    with connect_once(bob) as mq:
        for kind, name in (("topic", "seen"), ("queue", "tasks")):
            with pytest.raises(NotAllowed, match=f"--allow write --{kind} {name}"):
                check_writes(bob, mq, kind, name, exactly_once=True)
    with connect_once(alice) as mq:
        for kind, name in (("topic", "seen"), ("queue", "tasks")):
            check_writes(alice, mq, kind, name, exactly_once=True)


def test_a_password_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    add_users(tmp_path / "data", {"admin": "admin-secret", "carol": "first"}, superusers=("admin", "carol"))
    file = tmp_path / "password"
    file.write_text("first\n")
    lifetime = {"connections.max.reauth.ms": 400, "connection.failed.authentication.delay.ms": 1}
    with Server(tmp_path, settings=lifetime) as server:
        servers = read_servers(lowered({"servers": server.bootstrap, "user": "carol", "passwordFile": str(file)}))
        cluster, client = Cluster(servers, 20), connect_once(servers)
        first = cluster._connection(servers.addresses[0])
        wait_for(lambda: first.stale, "the login is about to run out")
        assert "waystation.nothing" not in cluster.topics()
        assert cluster._connection(servers.addresses[0]) is not first
        assert cluster.retries == 0, "no connection was used when its login had run out"
        admin = f"waystation://admin:admin-secret@{server.bootstrap}"
        waystation("users", "passwd", "carol", "--password-stdin", "--server", admin, stdin="second\n")
        file.write_text("second\n")
        cluster.forget()
        assert cluster.topics() is not None
        server.stop()
        server.restart()
        wait_for(lambda: _answers(client), "the client logs in again, with the new password")
        client.close()


def _answers(client: Client) -> bool:
    try:
        return client.topics() is not None
    except ConnectionLost:
        return False


# -- Spark -------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
def test_spark_logs_in_everywhere_and_shows_the_secret_nowhere(guarded: Guarded, tmp_path: Path) -> None:
    """In plans, progress, the Spark UI, event logs, Spark's log, checkpoints, the catalog, exceptions, and what the
    broker shows of pipelines."""
    pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")
    (tmp_path / "password").write_text(f"{SECRET}\n")
    (tmp_path / "bob").write_text(USERS["bob"])
    program = [sys.executable, "-m", "tests.spark.login_driver"]
    done = subprocess.run(
        [*program, guarded.server.bootstrap, str(guarded.certificates / "ca.crt"), str(tmp_path)],
        env={**cluster_environment(), "LOGIN_TEST_PASSWORD": SECRET, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    _check_work(said)
    (tmp_path / "password").unlink()
    places: dict[str, Any] = {str(file): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert any("events" in name for name in places), "there is an event log"
    assert any("checkpoint" in name for name in places)
    places |= {"what it printed": said.encode(), "the broker's log": guarded.server.log.read_bytes()}
    for path in ("/v1/pipelines", "/v1/topics/waystation.pipelines/messages", "/v1/connections"):
        places[path] = guarded.http(path).encode()
    for name in (b'"copies"', b'"guarded"'):
        assert name in places["/v1/pipelines"], "a query that was started by hand, and a pipeline"
    with connect_once(guarded.servers(user="alice", password=SECRET)) as mq:
        assert mq.describe_topic("routed").partitions[0][1] > 0, "the pipeline has written"
    assert {name: _around(text) for name, text in places.items() if SECRET.encode() in text} == {}


def _check_work(said: str) -> None:
    """It did what it was told."""
    for line in ("READ 10", "TASKS 3", "TABLE 10", "TABLE 20", "CHECKED []", "PIPELINE finished"):
        assert line in said.splitlines(), f"{line} in {said[:3000]}"
    told = {found[1]: found[2] for found in re.finditer(r"^REFUSED (\w+): (.*?)$", said, re.MULTILINE | re.DOTALL)}
    assert "ALLOWED" not in said
    assert len(told) == 13
    expected = {
        "password": "refused the login of user 'alice'",
        "login": "asks for a login: give the options user and passwordFile",
        "tls": "speaks TLS alone: give the option ca",
        "ca": "certificate is not accepted",
        "right": "topic 'orders' does not exist",
        "stream": "refused the login of user 'alice'",
        "rows": "refused the login of user 'alice'",
        "write": "--allow write --topic seen",
        "put": "--allow write --queue tasks",
        "table": "a table's options are shown by DESCRIBE",
        "source": "refused the login of user 'alice'",
        "pipeline_user": "refused the login of user 'nobody'",
        "pipeline_file": "passwort cannot be read",
    }
    for what, text in expected.items():
        after = said.partition(f"REFUSED {what}: ")[2][:3000]
        assert text in after, f"{what}: {after}"

    assert "refused the login of user 'nobody'" in said.partition("CHECK user [")[2].partition("\n")[0]
    assert "passwort cannot be read" in said.partition("CHECK file [")[2].partition("\n")[0]


def _around(text: bytes) -> str:
    at = text.find(SECRET.encode())
    return text[max(0, at - 300) : at + 60].decode(errors="replace")
