"""One broker for all tests that count; they compare a scrape before with one after."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.observe.kit import Growth
from tests.protocols.http.kit import Http
from tests.support.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("observe")) as started:
        yield started


@pytest.fixture(scope="module")
def http(server: Server) -> Http:
    return Http(server.addresses["http"])


@pytest.fixture
def growth(http: Http) -> Growth:
    return Growth(http)
