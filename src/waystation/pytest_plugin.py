"""Fixtures for tests of programs that use Waystation: a fresh broker in the test's own process, gone with the test.

    def test_orders_are_billed(waystation):
        waystation.publish("orders.eu", {"id": 7})
        ...

pytest finds this module by itself once the package is installed. It is loaded by every pytest run, so it loads nothing
before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from waystation.client.sync.client import Client
    from waystation.inprocess import EmbeddedBroker
    from waystation.pytest_cluster import RunningCluster


@pytest.fixture
def waystation_settings() -> Mapping[str, str]:
    """Settings of the broker that `waystation` starts, and of the nodes of `waystation_cluster`, by their dotted names.
    Override it in your own conftest."""
    return {}


@pytest.fixture
def waystation(waystation_settings: Mapping[str, str]) -> Iterator[EmbeddedBroker]:
    """A fresh broker in this process, with nothing in it and all listeners open, and a client of it in one.

    `waystation.url` is for `waystation.connect` in the program under test, `waystation.kafka` for Kafka clients,
    `waystation.http` for HTTP, `waystation.amqp` for AMQP clients. Everything is gone after the test.
    """
    import waystation

    with waystation.open(":memory:", settings=waystation_settings, http="127.0.0.1:0", amqp="127.0.0.1:0") as broker:
        yield broker


@pytest.fixture
def waystation_client(waystation: EmbeddedBroker) -> Iterator[Client]:
    """A client that reaches the broker of `waystation` over the network, as another process would."""
    # The fixture's name hides the package here.
    from importlib import import_module

    with import_module("waystation").connect(waystation.url) as client:
        yield client


@pytest.fixture
def waystation_cluster(
    waystation_settings: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    """Three brokers that replicate, and an etcd, each a process of its own. Skips the test where there is no etcd.

    `waystation_cluster.kafka` is for Kafka clients: all nodes. `waystation_cluster.nodes[1].kill()`, `.stop()` and
    `.start()` are what a test does to one of them, and `.leader("orders")` is the one that leads a partition.
    """
    from waystation.cli.cluster.etcd_process import program
    from waystation.errors import NotFound
    from waystation.pytest_cluster import RunningCluster

    try:
        program()
    except NotFound as error:
        pytest.skip(str(error))
    with RunningCluster(tmp_path_factory.mktemp("waystation-cluster"), waystation_settings) as cluster:
        yield cluster
