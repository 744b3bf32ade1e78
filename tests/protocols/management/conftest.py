"""One broker for all tests of the management API; each test uses names of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocols.http.kit import Http
from tests.protocols.management.kit import ORACLE, Api, api_of, oracle
from tests.support.server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("management")) as started:
        yield started


@pytest.fixture(scope="session")
def http(server: Server) -> Http:
    return Http(server.addresses["http"])


@pytest.fixture(scope="session")
def api(request: pytest.FixtureRequest) -> Api:
    """RabbitMQ's management API, here or at an oracle."""
    return oracle() if ORACLE else api_of(request.getfixturevalue("server"))
