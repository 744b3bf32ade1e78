"""Nodes of a cluster log in at each other: users close it to clients, and replication goes on, also over TLS."""

from __future__ import annotations

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import waystation as ws
from tests.security.tls_kit import make_certificates
from tests.security.users_kit import waystation
from tests.support import etcd
from tests.support.cluster import ClusterOfThree
from waystation.cli.main import build_parser
from waystation.cli.server.serve import make_plan
from waystation.errors import NotAuthenticated
from waystation.security.node_links import LinkLogin, NodeExchange, ensure_secret, proof_of
from waystation.security.principals import BROKER
from waystation.security.sasl.exchange import Challenge, Failed, LoggedIn
from waystation.security.tls import load
from waystation.security.tls_files import TlsFiles


def test_a_node_is_known_by_the_secret_of_the_cluster() -> None:
    def token(size: int) -> bytes:
        return b"\x07" * size

    exchange = NodeExchange(b"secret", token)
    asked = exchange.step(b"")
    assert isinstance(asked, Challenge)
    assert exchange.step(proof_of(b"secret", asked.data)) == LoggedIn(BROKER)
    assert isinstance(exchange.step(proof_of(b"secret", asked.data)), Failed)
    other = NodeExchange(b"secret", token)
    other.step(b"")
    assert isinstance(other.step(proof_of(b"other", asked.data)), Failed)


def test_all_nodes_find_the_same_secret() -> None:
    from waystation.catalog.memory import MemoryCatalog

    store = MemoryCatalog("cluster")
    first = ensure_secret(store, lambda size: b"a" * size)
    assert ensure_secret(store, lambda size: b"b" * size) == first == b"a" * 32


def test_links_have_the_certificate_of_the_listener_that_nodes_reach_each_other_by(tmp_path: Path) -> None:
    common, own = make_certificates(tmp_path / "common"), make_certificates(tmp_path / "own")

    def link(listener: str) -> TlsFiles | None:
        words = ["serve", "--cluster", "etcd://127.0.0.1:2379/x", "--node", "1", "--node-listener", "internal"]
        words += ["--set", f"tls.certificate={common}/server.crt", "--set", f"tls.key={common}/server.key"]
        words += ["--listeners", f"internal=kafka://127.0.0.1:1{listener}"]
        plan = make_plan(build_parser(["serve"]).parse_args(words), {}).cluster
        assert plan is not None
        assert plan.link.listener == "internal"
        return plan.link.files

    assert link("?tls=off") is None
    assert link("") == TlsFiles(f"{common}/server.crt", f"{common}/server.key")
    terms = f"certificate={own}/server.crt&key={own}/server.key&client-ca={own}/ca.crt&client-certificates=required"
    files = link(f"?{terms}")
    assert files == TlsFiles(f"{own}/server.crt", f"{own}/server.key", f"{own}/ca.crt", "required")
    context = LinkLogin(b"secret", files).context()
    assert context is not None
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor() as threads, ours, theirs:
        serving = threads.submit(load(files).wrap_socket, theirs, server_side=True)
        with context.wrap_socket(ours) as link_to, serving.result(20) as served:
            assert served.getpeercert(binary_form=True) == link_to.getpeercert(binary_form=True)


def test_a_clients_certificate_is_no_nodes(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path, "alice")
    terms = f"{folder}/server.crt", f"{folder}/server.key", f"{folder}/ca.crt"
    assert shows(LinkLogin(b"secret", TlsFiles(*terms)), TlsFiles(*terms), "10.0.0.2") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shows(
            LinkLogin(b"secret", TlsFiles(*terms)), TlsFiles(f"{folder}/alice.crt", f"{folder}/alice.key"), "10.0.0.2"
        )


def test_links_that_trust_what_the_system_trusts_compare_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can have a certificate of a public authority, for a name of their own."""
    folder = make_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", f"{folder}/ca.crt")
    files = TlsFiles(f"{folder}/server.crt", f"{folder}/server.key")
    assert shows(LinkLogin(b"secret", files), files, "localhost") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        shows(LinkLogin(b"secret", files), files, "node2.example.com")


def shows(login: LinkLogin, files: TlsFiles, name: str) -> str | None:
    """What a link speaks to a server of this name with these files."""
    context = login.context()
    assert context is not None
    ours, theirs = socket.socketpair()
    serving = load(files)
    serving.verify_mode = ssl.CERT_NONE
    with ThreadPoolExecutor() as threads, ours, theirs:

        def serve() -> None:
            with suppress(OSError), serving.wrap_socket(theirs, server_side=True) as served:
                served.recv(1)

        threads.submit(serve)
        with context.wrap_socket(ours, server_hostname=name) as link:
            return link.version()


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_a_cluster_replicates_when_clients_have_to_log_in(tmp_path: Path, encrypted: bool) -> None:
    etcd.need()
    settings: dict[str, str | int] = {"connection.failed.authentication.delay.ms": 1}
    if encrypted:
        certificates = make_certificates(tmp_path / "certificates")
        settings |= {
            "tls.certificate": str(certificates / "server.crt"),
            "tls.key": str(certificates / "server.key"),
            "tls.client-ca": str(certificates / "ca.crt"),
            "tls.plain": "true",
        }
    with ClusterOfThree(tmp_path / "cluster", settings) as cluster:
        server = cluster.bootstrap.split(",")[0]
        waystation("users", "add", "admin", "--superuser", "--password-stdin", "--server", server, stdin="pw\n")
        for one in cluster.bootstrap.split(","):
            with pytest.raises(NotAuthenticated):
                ws.connect(one)
        terms: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "admin",
            "sasl.password": "pw",
            "log_level": 0,
        }
        admin = AdminClient(terms)
        admin.create_topics([NewTopic("t", 3, 3, config={"min.insync.replicas": "3"})])["t"].result(60)
        failed: list[object] = []
        producer = Producer({**terms, "acks": "all", "message.timeout.ms": 60_000})
        for number in range(300):
            producer.produce("t", str(number), on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(90) == 0
        assert failed == []
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}).list_topics(timeout=2)
