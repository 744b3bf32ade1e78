"""One broker for all tests of HTTP; each test uses names of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.protocols.http.kit import Http
from tests.support.names import unique
from tests.support.server import Server


@pytest.fixture(scope="session")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of pipelines that the broker runs."""
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, pipelines: Path) -> Iterator[Server]:
    """Users may be added without closing it to the other tests."""
    settings = {"auth.required": False, "connection.failed.authentication.delay.ms": 1}
    arguments = ["--pipelines", str(pipelines)]
    with Server(tmp_path_factory.mktemp("http"), settings=settings, arguments=arguments) as started:
        yield started


@pytest.fixture(scope="session")
def http(server: Server) -> Http:
    return Http(server.addresses["http"])


@pytest.fixture
def queue(http: Http) -> str:
    """A queue of this test only."""
    name = unique("q")
    http("PUT", f"/v1/queues/{name}")
    return name


@pytest.fixture
def topic() -> str:
    """A topic's name of this test only; nobody has created it."""
    return unique("t")
