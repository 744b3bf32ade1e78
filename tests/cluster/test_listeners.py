"""Several listeners of each node of a cluster: a client is sent to other nodes by the listener that it came by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.security.tls_kit import make_certificates
from tests.security.users_kit import waystation
from tests.support.cluster import RealCluster, RealNode
from tests.support.ports import free_port

PASSWORD = "pw"


class WithListeners(RealCluster):
    """Each node has a plain listener for the other nodes, and one with TLS and logins for everybody else, which is
    advertised by another host."""

    def add(self, number: int) -> RealNode:
        node = super().add(number)
        node.addresses["inside"] = f"127.0.0.1:{free_port()}"
        port = free_port()
        node.addresses["outside"] = f"localhost:{port}"
        own = (
            f"inside=kafka://{node.addresses['inside']}?tls=off&auth-required=false"
            f" outside=kafka://127.0.0.1:{port}?advertised=localhost&mechanisms=SCRAM-SHA-256"
        )
        node.options += ["--listeners", own, "--node-listener", "inside"]
        return node


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WithListeners, Path]]:
    folder = tmp_path_factory.mktemp("listeners")
    certificates = make_certificates(folder / "certificates")
    settings: dict[str, str | int] = {
        "tls.certificate": str(certificates / "server.crt"),
        "tls.key": str(certificates / "server.key"),
        "tls.plain": "true",
    }
    with WithListeners(folder / "cluster", settings) as cluster:
        server = cluster.address(1, "inside")
        waystation(
            "users", "add", "admin", "--superuser", "--password-stdin", "--server", server, stdin=f"{PASSWORD}\n"
        )
        yield cluster, certificates


def terms_of(cluster: RealCluster, certificates: Path) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.address(1, "outside").replace("localhost", "127.0.0.1"),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(certificates / "ca.crt"),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "admin",
        "sasl.password": PASSWORD,
        "log_level": 0,
    }


def test_a_client_is_sent_to_the_same_listener_of_other_nodes(stage: tuple[WithListeners, Path]) -> None:
    cluster, certificates = stage
    terms = terms_of(cluster, certificates)
    told = AdminClient(terms).list_topics(timeout=20).brokers
    assert {one.id: f"{one.host}:{one.port}" for one in told.values()} == {
        number: cluster.address(number, "outside") for number in (1, 2, 3)
    }
    inside = AdminClient({"bootstrap.servers": cluster.address(2, "inside"), "log_level": 0})
    assert {one.id: f"{one.host}:{one.port}" for one in inside.list_topics(timeout=20).brokers.values()} == {
        number: cluster.address(number, "inside") for number in (1, 2, 3)
    }


def test_leaders_and_coordinators_are_found_by_it(stage: tuple[WithListeners, Path]) -> None:
    cluster, certificates = stage
    terms = terms_of(cluster, certificates)
    waystation(
        "topics", "create", "orders", "--partitions", "6", "--replication-factor", "3",
        "--server", f"waystations://admin:{PASSWORD}@{cluster.address(1, 'outside')}?ca={certificates}/ca.crt",
    )  # fmt: skip
    failed: list[object] = []
    producer = Producer({**terms, "acks": "all"})
    for number in range(60):
        producer.produce("orders", str(number), partition=number % 6, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60) == 0
    assert failed == [None] * 60
    consumer = Consumer({**terms, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["orders"])
        found = [message for message in consumer.consume(60, timeout=60) if message.error() is None]
        assert {message.value() for message in found} == {str(number).encode() for number in range(60)}
    finally:
        consumer.close()


def test_commands_reach_the_other_nodes_by_it(stage: tuple[WithListeners, Path]) -> None:
    cluster, certificates = stage
    server = f"waystations://admin:{PASSWORD}@{cluster.address(2, 'outside')}?ca={certificates}/ca.crt"
    shown = json.loads(waystation("cluster", "status", "--json", "--server", server).stdout)
    assert [node["answers"] for node in shown["nodes"]] == [True, True, True]
    assert cluster.address(3, "outside") in waystation("cluster", "status", "--server", server).stdout
    drained = waystation("cluster", "drain", "3", "--server", server)
    assert "leads nothing" in drained.stdout
    waystation("cluster", "drain", "3", "--undo", "--server", server)
