"""One broker for the whole session, or an outside one.

`WAYSTATION_TEST_BOOTSTRAP=host:port` points the suite at another broker that speaks Kafka: that is how the tests
themselves are checked. Such a broker needs auto-creation of topics, one node, and the group timings below. Tests that
kill or configure the broker ask for `own_server` and are skipped there. The tests of AMQP clients have a switch of
their own, `WAYSTATION_AMQP_ORACLE` (see amqp_kit.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.clients.amqp_kit import ORACLE, AmqpTarget, Relay, target_at, target_of
from tests.clients.kit import HEARTBEAT_MS, SESSION_MS
from tests.clients.pika_kit import Pikas
from tests.clients.stage import NewTopicCall, OwnServerCall, Target, create_topic
from tests.support.names import unique
from tests.support.server import Server

OUTSIDE = os.environ.get("WAYSTATION_TEST_BOOTSTRAP", "")

SETTINGS: dict[str, str | int | bool] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS,
}
"""Short group timings, so that a dead member is noticed within the test."""


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The broker that all tests share; each test uses names of its own."""
    if OUTSIDE:
        yield Target(OUTSIDE, ours=False)
        return
    with Server(tmp_path_factory.mktemp("broker"), settings=SETTINGS) as server:
        yield Target(server.bootstrap, ours=True)


@pytest.fixture(scope="session")
def bootstrap(target: Target) -> str:
    """`host:port` of the broker under test."""
    return target.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    """An admin client for setting the stage."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})


@pytest.fixture
def new_topic(admin: AdminClient) -> NewTopicCall:
    """A factory of topics that exist for this test only (by name)."""

    def make(partitions: int = 1, config: Mapping[str, Any] | None = None) -> str:
        return create_topic(admin, unique("t"), partitions, config)

    return make


@pytest.fixture
def group() -> str:
    """A group id of this test only."""
    return unique("g")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[OwnServerCall]:
    """A factory of broker processes that belong to one test, which may kill or configure them."""
    if OUTSIDE:
        pytest.skip("kills or configures the broker: only for a broker that the test starts itself")
    started: list[Server] = []

    def start(**settings: str | int | bool) -> Server:
        dotted = {key.replace("_", "."): value for key, value in settings.items()}
        server = Server(tmp_path / f"broker{len(started)}", settings={**SETTINGS, **dotted})
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def amqp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmqpTarget]:
    """The broker that all tests of AMQP clients share."""
    if ORACLE:
        yield target_at(ORACLE, ours=False)
        return
    with Server(tmp_path_factory.mktemp("amqp")) as server:
        yield target_of(server)


@pytest.fixture
def pikas(amqp: AmqpTarget) -> Iterator[Pikas]:
    """Opens blocking pika connections, and closes them."""
    made = Pikas(amqp)
    yield made
    made.close()


@pytest.fixture
def relay(amqp: AmqpTarget) -> Iterator[Relay]:
    """A line to the AMQP broker that the test can cut."""
    line = Relay(amqp)
    yield line
    line.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder drives a real client: `-m "not clients"` leaves it out."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.clients)
